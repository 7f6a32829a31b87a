"From texts with blanks, or ids, to what a sampler starts from."
import pytest
import torch
from hypothesis import given, settings, strategies as hs

import navira
from navira.sampler import prompts
from navira.sampler.prompts import read_prompts
from navira.sampling import sample
from helpers.bytes_lm import byte_lm
from helpers.sample_api import says
from toys import Tiny

MASK = 4

@pytest.fixture(scope='module', params=['bert', 'roberta'])
def encoder(request, pytestconfig):
    return navira.load(pytestconfig.rootpath/'tests'/'golden'/request.param)

def start_ids(*args, **kw): return prompts.start_ids(*args, **kw)[0]

def ids_of(model, text): return read_prompts(model, text)[0].ids.tolist()

# ---- Ids


plain = hs.none() | hs.booleans() | hs.floats() | hs.integers() | hs.text(max_size=3) | hs.just({})

@settings(max_examples=60)
@given(hs.recursive(plain, lambda parts: hs.lists(parts, max_size=3) | hs.tuples(parts, parts),
                    max_leaves=6))
def test_whatever_is_given_as_a_prompt_is_read_or_refused_in_a_sentence(prompt):
    try: x = start_ids(Tiny(6, MASK), prompt=prompt)
    except ValueError as e: assert str(e).startswith('prompt')
    else: assert x.dtype == torch.int64 and (x == MASK).any(1).all()

@pytest.mark.parametrize('parts, kw', [
    (['9 tokens', '6'], dict(prompt=[0] * 9)), (['0..4', '9'], dict(prompt=[9])),
    (['no tokenizer'], dict(prompt='abc')), (['length=7', '6'], dict(length=7)),
    (['length=2', 'max_new_tokens=3', 'one of them'], dict(length=2, max_new_tokens=3)),
    (['prompt 1', '3 tokens and 4 new'], dict(prompt=[[0], [1, 2, 3]], max_new_tokens=4)),
    (['n=1000000000000', 'range'], dict(n=10**12))])
def test_a_start_that_cannot_be_is_refused_with_what_was_expected(parts, kw):
    with says(ValueError, *parts): start_ids(Tiny(6, MASK), **kw)

# ---- Texts


def test_special_tokens_around_a_prompt_are_no_part_of_the_text(encoder):
    "Those that a user typed are, and so are those that the model wrote."
    tok, seen = encoder.tokenizer, []
    cls, sep = tok.encode('').tokens
    blank = tok.id_to_token(encoder.mask_id)
    for prompt, kw in (('the [MASK*2] man', {}), ('the', dict(max_new_tokens=2)),
                       (f'the {blank} man {sep}', {})):
        out = sample(encoder, 'backbone', 2, prompt=prompt, eos='keep', progress=seen.extend, **kw)
        first, *ids = out.tokens[0].tolist()
        assert first == tok.token_to_id(cls)
        if not kw: assert ids.pop() == tok.token_to_id(sep)
        assert out[0] == str(seen[-1]) == tok.decode(ids, skip_special_tokens=False)
    assert out[0].startswith('the') and out[0].endswith(sep) and not out[0].endswith(sep + sep)


def test_ids_without_a_token_are_never_written(tmp_path):
    model = byte_lm(400)
    navira.save(model, tmp_path)
    for again in (model, navira.load(tmp_path), navira.wrap(model.net, shift=False)):
        assert sample(again, 'backbone', 4, n=4, length=32, eos='keep').tokens.max() < 259
        x = torch.full((1, 4), 257)
        assert again(x).logits(x > 0)[0].isinf().nonzero()[:, 0].tolist() == [257, *range(259, 400)]
