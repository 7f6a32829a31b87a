"What the tests of replays share: hostile tokens, random traces, and what a page says."
import json, re

import torch

from navira.sampler.replay import Trace

hostile = [
    '</script><script>alert(1)</script>', '<!--', ']]>', '"', "'", '\\', '&amp;',
    '\u202eabc\u202c', '\u200f', '\u2028', '\x00', '<img src=x onerror=alert(1)>', '\ufffd',
    '\ud800', '\n', ' ', ' a', '__REPLAY_DATA__', '${x}', '\U0001f600']
mask_id = len(hostile)

def decode(ids): return ''.join(hostile[i] for i in ids)

def random_trace(T, n, L, seed=0, ancestral=False, V=mask_id, like=None):
    """Random remasks and writes, from the start of `like`; with `ancestral`, positions also change
    without a flag."""
    g = torch.Generator().manual_seed(seed)
    def coin(p, *shape): return torch.rand(*shape, generator=g) < p
    def tokens(n_ids=V): return torch.randint(n_ids, (n, L), generator=g).int()
    fixed = coin(.1, n, L)
    x = [torch.where(fixed, tokens(), mask_id)]
    if like: fixed, x = like.fixed, [like.x[0]]
    gone, new = coin(.1, T, n, L), coin(.2, T, n, L)
    for i in range(T):
        gone[i] &= (x[i] != mask_id) & ~fixed
        z = torch.where(gone[i], mask_id, x[i])
        new[i] &= z == mask_id
        z = torch.where(new[i], tokens(), z)
        x.append(torch.where(coin(.05 * ancestral, n, L) & ~fixed, tokens(V + 1), z))
    score = 4 * torch.randn(T, n, L, generator=g)
    score[coin(.5, T, n, L)] = torch.nan
    return Trace(torch.stack(x), gone, new, score, torch.rand(T, n, generator=g), mask_id, fixed)

def data_of(page):
    "The one JSON block of the page, read as a browser would: up to the first </script"
    block = r'<script id="data" type="application/json">(.*?)</script'
    return json.loads(re.search(block, page, re.S)[1])

def check_panels(d, traces, row):
    "Each panel says what its trace says."
    back = [*map(hostile.index, d['vocab']), mask_id]     # -1 is the mask
    for panel, tr in zip(d['panels'], traces, strict=True):
        x = panel['x0']
        assert [back[v] for v in x] == tr.x[0, row].tolist() and len(panel['steps']) == tr.T
        for i, s in enumerate(panel['steps']):
            for place, token in s['x']: x[place] = token
            assert [back[v] for v in x] == tr.x[i + 1, row].tolist()
            assert s['r'] == tr.remasked[i, row].nonzero()[:, 0].tolist()
            assert s['v'] == tr.unmasked[i, row].nonzero()[:, 0].tolist()
