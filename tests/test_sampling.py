"The loop: what every run keeps, blocks, the end of a text, and what may be asked for."
import pytest
import torch
from hypothesis import given, settings, strategies as hs

import navira
from navira.prism import prism
from navira.sampler.registry import policy
from navira.sampling import sample
from helpers.peers import WITHOUT_CRITIC
from helpers.sample_api import says
from toys import random_joint, Tiny, TinyForward

MASK = 5
OFTEN = dict(eta=.4, on=0.)

# ---- A sample is its own

@settings(max_examples=12)
@given(
    hs.lists(hs.lists(hs.integers(0, MASK), min_size=1, max_size=5), min_size=1, max_size=5),
    hs.integers(0, 9), hs.sampled_from([None, 1, 2]), hs.sampled_from(['prism', 'navira-det']))
def test_a_sample_is_what_it_is_alone(rows, seed, batch_size, name):
    model = Tiny(6, MASK)
    out = sample(model, name, 8, prompt=rows, seed=seed, batch_size=batch_size, **OFTEN)
    for i, (r, tokens) in enumerate(zip(rows, out.tokens)):
        assert all(v in (MASK, w) for v, w in zip(r, tokens.tolist())) and MASK not in tokens
        alone = sample(model, name, 8, range(i, i + 1), prompt=r, seed=seed, **OFTEN)
        assert torch.equal(alone.tokens[0], tokens) and alone.n_forward[0] == out.n_forward[i]

@pytest.mark.parametrize('batch_size', [1, 3])
def test_the_number_of_threads_changes_no_sample(batch_size):
    model, n, outs = random_joint(4, 3), torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            outs.append(sample(model, 'navira', 6, 7, batch_size=batch_size, trace=True, **OFTEN))
    finally: torch.set_num_threads(n)
    for what in (lambda o: o.n_forward, lambda o: o.trace.x, lambda o: o.trace.score.isnan()):
        for o in outs[1:]: assert torch.equal(what(o), what(outs[0]))

@pytest.mark.parametrize('name', ['prism', 'navira-piecewise', 'mdlm', 'remdm-conf'])
def test_low_precision_stays_inside_the_network(name):
    class Low(TinyForward):
        def logits(self, where): return super().logits(where).bfloat16()
        def rated(self, rows): return super().rated(rows).bfloat16()
    class LowModel(Tiny):
        def __call__(self, x): return Low(self, x)
    out = sample(LowModel(6, 4), name, 8, n=3, trace=True)
    assert (out.tokens < 4).all()
    assert out.trace.score.dtype == out.trace.tau.dtype == torch.float32

# ---- Blocks

@pytest.mark.parametrize('name', WITHOUT_CRITIC)
def test_every_policy_writes_in_blocks_from_left_to_right(name):
    seen = []
    how = dict(n=3, prompt=torch.tensor([1, 2]), max_new_tokens=9, block_length=4, seed=2)
    out = sample(Tiny(12, MASK), policy(name), 24, progress=seen.extend, batch_size=3, **how)
    assert out.tokens.shape == (3, 11) and (out.tokens != MASK).all()
    assert (out.n_forward <= 24).all()
    for p in seen:     # behind the block of the first mask, nothing is written
        first = p.ids.index(MASK) if MASK in p.ids else 11
        assert set(p.ids[6 + (first - 2) // 4 * 4:]) <= {MASK}, p.ids

@pytest.mark.parametrize('name', ['backbone', 'prism', 'navira-piecewise', 'remdm-cap'])
def test_one_block_is_no_block(name):
    how = dict(n=4, length=9, seed=1)
    a, b = (sample(Tiny(12, MASK), name, 16, **how, **more) for more in ({}, dict(block_length=9)))
    assert torch.equal(a.tokens, b.tokens) and torch.equal(a.n_forward, b.n_forward)

@settings(max_examples=20)
@given(hs.integers(1, 12), hs.integers(1, 12), hs.integers(2, 40),
       hs.sampled_from(['prism', 'navira-det', 'mdlm']))
def test_the_budget_is_shared_out_among_blocks(new, length, budget, name):
    model, blocks, passes = Tiny(12, MASK), -(-new // length), policy(name).passes
    how = dict(max_new_tokens=new, block_length=length)
    if budget < blocks * passes:
        with says(ValueError, 'blocks need'): sample(model, name, budget, **how)
        return
    out = sample(model, name, budget, **how)
    assert out.n_steps == budget // passes and out.n_forward.max() <= budget

# ---- The end of a text

class Ends(Tiny):
    "A small model with a token that ends a text."
    eos_ids = (0,)
    never = ()

@pytest.mark.parametrize('name', WITHOUT_CRITIC)
@pytest.mark.parametrize('block_length', [3, None])
def test_final_tokens_stay_and_text_and_trace_end_alike(name, block_length, one_thread):
    seen, rule = [], policy(name)
    how = dict(n=12, length=12, seed=6, block_length=block_length)
    out = sample(Ends(12, MASK, seed=3), rule, 24, trace=True, progress=seen.extend, **how)
    assert (out.tokens == -1).any() and torch.equal(out.trace.x[-1].long(), out.tokens)
    for row, tokens in enumerate(out.tokens):
        text, mine = tokens[tokens >= 0].tolist(), [p for p in seen if p.sample == row]
        assert text.index(0) == len(text) - 1 if 0 in text else len(text) == 12
        assert all(p.ids[:p.final] == text[:p.final] for p in mine)
        assert mine[-1].ids == text and mine[-1].final == len(text)
    # what is written for good is shown before the last step
    assert rule.revises or any(p.final for p in seen[:-12])

@pytest.mark.parametrize('name, block_length',
                         [('backbone', None), ('remdm-conf', 3), ('klass', None), ('dos', None)])
def test_a_text_that_has_ended_takes_part_in_no_further_pass(name, block_length, one_thread):
    how = dict(n=24, length=12, seed=4, batch_size=24, block_length=block_length)
    model = Ends(12, MASK, seed=3)
    out = sample(model, name, 12, **how)
    assert (out.tokens == -1).any() and sum(model.rows) == out.n_forward.sum()
    full = sample(model, name, 12, eos='keep', **how)
    assert (out.n_forward <= full.n_forward).all() and out.n_forward.sum() < full.n_forward.sum()

# ---- What may be asked for

def test_a_model_of_transformers_is_refused_with_what_to_wrap_it_in():
    bert = type('Bert', (torch.nn.Linear,), dict(__module__='transformers.models.bert'))(2, 2)
    with says(ValueError, 'transformers', 'Bert', 'no navira.Denoiser', 'navira.wrap'):
        sample(bert)

def test_without_a_named_policy_the_model_chooses(root, embedded):
    model = navira.load(root/'tests'/'golden'/'llada')
    assert sample(model, budget=4, length=8).policy == 'llada-low-confidence'
    assert navira.fill('the ___', model=model).policy == 'llada-low-confidence'
    assert sample(embedded, budget=4, length=8).policy == 'remdm-cap, top_p=0.5'
    assert navira.fill('the ___').policy == 'remdm-cap, top_p=0.5'
    with says(ValueError, 'navira finetune --model FOLDER --lora 16', 'load(head=) or --head'):
        sample(model, 'prism', 4)

@pytest.mark.parametrize('parts, kw', [
    (['navria', "'navira'"], dict(policy='navria')),
    (['bugdet', "'budget'"], dict(bugdet=3)),
    (['eta', 'already'], dict(policy=prism(), eta=.1)),
    (['policy=3', "'prism'"], dict(policy=3)),
    (['budget=1', '2-pass', '2'], dict(budget=1)),
    (['n=range(3, 9, 2)'], dict(n=range(3, 9, 2))),
    (['tau_min=0.6', 'tau_mid=0.2'], dict(tau_min=.6)),
    (['on=0.9', 'off=0.5'], dict(on=.9, off=.5)),
    (["eos='suppress'", 'names no token'], dict(eos='suppress')),
    (["'logit'"], dict(score='logits'))])
def test_bad_input_is_named_before_any_work(parts, kw):
    model = Tiny(6, 4)
    with says((KeyError, ValueError), *parts):
        sample(model, **dict(policy='navira-piecewise', budget=8) | kw)
    assert not model.rows

NAMES = ('budget n seed length batch_size max_new_tokens eos block_length progress eta on top_p '
         'tau_min p1 n_remask score').split()
values = (hs.none() | hs.floats() | hs.integers() | hs.text(max_size=4)
          | hs.lists(hs.integers(), max_size=3))

@settings(max_examples=150)
@given(hs.dictionaries(hs.sampled_from(NAMES), values, max_size=3))
def test_whatever_is_asked_for_ends_in_samples_or_in_a_sentence(kw):
    kw = dict(policy='navira-piecewise', budget=4, n=1) | kw
    # a large one would be served
    if any(isinstance(kw[k], (int, float)) and kw[k] >= 50 for k in ('budget', 'n')): return
    try: out = sample(Tiny(6, 4), **kw)
    except (ValueError, KeyError) as e: assert str(e) and '\n' not in str(e)
    else: assert (out.tokens < 4).all()
