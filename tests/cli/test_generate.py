"""`navira generate`, `fill` and `solve`: from what is typed to what is printed."""
import json
from pathlib import Path

import pytest

import navira as package
from helpers.cli import net, refuses, run, said  # noqa: F401
from helpers.grids import grid_folder  # noqa: F401

LITTLE = '--budget', 4, '--length', 24, '--json'

def rows(text): return [json.loads(line) for line in text.splitlines()]

# --- what reaches the library ---------------------------------------------------------------------

def test_a_policy_is_typed_with_its_hyper_parameters(run, net):
    hyper = dict(top_p=0.5, eta=0.5, n_remask=10)
    expected = package.sample(net, 'prism', 4, length=24, **hyper).tokens[0].tolist()
    typed = 'prism:top_p=.5+eta=+5e-1+n_remask=1_0'
    row, = rows(run('generate', *LITTLE, '-p', typed))
    assert row['policy'] == typed and row['tokens'] == expected

def test_prompts_are_typed_or_read_and_each_has_n_texts(run, tmp_path):
    (tmp_path / 'p.txt').write_bytes('\ufeffIt was\r\n\n caf\xe9 and\n'.encode())
    (tmp_path / 'p.JSONL').write_text('{"prompt": "Two\\nlines"}\n', encoding='utf-8')
    typed = rows(run('generate', 'One', 'Two', *LITTLE, '-n', 2))
    assert [r['prompt'] for r in typed] == ['One', 'One', 'Two', 'Two']
    assert all(r['text'].startswith(r['prompt']) for r in typed)
    for file, prompts in (('p.txt', ['It was', ' caf\xe9 and']), ('p.JSONL', ['Two\nlines'])):
        read = rows(run('generate', '--prompts', tmp_path / file, *LITTLE))
        assert [r['prompt'] for r in read] == prompts

def test_the_model_is_asked_for_as_typed(run):
    model = ['--model', 'somewhere', '--dtype', 'bf16', '--mask-id', 5]
    run('generate', *LITTLE, *model, '--aligned')
    run('fill', 'a ___', '--budget', 2, *model, '--shift')
    how = dict(source='somewhere', dtype='bf16', mask_id=5, head=None)
    assert run.asked == [how | dict(shift=False), how | dict(shift=True)]

def test_blanks_are_filled(run, net):
    typed = '--tokens 2 -p prism:eta=.1 --budget 8 --json'
    row, = rows(run('fill', 'The man ___ in.', *typed.split()))
    policy = package.policy('prism', eta=0.1)
    assert row['text'] == package.fill('The man ___ in.', 1, 2, net, policy, 8).texts[0]

# --- what is printed ------------------------------------------------------------------------------

def test_charged_and_run(run, tmp_path):
    args = ['generate', '--policy', 'navira-det', '--budget', 17, '--length', 32]
    row, = rows(run(*args, '--json'))
    assert (row['budget'], row['charged'], row['steps']) == (17, 16, 8)
    assert row['n_forward'] < 16  # no rating in the first half
    line = '--- navira-det, {n_forward:g} forward passes run, 16 charged, seed 0, sample 0'
    assert line.format(**row) in run(*args, '--replay', tmp_path / 'new' / 'run.html')
    assert '<html' in (tmp_path / 'new' / 'run.html').read_text()

def test_what_is_finished_is_printed_when_a_run_is_stopped(run, net, monkeypatch, capsys):
    sample = package.sample
    def stopped(*args, n, **kw):
        if n.start: raise KeyboardInterrupt
        return sample(*args, n=n, **kw)
    monkeypatch.setattr(package, 'sample', stopped, raising=False)
    code, printed = said(capsys, *'generate -n 40 -p prism --budget 2 --length 8 --json'.split())
    assert code == 130 and printed.err.strip() == 'navira: interrupted'
    once = sample(net, 'prism', 2, 40, length=8).tokens.tolist()
    assert [r['tokens'] for r in rows(printed.out)] == once[:32]

# --- models of the transformers library -----------------------------------------------------------

def test_the_answer_of_a_chat_is_printed(capsys, golden):
    typed = '-p llada-low-confidence --budget 8 --max-new-tokens 8 --chat --json'
    args = ['generate', 'the house', '--model', golden / 'llada', *typed.split()]
    row, = rows(said(capsys, *args)[1].out)
    answer = package.chat(package.load(golden / 'llada'), 'the house', budget=8, max_new_tokens=8)
    assert row['prompt'] == 'the house' and row['text'].strip() == answer

GOLDEN = Path(__file__).parents[1] / 'golden'

@pytest.mark.parametrize('name', sorted(p.name for p in GOLDEN.iterdir()))
def test_each_family_answers_or_says_why_not(name, capsys):
    "Networks are random: one may end its answer at once, and is then kept from it."
    args = ['generate', 'Hello', '--model', GOLDEN / name, *'--budget 8 --max-new-tokens 4'.split()]
    code, printed = said(capsys, *args, '--chat')
    if not (GOLDEN / name / 'chat_template.jinja').exists():
        assert code == 2 and 'without --chat' in printed.err
        code, printed = said(capsys, *args)
    assert not code and printed.out.splitlines()[1]
    if name == 'fast-dllm-v2':
        assert '(empty: ' in printed.out
        assert '(empty' not in said(capsys, *args, '--chat', '--min-new-tokens', 2)[1].out

def test_a_model_without_a_tokenizer_prints_tokens(capsys, copied):
    folder = copied('llada', '*token*', '*.jinja')
    args = ['generate', '--model', folder, '--budget', 4, '--length', 8, '--eos', 'keep']
    row, = rows(said(capsys, *args, '--json')[1].out)
    assert row['text'] is None and len(row['tokens']) == 8
    assert str(row['tokens']) in said(capsys, *args)[1].out

# --- bad input ------------------------------------------------------------------------------------

@pytest.mark.parametrize('sentence, typed', [
    ("tau='warm': expected a number", '-p navira:tau=warm'), ('-n=0', '-n 0'),
    ('expected what the user says', '--chat')])
def test_a_mistake_is_named(sentence, typed, refuses):
    refuses(sentence, 'generate', *typed.split())

@pytest.mark.parametrize('content, suffix, sentence', [
    (b'caf\xe9 ', '.txt', 'utf-8'), (b'\n', '.txt', 'no prompt in it'),
    (b'{"text": "x"}', '.jsonl', 'prompt'),
    (b'{"prompt": "a"}\n{"prompt": null}', '.jsonl', 'line 2: '),
    (b'[{"prompt": "a"}]', '.json', 'expected an object with a text'),
    (b'{"prompt": ' + b'[' * 20_000, '.jsonl', 'recursion')])
def test_a_file_without_prompts_is_named(content, suffix, sentence, tmp_path, refuses):
    file = tmp_path / f'p{suffix}'
    file.write_bytes(content)
    assert f'--prompts {file}: ' in refuses(sentence, 'generate', '--prompts', file)

# --- Sudokus --------------------------------------------------------------------------------------

PUZZLE = '53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79'
OPEN, MORE = '1234341221434.21', '12343412214343.1'

def test_a_text_that_is_no_puzzle_is_named_before_a_model_is_loaded(refuses):
    refuses("puzzle 2: row 1, column 1: 'x'", 'solve', PUZZLE, 'x' + PUZZLE[1:],
            '--model', 'no/such')

@pytest.mark.parametrize('content, sentence', [
    (None, 'No such file'), (b'', 'no puzzle in it'), (PUZZLE.encode('utf-16'), "'utf-8' codec")])
def test_a_file_that_holds_no_puzzle_is_named(content, sentence, refuses, tmp_path):
    file = tmp_path / 'puzzles.txt'
    if content is not None: file.write_bytes(content)
    assert str(file) in refuses(sentence, 'solve', file)

def test_a_model_of_other_grids_is_named(grid_folder, refuses):  # noqa: F811
    refuses('this model writes grids with boxes of 2 x 2; expected one of grids with boxes of '
            '3 x 3', 'solve', PUZZLE, '--model', grid_folder)

def test_a_puzzle_that_stays_unsolved_ends_with_exit_code_1(grid_folder, capsys, tmp_path):  # noqa: F811
    args = ['solve', '.' * 16, '--model', grid_folder, '--budget', 4, '-n', 3]
    code, printed = said(capsys, *args, '--replay', tmp_path / 'r.html')
    assert code == 1 and 'not solved in 3 tries of 4 forward passes' in printed.out
    assert '"boxes":[2,2]' in (tmp_path / 'r.html').read_text()
    code, printed = said(capsys, *args, '--json')
    facts = json.loads(printed.out)
    assert code == 1 and not facts['solved'] and len(facts['grid']) == 16

def test_several_puzzles(grid_folder, capsys, tmp_path):  # noqa: F811
    # as Notepad writes it, with a byte order mark
    (tmp_path / 'two.txt').write_text(f'\ufeff{OPEN}\n\n{MORE}\n', newline='\r\n')
    easy = ['--model', grid_folder, '-n', 64, '--policy', 'backbone:top_p=1.']
    code, printed = said(capsys, 'solve', tmp_path / 'two.txt', OPEN, *easy)
    assert not code and printed.out.count('solved: ') == 3 and '4 3 | 2 1' in printed.out
