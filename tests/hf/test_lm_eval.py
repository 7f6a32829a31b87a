"""The real harness, offline, on tasks made from the corpus that the tests have."""

import json, math

import pytest

from navira.sampler.joint import random_joint
from helpers.sample_api import says

lm_eval = pytest.importorskip('lm_eval')
from lm_eval.tasks import TaskManager  # noqa: E402
from navira.hf.lm_eval import log_likelihood, Navira  # noqa: E402


@pytest.fixture(scope='module')
def lm():
    return Navira(policy='navira-piecewise', budget=16, max_new_tokens=8, draws=16)


WORDS = [
    ('The man opened the', ' door', ' sky'),
    ('She looked out of the', ' window', ' fish'),
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
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
        log_samples=True,
    )
    right = told['results']['navira_choice']['acc,none']
    assert right == 1.0  # doors are opened, and skies are not
    written = [s['resps'][0][0] for s in told['samples']['navira_write']]
    assert len(written) == 2 and all(isinstance(t, str) and '.' not in t for t in written)


def test_the_bound_is_exact_on_a_joint_that_we_know():
    "With exact conditionals the expectation is the log-likelihood itself."
    joint = random_joint(3, 3)
    for context, y in (([1], [0, 2]), ([], [2, 1, 0]), ([0, 2], [1])):
        p = joint.joint[tuple(context)]
        true = math.log(p[tuple(y)] / p.sum())
        assert abs(log_likelihood(joint, context, y, 3000) - true) < 0.03


def test_a_context_gives_way_to_its_continuation(lm):
    "The last of it that fits is read; beside a continuation of full length that is nothing."
    context, y = (
        literal_ids(lm.model, 'The man opened the door and walked in.'),
        literal_ids(lm.model, 'It was a dark night. ' * 60)[: lm.max_length],
    )
    nats = lambda *given: pytest.approx(lm.likely(*given)[0])
    assert len(y) == lm.max_length and lm.likely(context, y)== nats([], y)
    short = lm.likely(context, y[:-2])[0]
    assert short == nats(context[-2:], y[:-2]) and short != nats([], y[:-2])
    assert lm.likely(context, y[:5])[0] != nats(context[1:], y[:5])
    with says(ValueError, f'continuation of {lm.max_length + 1} tokens', lm.max_length):
        lm.likely([], [*y, 5])


def test_a_wrong_argument_is_named():
    with says(KeyError, 'policy', "'prism'"):
        Navira(policy='prsim')
    lm = Navira(policy='mdlm')
    with says(ValueError, 'chat template'):
        lm.apply_chat_template([])
