"""A large vocabulary: whole runs beside their products and beside another sampler."""
import subprocess, sys
import pytest
import torch
import navira.experiments.vocabulary as vocabulary
from navira.experiments.benchmark import benchmark, tables
from navira.experiments.literal import products, work
from navira.experiments.speed import Bench
from navira.experiments.vocabulary import of_runs, random_llama, samplers_of, Texts, ways, WHICH

OTHER = '''
import torch
def everything_at_once(net, prompts, new, forwards, mask_id):
    x = torch.cat([prompts, prompts.new_full((len(prompts), new), mask_id)], 1)
    for _ in range(forwards): logits = net(x).logits[..., :mask_id]
    return torch.where(x == mask_id, logits.argmax(-1), x)
samplers = {'at once': everything_at_once}
'''

@pytest.fixture
def tiny(monkeypatch):
    small = dict(vocab_size=96, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2)
    monkeypatch.setattr(vocabulary, 'LLAMA', vocabulary.LLAMA | small)
    monkeypatch.setattr(vocabulary, 'ROWS', {1: Texts(1, 4, 3, 12), 2: Texts(2, 2, 3, 12)})

@pytest.fixture
def other(tmp_path):
    (tmp_path/'other.py').write_text(OTHER)
    return tmp_path/'other.py'

def test_every_part_measures(tiny, other, tmp_path, monkeypatch):
    monkeypatch.setattr('navira.experiments.benchmark.in_child', lambda f, *args: f(*args))
    monkeypatch.setattr(vocabulary, 'peak', lambda f, device: (f(), 2**20)[1])         # too little to be seen
    found = benchmark(tmp_path/'r.json', Bench(2, others=other), ['vocabulary'])
    for rows in (1, 2):
        s = found['parts'][f'vocabulary/{rows}/seconds']
        assert set(s['seconds']) == {'at once', 'scoring pass', 'its products', *WHICH}
        assert all(len(v) == 2 for v in s['seconds'].values())
        table = of_runs(found, rows)
        assert [len(r) for r in table.rows] == [len(table.head)] * 4
    assert [t.title for t in tables(found)][-2:] == ['96 words, 1 at a time', '96 words, 2 at a time']

@torch.inference_mode()
def test_the_work_is_what_is_counted_by_hand(tiny):
    "Four passes of the body at 15 tokens; of the vocabulary the three tokens that each unmasks, or all that are masked"
    from navira.models.transformers import shares
    model, t = random_llama(), Texts(1, 4, 3, 12)
    per, body = shares(model.config), 15 * shares(model.config)['body'] + 2 * 2 * 15 * 15 * 16
    of = lambda f: work(products(model, f))
    assert of(ways(model, t, None)['llada-low-confidence']) == 4 * body + (12 + 9 + 6 + 3) * per['vocabulary']
    assert of(vocabulary.scoring(model, t)) == body + 15 * 16

def test_a_run_is_a_function_of_the_weights_and_touches_no_global_state(tiny):
    before = torch.random.get_rng_state()
    a, b = (ways(random_llama(), Texts(1, 4, 3, 12), None)['navira-piecewise']().tokens for _ in range(2))
    assert torch.equal(a, b) and torch.equal(before, torch.random.get_rng_state())

@pytest.mark.parametrize('text, says', [('x = 1', 'samplers=None'), ('samplers = {}', 'samplers={}'), ('samplers = {"a": 1}', "'a': 1")])  # noqa: E501
def test_a_file_without_samplers_is_refused(tmp_path, text, says):
    (tmp_path/'f.py').write_text(text)
    with pytest.raises(ValueError, match=says): samplers_of(tmp_path/'f.py')
    with pytest.raises(FileNotFoundError, match='none.py'): samplers_of(tmp_path/'none.py')

def test_a_sampler_that_leaves_masks_is_named(tiny, tmp_path):
    left = OTHER.replace('torch.where(x == mask_id, logits.argmax(-1), x)', 'x')
    (tmp_path/'f.py').write_text(left)
    with pytest.raises(ValueError, match='at once: gave .* with 12 masks'):
        ways(random_llama(), Texts(1, 4, 3, 12), tmp_path/'f.py')['at once']()

def test_the_script_starts(root):
    r = subprocess.run([sys.executable, root/'benchmarks'/'sampling.py', '--help'], capture_output=True, text=True)
    assert r.returncode == 0 and '--others' in r.stdout, r.stderr
