"What the tests of replays share: hostile tokens, runs that write them, and what a page says."
import json, re

from navira.sampling import sample
from helpers.peers import prompts
from toys import Tiny

hostile = [
    '</script><script>alert(1)</script>', '<!--', ']]>', '"', "'", '\\', '&amp;',
    '\u202eabc\u202c', '\u200f', '\u2028', '\x00', '<img src=x onerror=alert(1)>', '\ufffd',
    '\ud800', '\n', ' ', ' a', '__REPLAY_DATA__', '${x}', '\U0001f600']
mask_id = len(hostile)

def decode(ids): return ''.join(hostile[i] for i in ids)

def trace(T, n, L, seed=0):
    "Of T steps that often remask; runs of one shape have one prompt"
    how = dict(prompt=prompts(L, mask_id, 0, n), trace=True, eta=.4, on=0.)
    return sample(Tiny(L, mask_id), 'navira', 2 * T, n, seed, **how).trace

def data_of(page):
    "The one JSON block of the page, read as a browser would: up to the first </script"
    block = r'<script id="data" type="application/json">(.*?)</script'
    return json.loads(re.search(block, page, re.S)[1])

