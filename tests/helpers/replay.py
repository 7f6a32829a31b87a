"""What the tests of replays share: hostile tokens, random traces, and what a page says."""

import json, re

import torch

from navira.sampler.replay import Trace

hostile = [
    '</script><script>alert(1)</script>',
    '<!--',
    ']]>',
    '"',
    "'",
    '\\',
    '&amp;',
    '\u202eabc\u202c',
    '\u200f',
    '\u2028',
    '\x00',
    '<img src=x onerror=alert(1)>',
    '\ufffd',
    '\ud800',
    '\n',
    ' ',
    ' a',
    '__REPLAY_DATA__',
    '${x}',
    '\U0001f600',
]
mask_id = len(hostile)


def decode(ids):
    return ''.join(hostile[i] for i in ids)


def random_trace(T, n, L, seed=0, ancestral=False, V=mask_id):
    "Random remasks and writes; with `ancestral`, positions also change without a flag."
    g = torch.Generator().manual_seed(seed)
    def coin(p, *shape): return torch.rand(*shape, generator=g) < p
    def tokens(n_ids=V): return torch.randint(n_ids, (n, L), generator=g).int()
    fixed = coin(.1, n, L)
    x = [torch.where(fixed, tokens(), mask_id)]
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
    return json.loads(
        re.search(r'<script id="data" type="application/json">(.*?)</script', page, re.S).group(1)
    )


def states(p):
    "Replays a panel's changes, as the page's script does"
    x = list(p['x0'])
    yield list(x), None
    for s in p['steps']:
        for place, token in s['x']:
            x[place] = token
        yield list(x), s


def rebuilt(d, traces, row):
    "Does each panel say what its trace says?"
    back = {v: i for i, v in enumerate(hostile)}
    assert len(d['panels']) == len(traces)
    for panel, tr in zip(d['panels'], traces):
        seen = list(states(panel))
        assert len(seen) == tr.T + 1
        for k, (x, s) in enumerate(seen):
            assert [mask_id if i < 0 else back[d['vocab'][i]] for i in x] == tr.x[k, row].tolist()
            if k:
                flags = lambda name: [
                    p for p, on in enumerate(getattr(tr, name)[k - 1, row].tolist()) if on
                ]
                assert s['r'] == flags('remasked') and s['v'] == flags('unmasked')
