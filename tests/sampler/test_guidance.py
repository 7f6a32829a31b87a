"""Guidance is LLaDA's loop, and costs two passes; every policy obeys a constraint."""
import pytest
import torch
from hypothesis import given, settings, strategies as hs

import navira
from navira.diffusion import Denoiser
from navira.sampler.guidance import constrained, guided
from navira.sampler.registry import policy
from navira.sampler.renoise import Holding
from navira.sampling import sample, states
from navira.base.noise import Noise
from helpers.sample_api import says
from toys import llama, small_lm

ENDS = 2,

def lm(seed=3):
    model = small_lm(seed).double()
    model.eos_ids = ENDS
    return model

# ---- Guidance

def llada_loop(model, prompt, steps, new, block, scale):
    "LLaDA's loop at temperature 0, low confidence last, from its equations; `prompt` [l]"
    M, l = model.mask_id, len(prompt)
    x = torch.cat([prompt, torch.full((new,), M)])
    given = x != M
    for b in range(new // block):
        inside, each = torch.zeros_like(given), steps // (new // block)
        inside[l + b * block:l + (b + 1) * block] = True
        for i in range(each):
            both = torch.stack([x, torch.where(given, M, x)])
            c, u = model(both).logits(torch.ones_like(both, dtype=torch.bool)).view(2, len(x), -1)
            logits = u + (scale + 1) * (c - u)
            logits[:, M] = -torch.inf              # which the published loop may write
            sure, token = logits.softmax(-1).max(-1)
            sure[~(inside & (x == M))] = -torch.inf
            at = sure.topk(block // each + (i < block % each)).indices
            x[at] = token[at]
    return x

@pytest.mark.parametrize('steps, block', [(8, 8), (4, 8), (4, 4), (6, 4)])
@pytest.mark.parametrize('scale', [.5, 1.5])
def test_it_is_the_published_loop(scale, steps, block):
    for model in lm(1), lm(2), llama():
        prompt = torch.tensor([3, 1, 4])
        expected = llada_loop(model, prompt, steps, 8, block, scale)
        out = sample(guided(model, scale), 'llada-low-confidence', 2 * steps, prompt=prompt,
                     max_new_tokens=8, block_length=block, eos='keep')
        assert out.tokens[0].tolist() == expected.tolist()
        assert out.n_forward.tolist() == [2 * steps] and out.charged == 2 * steps


def test_what_stays_as_it_is():
    model = lm()
    x = torch.tensor([[3, 10, 5], [7, 10, 10]])
    assert guided(guided(model, 2.), 0) is model and constrained(model) is model
    assert torch.allclose(guided(model, 2.)(x).quality(), model(x).quality())
    noise = Noise(1, torch.arange(2))
    # whatever a model says of itself, one that holds it says too
    assert {*Denoiser.__annotations__, 'device'} - {'eos_ids'} <= {*vars(Holding)}
    *_, last = states(policy('mdlm'), guided(model, 2.), x, 2, noise)     # without `sample`
    out = sample(guided(model, 2.), 'mdlm', 4, prompt=x, length=3, seed=1, eos='keep')
    assert torch.equal(last.x, out.tokens)

@pytest.mark.parametrize('parts, make', [
    (['text 1 has no prompt', 'scale of 0'],
     lambda m: sample(guided(m, 1.), 'mdlm', 8, prompt=[[3, 10], [10, 10]])),
    (['guidance=-1'], lambda m: guided(m, -1)),
    (['budget=3', 'at least 4'], lambda m: sample(guided(m, 1.), 'navira', 3, prompt=[3])),
    (['suppress=99', 'at most 10'], lambda m: constrained(m, suppress=[99])),
    (['no tokenizer', 'token ids'], lambda m: constrained(m, allowed='a')),
    (['min_new_tokens=-1'], lambda m: constrained(m, min_new_tokens=-1)),
    (['text 1, position 3'],                            # the end alone, and too early for it
     lambda m: sample(constrained(m, allowed=lambda i: 2 if i == 3 else None, min_new_tokens=1),
                      'mdlm', 8, prompt=[[3], [3, 4, 5]], length=6)),
    (['position 0'], lambda m: sample(constrained(m, allowed=ENDS), 'mdlm', 8, eos='suppress'))])
def test_what_cannot_be_is_said_at_the_door(parts, make):
    with says(ValueError, *parts): make(lm())

# ---- Constraints

# candidates, edits of visible tokens, uniform noise, shadows, attention, second passes
HANDFUL = ['best-of', 'proseco', 'llada2-edit', 'gidd-correct', 'wino', 'dos', 'bisection', 'apart',
           'navira-det-changed', 'sedd', 'remdm-cap', 'eb']

@settings(max_examples=40, deadline=None)
@given(name=hs.sampled_from(HANDFUL), never=hs.sets(hs.integers(0, 9), max_size=6),
       only=hs.dictionaries(hs.integers(0, 11), hs.sets(hs.integers(0, 9), min_size=1), max_size=4),
       late=hs.integers(0, 6), scale=hs.sampled_from([0., 1.]), cache=hs.booleans())
def test_every_policy_obeys(name, never, only, late, scale, cache):
    starts = [[3, 10, 5], [7, 1]]
    model = constrained(guided(constrained(lm(), never), scale), None, only.get, late)
    try: out = sample(model, name, 24, prompt=starts, length=12, seed=1,
                      cache='changed' if cache else 'none')
    except ValueError as e: # only where nothing is left
        assert 'no token may stand there' in str(e)
        i, start = int(str(e).split('position ')[1].split(':')[0]), starts[int(str(e)[5])]
        early = ENDS if i < len(start) + late else ()
        assert not only.get(i, {*range(10)}) - never - {*early}
        return
    for start, row in zip(starts, out.tokens.tolist()):
        for i, v in enumerate(row):
            if v < 0 or start[i:i + 1] not in ([], [10]): continue
            assert v in only.get(i, {v}) - never and not (v in ENDS and i < len(start) + late)

def test_tokens_are_named_by_their_text(embedded):
    numbers = [' two', ' three', ' four']
    out = navira.fill('He had ___ brothers.', n=3, model=constrained(embedded, allowed=numbers))
    words = {f'He had{a}{b}{c} brothers.' for a in numbers for b in ['', *numbers]
             for c in ['', *numbers]}
    assert {*out.texts} <= words
    with says(ValueError, "' forty-two' is ", 'one token'): constrained(embedded, ' forty-two')
