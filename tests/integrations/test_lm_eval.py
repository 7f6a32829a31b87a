"""The real harness, offline, on tasks made from the corpus that the tests have."""
import json, math, os, subprocess, sys

import pytest
import torch

import navira
from navira.diffusion import nelbo
from navira.joint import random_joint
from helpers.sample_api import says

lm_eval = pytest.importorskip('lm_eval')
from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402
from navira.integrations.lm_eval import cut, log_likelihood, Navira  # noqa: E402

def ask(kind, *args): return Instance(request_type=kind, doc={}, arguments=args, idx=0)

@pytest.fixture(scope='module')
def lm(): return Navira(policy='navira-piecewise', budget=16, max_new_tokens=8, draws=32)

WORDS = [('The man opened the', ' door', ' sky'), ('She looked out of the', ' window', ' fish'),
         ('It was a dark and stormy', ' night', ' table'), ('He sat down in the', ' chair', ' river')]

@pytest.fixture(scope='module')
def tasks(tmp_path_factory):
    folder = tmp_path_factory.mktemp('tasks')
    docs = [dict(context=c, choices=[a, b], gold=0, text=c, answer=a.strip()) for c, a, b in WORDS]
    (folder / 'docs.jsonl').write_text('\n'.join(map(json.dumps, docs)))
    common = f"""dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder / 'docs.jsonl'}}}}}
test_split: test
"""
    (folder / 'choice.yaml').write_text(common + """task: navira_choice
output_type: multiple_choice
doc_to_text: "{{context}}"
doc_to_choice: "{{choices}}"
doc_to_target: gold
target_delimiter: ""
metric_list: [{metric: acc}]
""")
    (folder / 'write.yaml').write_text(common + """task: navira_write
output_type: generate_until
doc_to_text: "{{context}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["."], max_gen_toks: 6}
metric_list: [{metric: exact_match}]
""")
    return folder

def test_the_harness_itself(lm, tasks):
    told = lm_eval.simple_evaluate(model=lm, tasks=['navira_choice', 'navira_write'], bootstrap_iters=0,
                                   task_manager=TaskManager(include_path=str(tasks)), log_samples=True)
    right = told['results']['navira_choice']['acc,none']
    assert right == 1.                                   # doors are opened, and skies are not
    written = [s['resps'][0][0] for s in told['samples']['navira_write']]
    assert len(written) == 4 and all(isinstance(t, str) and '.' not in t for t in written)

def test_the_command_line(tasks, tmp_path):
    command = [sys.executable, '-m', 'navira.cli', 'lm-eval', '--model_args', 'policy=mdlm,budget=4,draws=4', '--tasks',
               'navira_choice', '--include_path', str(tasks), '--limit', '2', '--output_path', str(tmp_path)]
    r = subprocess.run(command, capture_output=True, text=True, env=os.environ | dict(COLUMNS='200'))
    assert r.returncode == 0 and 'navira_choice' in r.stdout, r.stderr[-3000:]

def test_the_bound_is_exact_on_a_joint_that_we_know():
    "With exact conditionals nothing is lost, in whatever order: the expectation is the log-likelihood itself."
    joint = random_joint(3, 3)
    for context, y in (([1], [0, 2]), ([], [2, 1, 0]), ([0, 2], [1])):
        p = joint.joint[tuple(context)]
        true = math.log(p[tuple(y)] / p.sum())
        assert abs(log_likelihood(joint, context, y, 3000) - true) < .03

def test_a_seed_is_a_number(lm):
    x = lm.ids('The man opened the door.')
    one, same, other = (log_likelihood(lm.model, [], x, 8, seed=s, batch_size=b) for s, b in ((1, 8), (1, 3), (2, 8)))
    assert abs(one - same) < 1e-3 < abs(one - other)

def test_it_is_the_bound_of_notebook_01(lm):
    "One over the number of masks, or one over a noise level: two estimates of one number."
    x = torch.tensor(lm.ids('The man opened the door and walked in. It was a dark and stormy night.'))[None]
    ours = -log_likelihood(lm.model, [], x[0].tolist(), 512)
    t = (torch.arange(512) + .5) / 512
    g = torch.Generator().manual_seed(0)
    with torch.no_grad(): theirs = nelbo(lm.model, x.expand(512, -1), t, lm.model.mask_id, g)
    total = theirs.double() * x.shape[1]
    assert abs(ours - total.mean()) < 4 * total.std() / 512**.5

def test_a_space_belongs_to_the_continuation(lm):
    for context, more in (('The man', ' opened'), ('The man ', 'opened'), ('', 'The man'), ('Say:\n', 'yes')):
        a, b = lm.pair(context, more)
        assert lm.model.tokenizer.decode(a + b, skip_special_tokens=False) == context + more and b

def test_greedy_is_said_when_it_is_asked_for():
    joint = Navira(policy='mdlm', budget=4, draws=4, greedy=True)
    start = joint.ids('The man opened')
    best = joint.written(start, 3)
    assert joint.likely(start, best)[1] and not joint.likely(start, [5, 6, 7])[1]
    assert not Navira(policy='mdlm', budget=4, draws=4).likely(start, best)[1]

def test_requests(lm):
    told = lm.generate_until([ask('generate_until', 'The captain', dict(until='.', max_gen_toks=5)),
                              ask('generate_until', 'She', dict(until=[], max_gen_toks=9)),
                              ask('generate_until', 'x ' * 500, {})], disable_tqdm=True)
    assert len(told) == 3 and len(lm.ids(told[1])) <= 9
    rolling = lm.loglikelihood_rolling([ask('loglikelihood_rolling', 'The man opened the door. ' * 60)])
    assert len(rolling) == 1 and rolling[0] < -100
    assert cut('one. two; three', [';', '.']) == 'one' and cut('one', ['.', '']) == 'one'

def test_other_models(pytestconfig):
    golden = pytestconfig.rootpath / 'tests' / 'golden' / 'llada'
    lm = Navira(str(golden), policy='llada-low-confidence', budget=8, batch_size='auto', draws=4, temperature=.5)
    assert lm.hyper == dict(temperature=.5) and lm.max_length == 64
    assert isinstance(lm.generate_until([ask('generate_until', 'the', dict(max_gen_toks=8))], True)[0], str)
    assert lm.apply_chat_template([dict(role='user', content='the')]).endswith('assistant\n')
    assert all(v < 0 for v, _ in lm.loglikelihood([ask('loglikelihood', 'the', ' house')]))

def test_mistakes():
    with says(KeyError, 'policy', "'prism'"): Navira(policy='prsim')
    with says(ValueError, 'draws=0'): Navira(draws=0)
    with says(ValueError, 'no chat template'): Navira(policy='mdlm').apply_chat_template([])
    assert navira.load().tokenizer is not None
