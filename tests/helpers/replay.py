"""What the tests of replays share: hostile tokens, random traces, and what a page says."""

import json, re

import pytest
import torch

from navira.replay import Trace

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
    rand = lambda *s: torch.rand(*s, generator=g)
    fixed = rand(n, L) < 0.1
    x = [torch.where(fixed, torch.randint(0, V, (n, L), generator=g), mask_id).int()]
    out, new, score = [], [], []
    for _ in range(T):
        r = (x[-1] != mask_id) & ~fixed & (rand(n, L) < 0.1)
        z = torch.where(r, mask_id, x[-1])
        v = (z == mask_id) & (rand(n, L) < 0.2)
        z = torch.where(v, torch.randint(0, V, (n, L), generator=g).int(), z)
        if ancestral:
            z = torch.where(
                (rand(n, L) < 0.05) & ~fixed, torch.randint(0, V + 1, (n, L), generator=g).int(), z
            )
        score.append(torch.where(rand(n, L) < 0.5, torch.randn(n, L, generator=g) * 4, torch.nan))
        x.append(z.int())
        out.append(r)
        new.append(v)
    return Trace(
        torch.stack(x),
        torch.stack(out),
        torch.stack(new),
        torch.stack(score),
        rand(T, n),
        mask_id,
        fixed,
    )


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


def typed(*args):
    "Exit code"
    from navira.cli.app import main

    with pytest.raises(SystemExit) as e:
        main(list(map(str, args)))
    return e.value.code or 0
