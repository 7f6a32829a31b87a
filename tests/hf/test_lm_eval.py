"""The real harness, offline, on tasks made from the corpus that the tests have."""

import json, math, sys

import pytest
import torch

from navira.diffusion import nelbo
from navira.joint import random_joint
from navira.prompts import read_prompts
from helpers.sample_api import says
from toys import Tiny

lm_eval = pytest.importorskip('lm_eval')
from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402
from navira.hf.lm_eval import cut, log_likelihood, Navira  # noqa: E402


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


@pytest.mark.parametrize(
    'asked, parts',
    [
        (dict(until=5), ['until=5', 'a text']),
        (dict(until=['.', 5]), ["until=['.', 5]"]),
        (dict(max_gen_toks='x'), ["max_gen_toks='x'", 'whole number']),
        (dict(max_gen_toks=-3), ['max_gen_toks=-3']),
    ],
)
def test_a_request_that_makes_no_sense_is_one_sentence(lm, asked, parts):
    with says(ValueError, *parts):
        lm.generate_until([ask('generate_until', 'The man', asked)])


def test_a_continuation_with_the_mask_in_it_is_refused(lm):
    with says(ValueError, 'mask', 'expected text'):
        lm.loglikelihood([ask('loglikelihood', 'The man', ' opened<|mask|>')])


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


def test_a_seed_is_a_number(lm):
    x = lm.ids('The man opened the door.')
    one, same, other = (
        log_likelihood(lm.model, [], x, 8, seed=s, batch_size=b)
        for s, b in ((1, 8), (1, 3), (2, 8))
    )
    assert abs(one - same) < 1e-3 < abs(one - other)


def test_a_large_vocabulary_goes_in_portions():
    few, many = Tiny(12, 4), Tiny(12, 4)
    many.config.vocab_size = 2**23  # four positions at a time
    a, b = (log_likelihood(m, [1, 2], [0, 3, 1, 2, 2], 32) for m in (few, many))
    assert (
        abs(a - b) < 1e-9
        and max(many.asked) == 4 < max(few.asked)
        and sum(many.asked) == sum(few.asked)
    )


def test_it_is_the_bound_of_notebook_01(lm):
    "Weighted by the number of masks or by the noise level: two estimates of one number."
    x = torch.tensor(
        lm.ids('The man opened the door and walked in. It was a dark and stormy night.')
    )[None]
    ours = -log_likelihood(lm.model, [], x[0].tolist(), 512)
    t = (torch.arange(512) + 0.5) / 512
    g = torch.Generator().manual_seed(0)
    with torch.no_grad():
        theirs = nelbo(lm.model, x.expand(512, -1), t, lm.model.mask_id, g)
    total = theirs.double() * x.shape[1]
    assert abs(ours - total.mean()) < 4 * total.std() / 512**0.5


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
    assert len(y) == lm.max_length and lm.likely(context, y) == lm.likely([], y)
    assert lm.likely(context, y[:-2]) == lm.likely(context[-2:], y[:-2]) != lm.likely([], y[:-2])
    assert (
        lm.likely(context, y[:5]) == lm.likely([*context], y[:5]) != lm.likely(context[1:], y[:5])
    )
    with says(ValueError, f'continuation of {lm.max_length + 1} tokens', lm.max_length):
        lm.likely([], [*y, 5])


def test_nothing_is_certain(lm):
    assert lm.loglikelihood_rolling([ask('loglikelihood_rolling', '')]) == [0.0]
    assert lm.loglikelihood([ask('loglikelihood', 'The man', '')])[0][0] == 0.0


def test_texts_without_a_context(lm):
    "Beside others, which are written as they are without them."
    more = [ask('generate_until', c, dict(max_gen_toks=5)) for c in ('The captain', '', 'She', '')]
    told = lm.generate_until(more, disable_tqdm=True)
    assert len(told) == 4 and all(told) and told[1] != told[3]
    assert [told[0], told[2]] == lm.generate_until([more[0], more[2]], disable_tqdm=True)


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
    rolling = lm.loglikelihood_rolling(
        [ask('loglikelihood_rolling', 'The man opened the door. ' * 60)]
    )
    assert len(rolling) == 1 and rolling[0] < -100
    assert cut('one. two; three', [';', '.']) == 'one' and cut('one', ['.', '']) == 'one'


def test_a_loaded_model_answers_every_kind_of_request(pytestconfig):
    golden = pytestconfig.rootpath / 'tests' / 'golden' / 'llada'
    lm = Navira(
        str(golden),
        policy='llada-low-confidence',
        budget=8,
        batch_size='auto',
        draws=4,
        temperature=0.5,
    )
    assert 'temperature=0.5' in lm.policy and lm.max_length == 64
    assert isinstance(
        lm.generate_until([ask('generate_until', 'the', dict(max_gen_toks=8))], True)[0], str
    )
    assert lm.apply_chat_template([dict(role='user', content='the')]).endswith('assistant\n')
    assert all(v < 0 for v, _ in lm.loglikelihood([ask('loglikelihood', 'the', ' house')]))


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
    with says(ValueError, 'draws=0'):
        Navira(draws=0)
    with says(ValueError, 'batch_size=0'):
        Navira(batch_size='0')
    lm = Navira(policy='mdlm')
    with says(ValueError, 'no chat template'):
        lm.apply_chat_template([])
    with pytest.warns(UserWarning, match='do_sample, temperature: .*--model_args'):
        assert lm.wanted(dict(until='.', max_gen_toks=3, do_sample=False, temperature=0.0)) == (
            ['.'],
            3,
        )


def test_what_a_template_refuses_is_said_in_its_words(pytestconfig):
    lm = Navira(
        str(pytestconfig.rootpath / 'tests' / 'golden' / 'llada'),
        policy='mdlm',
        batch_size='auto:4',
    )
    assert lm.rows == 32
    lm.model.text_tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with says(ValueError, 'messages', 'roles must alternate'):
        lm.apply_chat_template([dict(role='user', content='x')])
