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
from toys import Tiny, TinyForward

MASK = 5

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
    (['bugdet', "'budget'"], dict(bugdet=3)),
    (['eta', 'already'], dict(policy=prism(), eta=.1)),
    (['policy=3', "'prism'"], dict(policy=3)),
    (['budget=1', '2-pass', '2'], dict(budget=1)),
    (['n=range(3, 9, 2)'], dict(n=range(3, 9, 2))),
    (['on=0.9', 'off=0.5'], dict(on=.9, off=.5)),
    (["eos='suppress'", 'names no token'], dict(eos='suppress'))])
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
