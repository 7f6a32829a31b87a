"""The real harness, offline, on tasks made from the corpus that the tests have."""
import json

import pytest

from navira.sampler.prompts import literal_ids
from helpers.sample_api import says

lm_eval = pytest.importorskip('lm_eval')
from lm_eval.tasks import TaskManager  # noqa: E402
from navira.hf.lm_eval import Navira  # noqa: E402

@pytest.fixture(scope='module')
def lm(): return Navira(policy='navira-piecewise', budget=16, max_new_tokens=8, draws=16)

DOCS = [dict(context='The man opened the', choices=[' door', ' sky']),
        dict(context='She looked out of the', choices=[' window', ' fish'])]
SHARED = dict(dataset_path='json', test_split='test', doc_to_text='{{context}}')
CHOICE = dict(output_type='multiple_choice', doc_to_choice='{{choices}}', doc_to_target=0,
              target_delimiter='', metric_list=[dict(metric='acc')])
WRITE = dict(output_type='generate_until', doc_to_target='{{choices[0]}}',
             generation_kwargs=dict(until=['.'], max_gen_toks=6),
             metric_list=[dict(metric='exact_match')])

def test_the_harness_itself(lm, tmp_path):
    (tmp_path / 'docs.jsonl').write_text('\n'.join(map(json.dumps, DOCS)))
    data = dict(data_files=dict(test=str(tmp_path / 'docs.jsonl')))
    for name, task in dict(choice=CHOICE, write=WRITE).items():
        text = json.dumps(SHARED | task | dict(task=f'navira_{name}', dataset_kwargs=data))
        (tmp_path / f'{name}.yaml').write_text(text)     # JSON is YAML
    told = lm_eval.simple_evaluate(
        model=lm, tasks=['navira_choice', 'navira_write'], bootstrap_iters=0, log_samples=True,
        task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False))
    assert told['results']['navira_choice']['acc,none'] == 1.0     # doors are opened
    written = [s['resps'][0][0] for s in told['samples']['navira_write']]
    assert len(written) == 2 and all(isinstance(t, str) and '.' not in t for t in written)

def test_a_context_gives_way_to_its_continuation(lm):
    "The last of it that fits is read; beside a continuation of full length that is nothing."
    context = literal_ids(lm.model, 'The man opened the door and walked in.')
    y = literal_ids(lm.model, 'It was a dark night. ' * 60)[:lm.max_length]
    assert lm.likely(context, y) == pytest.approx(lm.likely([], y))
    short = lm.likely(context, y[:-2])
    assert short == pytest.approx(lm.likely(context[-2:], y[:-2]))
    assert short != pytest.approx(lm.likely([], y[:-2]))
    with says(ValueError, f'continuation of {lm.max_length + 1} tokens', lm.max_length):
        lm.likely([], [*y, 5])

def test_a_wrong_argument_is_named(lm):
    with says(KeyError, 'policy', "'prism'"): Navira(policy='prsim')
    with says(ValueError, 'chat template'): lm.apply_chat_template([])
