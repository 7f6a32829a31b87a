"""The judge: a server that misbehaves by script, a killed run, answers without marks, and one real server."""
import hashlib, json

from hypothesis import given, strategies as hs

from navira.evaluation.judge import ASPECTS, marks, OutOfRange, PROMPT, prompt, Unreadable

leaves = hs.one_of(hs.none(), hs.booleans(), hs.floats(), hs.text())

def nested(x): return hs.one_of(hs.lists(x), hs.dictionaries(hs.sampled_from([*ASPECTS, 'other']), x))

# --- the answer -----------------------------------------------------------------------------------
@given(
    hs.lists(hs.one_of(hs.integers(1, 10), hs.floats(1, 10)), min_size=5, max_size=5),
    hs.permutations(ASPECTS),
    hs.booleans(),
)
def test_five_marks_are_read(values, order, fence):
    given = dict(zip(order, values, strict=True))
    text = json.dumps(given)
    assert marks(f'```json\n{text}\n```' if fence else f' {text}\n') == {k: float(v) for k, v in given.items()}

@given(hs.one_of(hs.text(), hs.recursive(leaves, nested).map(json.dumps)))
def test_no_mark_is_ever_guessed(answer):
    try:
        found = marks(answer)
    except (Unreadable, OutOfRange):
        return
    assert set(found) == set(ASPECTS)
    assert all(1 <= v <= 10 for v in found.values())
    assert found == {k: float(v) for k, v in json.loads(answer).items()}

def test_the_prompt_is_the_paper_s(root):
    middle = 'Generated text:\n{text} & {\n\nReturn ONLY valid JSON in exactly this format:\n{\n'
    assert prompt('{text} & {').count(middle) == 1
    word_for_word = '723cba87939bfb244b24b0954ab276556ce1a8f9b024ade239dc26cc2ebf4e93'     # of the paper's source
    assert hashlib.sha256(PROMPT.encode()).hexdigest() == word_for_word
    numbered = [l for l in PROMPT.split('\n') if l[:1].isdigit()]
    assert numbered == [f'{i}. {a.capitalize()}' for i, a in enumerate(ASPECTS, 1)]
