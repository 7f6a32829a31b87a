"""The real harness, offline, on tasks made from the corpus that the tests have."""

import json, math, sys

import pytest
import torch

import navira
from navira.joint import random_joint
from navira.prompts import read_prompts
from navira.samples import Samples
from helpers.bytes_lm import byte_tokenizer
from helpers.sample_api import says

lm_eval = pytest.importorskip('lm_eval')
from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402
from navira.hf.lm_eval import log_likelihood, Navira, up_to  # noqa: E402


def ask(kind, *args):
    return Instance(request_type=kind, doc={}, arguments=args, idx=0)


@pytest.fixture(scope='module')
def lm():
    return Navira(policy='navira-piecewise', budget=16, max_new_tokens=8, draws=32)


WORDS = [
    ('The man opened the', ' door', ' sky'),
    ('She looked out of the', ' window', ' fish'),
    ('It was a dark and stormy', ' night', ' table'),
    ('He sat down in the', ' chair', ' river'),
]


@pytest.fixture(scope='module')
def tasks(tmp_path_factory):
    folder = tmp_path_factory.mktemp('tasks')
    docs = [dict(context=c, choices=[a, b], gold=0, text=c, answer=a.strip()) for c, a, b in WORDS]
    (folder / 'docs.jsonl').write_text('\n'.join(map(json.dumps, docs)))
    common = f"""dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder / 'docs.jsonl'}}}}}
test_split: test
"""
    (folder / 'choice.yaml').write_text(
        common
        + """task: navira_choice
output_type: multiple_choice
doc_to_text: "{{context}}"
doc_to_choice: "{{choices}}"
doc_to_target: gold
target_delimiter: ""
metric_list: [{metric: acc}]
"""
    )
    (folder / 'write.yaml').write_text(
        common
        + """task: navira_write
output_type: generate_until
doc_to_text: "{{context}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["."], max_gen_toks: 6}
metric_list: [{metric: exact_match}]
"""
    )
    return folder


def test_the_harness_itself(lm, tasks):
    told = lm_eval.simple_evaluate(
        model=lm,
        tasks=['navira_choice', 'navira_write'],
        bootstrap_iters=0,
        task_manager=TaskManager(include_path=str(tasks)),
        log_samples=True,
    )
    right = told['results']['navira_choice']['acc,none']
    assert right == 1.0  # doors are opened, and skies are not
    written = [s['resps'][0][0] for s in told['samples']['navira_write']]
    assert len(written) == 4 and all(isinstance(t, str) and '.' not in t for t in written)


def test_the_text_of_the_mask_is_text(lm):
    assert lm.loglikelihood([ask('loglikelihood', 'The man', ' opened<|mask|>')])[0][0] < 0
    said = 'What is <|mask|>? Answer:'
    assert lm.model.tokenizer.decode(lm.context(said)) == said
    told = lm.generate_until([ask('generate_until', said, dict(max_gen_toks=4))], True)
    same = navira.sample(lm.model, lm.rule, lm.budget, prompt=[lm.context(said)], max_new_tokens=4)
    assert told == [lm.model.tokenizer.decode(same.tokens[0, len(lm.context(said)) :].tolist())]


@pytest.mark.parametrize(
    'until, text', [(['<|turn|>'], '@A'), (['A'], '@'), (['B', '<|turn|>'], '@A'), ([], '@AB')]
)
def test_a_string_that_ends_a_text_may_be_a_special_token(lm, monkeypatch, until, text):
    tok = byte_tokenizer().backend_tokenizer
    ids = torch.tensor([[31, 32, 258, 33, 256, -1]])
    res = Samples(ids, ids, 1, 1, 0.0, tok, given=torch.tensor([0]))
    monkeypatch.setattr('navira.hf.lm_eval.sample', lambda *a, **how: res)
    monkeypatch.setattr(lm.model, 'tokenizer', tok)
    monkeypatch.setitem(vars(lm), 'special', Navira.special.func(lm))
    assert lm.generate_until([ask('generate_until', '', dict(until=until))], True) == [text]


def test_the_end_of_a_turn_ends_an_answer(pytestconfig):
    lm = Navira(str(pytestconfig.rootpath / 'tests' / 'golden' / 'llada'), policy='backbone')
    assert lm.model.tokenizer.token_to_id('<|eot|>') in lm.model.eos_ids


def test_the_command_line_hands_its_arguments_to_the_harness(monkeypatch):
    from navira.cli.app import main

    seen = []
    monkeypatch.setattr('lm_eval.__main__.cli_evaluate', lambda: seen.extend(sys.argv))
    with pytest.raises(SystemExit) as e:
        main(['lm-eval', '--tasks', 'gsm8k', '--limit', '2'])
    assert not e.value.code
    assert seen == ['lm_eval', 'run', '--model', 'navira', '--tasks', 'gsm8k', '--limit', '2']


def test_the_bound_is_exact_on_a_joint_that_we_know():
    "With exact conditionals the expectation is the log-likelihood itself."
    joint = random_joint(3, 3)
    for context, y in (([1], [0, 2]), ([], [2, 1, 0]), ([0, 2], [1])):
        p = joint.joint[tuple(context)]
        true = math.log(p[tuple(y)] / p.sum())
        assert abs(log_likelihood(joint, context, y, 3000) - true) < 0.03


def test_a_space_belongs_to_the_continuation(lm):
    for context, more in (
        ('The man', ' opened'),
        ('The man ', 'opened'),
        ('', 'The man'),
        ('Say:\n', 'yes'),
    ):
        a, b = lm.pair(context, more)
        assert lm.model.tokenizer.decode(a + b, skip_special_tokens=False) == context + more and b


def test_a_context_gives_way_to_its_continuation(lm):
    "The last of it that fits is read; beside a continuation of full length that is nothing."
    context, y = (
        lm.ids('The man opened the door and walked in.'),
        lm.ids('It was a dark night. ' * 60)[: lm.max_length],
    )
    nats = lambda *given: pytest.approx(lm.likely(*given)[0])
    assert len(y) == lm.max_length and lm.likely(context, y)[0] == nats([], y)
    short = lm.likely(context, y[:-2])[0]
    assert short == nats(context[-2:], y[:-2]) and short != nats([], y[:-2])
    assert lm.likely(context, y[:5])[0] != nats(context[1:], y[:5])
    with says(ValueError, f'continuation of {lm.max_length + 1} tokens', lm.max_length):
        lm.likely([], [*y, 5])


def test_greedy_is_said_when_it_is_asked_for():
    joint = Navira(policy='mdlm', budget=4, draws=4, greedy=True)
    start = joint.ids('The man opened')
    best = joint.written(start, 3)
    assert joint.likely(start, best)[1] and not joint.likely(start, [5, 6, 7])[1]
    assert not Navira(policy='mdlm', budget=4, draws=4).likely(start, best)[1]


def test_texts_end_where_a_request_says(lm):
    told = lm.generate_until(
        [
            ask('generate_until', 'The captain', dict(until='.', max_gen_toks=5)),
            ask('generate_until', 'She', dict(until=[], max_gen_toks=9)),
            ask('generate_until', 'x ' * 500, {}),
        ],
        disable_tqdm=True,
    )
    assert len(told) == 3 and len(lm.ids(told[1])) <= 9
    assert up_to('one. two; three', [';', '.']) == 'one' and up_to('one', ['.', '']) == 'one'


@pytest.mark.parametrize('name', ['bert', 'dream', 'llada'])
def test_it_asks_as_sample_does(pytestconfig, name):
    "Behind what the tokenizer puts before a text, also where the context is empty or too long."
    lm = Navira(
        str(pytestconfig.rootpath / 'tests' / 'golden' / name), policy='backbone', budget=4, draws=4
    )
    lead = lm.model.tokenizer.encode('').ids[:-1]
    for text in ('the man', '', 'the ' * 200):
        ids = lm.context(text)
        assert ids[: len(lead)] == lead and ids == start_ids_of(lm, text)
        start, more = lm.pair(text, ' house')
        assert start == lm.context(text.rstrip()) and more and not set(lead) & set(more)
        assert lm.last(ids, 9)[: len(lead)] == lead and len(lm.last(ids, 9)) <= 9
        assert lm.loglikelihood([ask('loglikelihood', text, ' house')])[0][0] < 0
        assert isinstance(
            lm.generate_until([ask('generate_until', text, dict(max_gen_toks=4))], True)[0], str
        )
    assert lm.loglikelihood_rolling([ask('loglikelihood_rolling', 'the man ' * 60)])[0] < 0


def start_ids_of(lm, text):
    return read_prompts(lm.model, text, open_ended=True)[0].ids.tolist()


def test_a_wrong_argument_is_named():
    with says(KeyError, 'policy', "'prism'"):
        Navira(policy='prsim')
    lm = Navira(policy='mdlm')
    with says(ValueError, 'chat template'):
        lm.apply_chat_template([])
