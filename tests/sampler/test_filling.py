"""A text with blanks goes in, the whole text comes out."""
import re

import pytest

from navira.sampler.prompts import read_prompts
from navira.sampling import sample
from navira.sampler.filling import fill
from helpers.bytes_lm import byte_lm
from helpers.sample_api import says

def n_tokens(model, text): return len(read_prompts(model, text)[0].ids)

@pytest.mark.parametrize('text, tokens, masks', [
    ('It was ______ then', None, 2), ('It was __________ then', None, 3),
    ('It was ___ then ______ too', 4, 8), ('It was <|mask|> then', None, 1)])
def test_the_length_of_a_blank(embedded, text, tokens, masks):
    out = fill(text, tokens=tokens, model=embedded, budget=2)
    rest = re.sub(r' ?_{3,}| <\|mask\|>', '', text)
    assert (out.tokens >= 0).sum() - n_tokens(embedded, rest) == masks


def test_a_plain_blank_has_as_many_tokens_as_are_likeliest(embedded):
    texts = ['The man opened{} and walked in.', '"Yes," she{}.']
    out = fill([t.format(' ___') for t in texts], model=embedded, policy='prism')
    tries, scores = [], []
    for k in (1, 2, 3):
        filled = [t.format('<|mask|>' * k) for t in texts]
        tries.append(sample(embedded, 'prism', 6, range(2 * k - 2, 2 * k), prompt=filled))
        for ids, begin in zip(tries[-1].tokens, texts):
            ids, where = ids[ids >= 0], n_tokens(embedded, begin.split('{')[0])
            alone = ids.repeat(k, 1)
            for j in range(k): alone[j, where + j] = embedded.mask_id
            log_p = embedded(alone).logits(alone == embedded.mask_id).log_softmax(-1)
            scores.append(log_p[range(k), ids[where:where + k]].mean().item())
    for i in (0, 1): assert out[i] == tries[max(range(3), key=scores[i::2].__getitem__)][i]
    assert out.n_forward.equal(sum(t.n_forward for t in tries) + 1 + 2 + 3)

@pytest.mark.parametrize('parts, text, kw', [
    (['no blank in it', '___'], 'The man opened the door.', {}),
    (['text=', 'a list of texts'], 3, {}), (['tokens=0'], '___', dict(tokens=0)),
    (['longer than the 128'], 'a ___ b', dict(tokens=128)),
    (["model='embedded'", 'navira.load()'], '___', dict(model='embedded'))])
def test_what_cannot_be_filled(parts, text, kw):
    with says((ValueError, KeyError), *parts): fill(text, **kw)

def test_no_end_in_a_blank_that_text_follows():
    out = fill('an ______ hoots', n=32, model=byte_lm(), policy='backbone', eos='suppress')
    assert not out.tokens.eq(256).any()
