"""What every policy samples and costs on a small random model: `python
tests/helpers/frozen.py` writes tests/data/frozen.json."""
import hashlib, json
from contextlib import contextmanager
from pathlib import Path
import torch

# --- navira: all that depends on its names stands in this block ---
from toys import Tiny
from navira.sampler.registry import parameters, policies
from navira.sampling import sample as _sample

def registered(): return sorted(policies())

def sampled(model, name, budget, prompt, seed, hyper):
    "tokens [n, L], passes [n], steps; of the trace: x, remasked, unmasked, score, tau"
    out = _sample(model, name, budget, n=ROWS, seed=seed, length=model.length, prompt=prompt,
                  trace=True, progress=False, **hyper)
    t = out.trace
    return out.tokens, out.n_forward, out.n_steps, (t.x, t.remasked, t.unmasked, t.score, t.tau)

def climbing(st): return .6 * st.u         # schedules: functions of a sampler's state
def in_turn(st): return 1 + st.i % 3
def by_row(st): return .1 + .2 * st.n_free.double() / st.x.shape[1]
# --- the end of it ---

L, V, ROWS, TOLERANCE = 12, 15, 5, 1e-6     # V: the mask is the last id
M = V - 1
path = Path(__file__).parents[1]/'data'/'frozen.json'
VARIANTS = json.loads(path.with_name('variants.json').read_text(encoding='utf-8'))

# --- cases ---
def given(*texts): return [[M if c == '_' else int(c) for c in t.split()] for t in texts]

prompts = dict(
    none=None,
    shared=given('3 _ _ 7 1 _ _ _ _ 2 _ _'),     # 8 free
    # 12, 9, 6, 8 and 1 free
    ragged=given('_', '4 _ 2 9', '_ _ 5 5 _ _ 0 _ 8 11 _ 1', '13 12 _ 6 3',
                 '1 2 3 4 5 _ 7 8 9 10 11 12'),
    # 12, 8, 4, 8 and 4 free: whole blocks
    even=given('_', '_ 4 _ 2 _ _ 9 7', '0 _ 1 2 3 _ 5 _ 7 8 _ 9', '1 2 3 4',
               '_ _ _ _ 5 6 7 8 9 10 11 12'))

SCHEDULES = {f.__name__: f for f in (climbing, in_turn, by_row)}

def variants(name):
    "Choices of a policy's hyper-parameters: the defaults, and those of data/variants.json"
    def typed(hyper): return {k: SCHEDULES[v] if v in SCHEDULES else v for k, v in hyper.items()}
    return [{}, *map(typed, VARIANTS.get(name, []))]

def own(name):
    "What a policy cannot do without: a critic"
    return dict(critic=critic) if 'critic' in parameters(policies()[name]) else {}

def grid(i, hyper):
    """Budgets, prompts and seeds of a policy's i-th choice: the defaults in full, each other
    choice on a part"""
    full = (5, 'shared'), (8, 'ragged'), (16, 'none'), (21, 'ragged')
    if not i: return [(b, p, s) for b, p in full for s in (0, 1)]
    if hyper.get('block_length') is not None: return [(8, 'even', 0), (16, 'even', 1),
                                                      (5, 'ragged', 1)]
    return [(5, 'none', 0), (8, 'shared', 1), (16, 'ragged', 0)]

def cases(name):
    "key -> hyper-parameters, budget, prompt, seed; `p` is what 0.1.0 called `top_p`"
    for i, hyper in enumerate(variants(name)):
        parts = [f'{"p" if k == "top_p" else k}={getattr(v, "__name__", v)}'
                 for k, v in hyper.items()]
        label = ':'.join([name, *[';'.join(parts)] * bool(parts)])
        for b, p, s in grid(i, hyper):
            yield f'{label}|budget={b}|prompt={p}|seed={s}', hyper, b, p, s

# --- what is kept ---
def digest(*tensors):
    return hashlib.sha256(b''.join(t.contiguous().numpy().tobytes()
                                   for t in tensors)).hexdigest()[:16]

def summed(a):     # [T, n, ...] -> [[sum of the finite values, how many are not] for each row]
    a = a.double().movedim(1, 0).flatten(1)
    sums, odd = a.where(a.isfinite(), 0).sum(1), (~a.isfinite()).sum(1)
    return [[round(v, 9), k] for v, k in zip(sums.tolist(), odd.tolist())]

@contextmanager
def one_thread():
    "With more, a batch is shared out among them, and there are more calls"
    n = torch.get_num_threads(); torch.set_num_threads(1)
    try: yield
    finally: torch.set_num_threads(n)

net, critic = Tiny(L, M, 1), Tiny(L, M, 2)

def cost(m): return [len(m.rows), sum(m.rows), sum(m.asked), sum(m.rated)]

def measured(name, hyper, budget, prompt, seed):
    "What one case gives: `error` where it is refused"
    for m in (net, critic): m.reset()
    more = own(name)
    try: out = sampled(net, name, budget, prompts[prompt], seed, more | hyper)
    except ValueError: return dict(error='ValueError')
    tokens, passes, steps, (x, remasked, unmasked, score, tau) = out
    # tokens after each step, what was remasked and written; qualities, temperatures
    return dict(tokens=digest(tokens.long()), run=digest(x.long(), remasked, unmasked),
                passes=passes.tolist(), steps=steps, score=summed(score), tau=summed(tau),
                cost=cost(net) + (cost(critic) if more else []))

def measure(name):
    "key -> what the policy gives"
    with one_thread(): return {key: measured(name, *case) for key, *case in cases(name)}

def close(a, b):
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(close, a, b))
    if isinstance(a, float) or isinstance(b, float): return abs(a - b) <= TOLERANCE
    return a == b

def differences(was, now):
    "A line for each part of a case that differs; None: it is not there"
    lines = []
    for key in sorted(was.keys() | now.keys()):
        a, b = was.get(key, {}), now.get(key, {})
        parts = [k for k in sorted(a.keys() | b.keys()) if not close(a.get(k), b.get(k))]
        lines += [f'{key}: {k} was {a.get(k)}, is {b.get(k)}' for k in parts]
    return lines

def read(): return json.loads(path.read_text(encoding='utf-8'))

def write(frozen):
    "One line a policy"
    def line(name):
        costs = json.dumps(frozen[name], separators=(',', ':'), allow_nan=False)
        return f'{json.dumps(name)}: {costs}'
    path.write_text('{\n' + ',\n'.join(map(line, sorted(frozen))) + '\n}\n', encoding='utf-8')

if __name__ == '__main__': write({name: measure(name) for name in registered()})
