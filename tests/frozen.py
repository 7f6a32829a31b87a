"""What every policy samples and costs on a small random model: `python tests/frozen.py` writes
tests/frozen.json."""
import copy, hashlib, json, math
from contextlib import contextmanager
from pathlib import Path
import torch

# --- navira: all that depends on its names stands in this block
# -------------------------------------------------------
from navira.diffusion import Denoiser, Forward
from navira.registry import parameters, policies
from navira.sampling import sample as _sample

# `peers/survey` registers one of its own
def registered(): return sorted(set(policies()) - {'second-thoughts'})

def sampled(model, name, budget, prompt, seed, hyper):
    "tokens [n, L], passes [n], steps; of the trace: x, remasked, unmasked, score, tau"
    out = _sample(model, name, budget, n=ROWS, seed=seed, length=model.length, prompt=prompt,
                  trace=True, progress=False,
                  **{'top_p' if k == 'p' else k: v for k, v in hyper.items()})
    t = out.trace
    return out.tokens, out.n_forward, out.n_steps, (t.x, t.remasked, t.unmasked, t.score, t.tau)

class Seen(Forward):
    "A forward pass of `Net`: logits [N, V] where asked, quality [B, L], and a cut to fewer rows"
    def __init__(self, net, x, edit=None):
        self.net, self.x, self.seen_masked, self.edit = net, x, x == net.mask_id, edit
    def logits(self, where): return self.net.logits_at(self.x, where, self.edit)
    def _quality(self): return self.net.quality_of(self.x)
    def only(self, rows):
        part = copy.copy(self)
        part.x, part.seen_masked = self.x[rows], self.seen_masked[rows]
        if self._cached is not None: part._cached = self._cached[rows]
        return part
    def rated(self, rows): return super().rated(rows) if rows.all() else self.only(rows).quality()

class Shadows(Seen):
    "The same with logits of what is left out"
    def left_out(self, where): return self.net.unseen(self.x, where)

def climbing(st): return .6 * st.u         # schedules: functions of a sampler's state
def in_turn(st): return 1 + st.i % 3
def by_row(st): return .1 + .2 * st.n_free.double() / st.x.shape[1]
# --- the end of it --------------------------------------------------------------------------------
# --------------------

L, V, ROWS, TOLERANCE = 12, 15, 5, 1e-6     # V: the mask is the last id
M = V - 1
path = Path(__file__).with_name('frozen.json')

class Net(Denoiser):
    """A random float64 network in which every token changes every logit and quality. Counts what
    it computes."""
    def __init__(self, seed, width=8):
        g = torch.Generator().manual_seed(seed)
        rand = lambda *s: torch.randn(*s, generator=g, dtype=torch.float64)
        self.length, self.mask_id, self.vocab_size, self.has_quality = L, M, V, True
        self.emb, self.mix = rand(L, V, width), rand(L, L, width) / math.sqrt(L)
        self.w = rand(width, width) / math.sqrt(width)
        self.out, self.head = 1.5 * rand(width, V), rand(width)
        self.reset()

    # lists: threads may append to them
    def reset(self): self.calls, self.rows, self.at, self.rated = [], [], [], []
    def cost(self): return [len(self.calls), sum(self.rows), sum(self.at), sum(self.rated)]

    def __call__(self, x):
        assert len(x), 'a pass over no rows'
        self.calls.append(1); self.rows.append(len(x))
        return Seen(self, x)

    def shadow(self, x, where, together=False): return Shadows(self, x)

    def embedded(self, x, edit):
        self(x)
        return Seen(self, x, edit)

    def attending(self, x):
        e = self.emb[torch.arange(x.shape[1]), x]
        return self(x), (e @ e.mT).softmax(-1)

    def unseen(self, x, where):
        "Logits [N, V] of a mask at each position of `where`, with everything else as it is"
        b, i = where.nonzero().T
        x = x[b].scatter(1, i[:, None], M)
        return self.logits_at(x, torch.nn.functional.one_hot(i, x.shape[1]).bool())

    def hidden(self, x, edit=None):
        e = self.emb[torch.arange(x.shape[1]), x]
        if edit: e = edit(e)
        return (torch.einsum('ijd,bjd->bid', self.mix, e) + .5 * e @ self.w).tanh()

    def logits_at(self, x, where, edit=None):
        self.at.append(int(where.sum()))
        out = self.hidden(x, edit)[where] @ self.out
        out[:, M] = -torch.inf
        return out

    def quality_of(self, x):
        self.rated.append(x.numel())
        return self.hidden(x) @ self.head

# --- cases ----------------------------------------------------------------------------------------
# --------------------
def given(text): return [M if c == '_' else int(c) for c in text.split()]

prompts = dict(
    none=None,
    shared=[given('3 _ _ 7 1 _ _ _ _ 2 _ _')],     # 8 free
    # 12, 9, 6, 8 and 1 free
    ragged=[given('_'), given('4 _ 2 9'), given('_ _ 5 5 _ _ 0 _ 8 11 _ 1'), given('13 12 _ 6 3'),
            given('1 2 3 4 5 _ 7 8 9 10 11 12')],
    # 12, 8, 4, 8 and 4 free: whole blocks
    even=[given('_'), given('_ 4 _ 2 _ _ 9 7'), given('0 _ 1 2 3 _ 5 _ 7 8 _ 9'), given('1 2 3 4'),
          given('_ _ _ _ 5 6 7 8 9 10 11 12')])

remask = [dict(n_remask=2, on=0.), dict(eta=.4, on=.2, off=.8, p=1.), dict(eta=.3, p=.5)]
drawn = [dict(n_remask=2, on=0., tau=0.), dict(eta=.4, tau=1., on=.2, off=.8, p=1.),
         dict(n_remask=in_turn, tau=climbing, on=.1),
         dict(n_remask=3, tau=by_row, on=.25, score='probability')]
onepass = [*drawn, *(dict(n_remask=2, tau=t, on=.1, score=s)
           for s in ('logit', 'drawn', 'both', 'probability') for t in (0., .5))]
curve = lambda **kw: [dict(n_remask=2, on=0.),
                      dict(eta=.4, on=.2, off=.8, p=1., score='probability'),
                      dict(n_remask=in_turn, on=.1, **kw)]
curves = dict(quadratic=dict(tau_min=0., tau_max=1.5, h=.2),
              sigmoid=dict(tau_min=.1, tau_max=1., k=5., c=.4),
              piecewise=dict(tau_min=0., tau_mid=.4, tau_max=1.2, p1=.2, p2=.6))
dream = [dict(temperature=0.), dict(temperature=1., p=1., top_k=4, alg_temp=.5, eps=.1),
         dict(alg_temp=climbing)]
blocks = [dict(block_length=4), dict(temperature=1., p=.9),
          dict(block_length=2, temperature=.7, p=.8)]

variants = {     # besides the defaults
    'backbone': [dict(p=1.), dict(p=.5)],
    'prism': [*remask, dict(n_remask=in_turn, on=.1)],
    'navira-det': [*remask, dict(n_remask=in_turn, on=.1)],
    'prism-stochastic': drawn,
    'navira': drawn,
    **{f'navira-{k}': curve(**kw) for k, kw in curves.items()},
    **{f'navira-onepass-{k}': [*curve(**kw), dict(n_remask=2, on=.1, score='both')] for k,
       kw in curves.items()},
    'navira-onepass': onepass,
    'navira-onepass-suspects': [dict(rate=.5, on=0.), dict(rate=1., tau=.5, score='both', p=1.),
                                dict(rate=.8, score='drawn', off=.9),
                                dict(rate=.8, score='probability')],
    'apart': [dict(strands=3, share=.4, p=.9),
              dict(strands=0, penalty=0., doubt=.7, share=1., temperature=0., p=1.),
              dict(strands=2, penalty=3., doubt=.9, share=.2, sure=.95)],
    'mdlm': [dict(schedule='cosine'), dict(p=1.)],
    'remdm-cap': [dict(eta=.3), dict(eta=1., p=1.)],
    'remdm-rescale': [dict(eta=.5), dict(eta=1., cap=.3, p=1.)],
    'remdm-switch': [dict(eta=.5, t_switch=.8), dict(eta=.5, rescale=.6, t_switch=1., p=1.)],
    'remdm-loop': [dict(eta=.1), dict(eta=.4, alpha_on=.6, t_on=.7, t_off=.2, p=1.)],
    'forward-backward': [dict(p=1.)],
    'dfm': [dict(A=0.), dict(A=40., p=1.)],
    'remdm-conf': [dict(confidence='current'), dict(eta=.5, cap=.4, t_switch=.7, p=1.)],
    'first-hitting': [dict(p=1.)],
    'llada-random': blocks,
    'llada-low-confidence': blocks,
    'dream-origin': [dict(temperature=0.), dict(temperature=1., p=1., top_k=4, eps=.1)],
    'dream-maskgit-plus': dream, 'dream-topk-margin': dream, 'dream-entropy': dream,
    'maskgit': [dict(choice_temperature=0.), dict(choice_temperature=1., p=.8)],
    'fast-dllm': [dict(threshold=.5, block_length=4), dict(threshold=1., block_length=None),
                  dict(threshold=.6, temperature=1., p=.9, block_length=3)],
    'eb': [dict(gamma=.8, order='confidence'), dict(gamma=.8, order='margin', p=.9), dict(gamma=0.),
           dict(gamma=2., temperature=.5), dict(gamma=math.inf)],
    'dus': [dict(block_length=4), dict(block_length=6, base=3, threshold=0.),
            dict(block_length=8, skip=2, threshold=.6, temperature=1., p=.9)],
    'p2': [dict(eta=2.), dict(eta=0.), dict(score='head'),
           dict(score='head', eta=1.5, temperature=.5, p=.9),
           dict(temperature=0.)],
    'remedi': [dict(score='probability'), dict(block_length=4),
               dict(block_length=4, score='probability', temperature=1., p=.9)],
    'entropy-remask': [*remask, dict(n_remask=2, on=.2, decoupled=False)],
    'margin-remask': [*remask, dict(n_remask=2, on=.2, decoupled=False)],
    'mask-predict': [dict(temperature=1., p=.9), dict(temperature=.5)],
    'prism-loop': [dict(score='head'), dict(loop_steps=3, n_remask_loop=2, eta=.4),
                   dict(loop_steps=3, n_remask_loop=2, score='head', on=.2, p=1.)],
    'informed-corrector': [dict(score='confidence', k=2), dict(k=1, tau=0., schedule='linear'),
                           dict(k=3, tau=.5, p=.9)],
    'token-critic': [dict(noise=2.), dict(p=1.)],
    'g-star': [dict(t_on=1., tau=0.), dict(t_on=.6, tau=2., p=1.)],
    'rcr': [dict(temperature=1., running='lowest'), dict(block_length=4, running='highest')],
    'klass': [dict(threshold=.3, kl=.5), dict(threshold=.2, kl=1., history=1, block_length=4)],
    'core': [dict(every=2, protect=0, threshold=0.),
             dict(every=2, protect=2, m=4, k=2, threshold=.1, temperature=.7)],
    'tolerator': [dict(patience=2, loop_steps=3),
                  dict(loop_steps=2, start=1., end=0., temperature=0.)],
    'llada2-edit': [dict(threshold=.3, editing_threshold=.2),
                    dict(block_length=4, editing_threshold=None),
                    dict(editing_threshold=.1, temperature=1., p=.9)],
    't2m': [dict(strategy='take-over', remask_threshold=.2),
            dict(strategy='drop', remask_threshold=.05),
            dict(block_length=4, remask_threshold=.3, ratio=1.)],
    'proseco': [dict(n_correct=0), dict(n_correct=2, every=1, p=1.)],
    'psi': [dict(kappa=.5), dict(kappa=.8, t_on=.9, t_off=0., p=1.)],
    'mgdm': [dict(noise=0.), dict(temperature=1., p=.9)],
    'gidd-correct': [dict(loop_steps=3, n_replace=2, temperature=1.), dict(patience=1)],
    'wino': [dict(threshold=.2, threshold_back=.3),
             dict(block_length=4, threshold=.1, threshold_back=.5, max_accept=3),
             dict(threshold=.2, shadows='alone', temperature=1., p=.9)],
    'fast-dllm-plus': [dict(margin=0., block_length=4), dict(margin=.1, temperature=1., p=.9)],
    'bisection': [dict(p=.5)],
    'punt': [dict(epsilon=1e-9), dict(epsilon=1., temperature=0.), dict(epsilon=math.inf, p=.5)],
    'saber': [dict(n_tokens=1), dict(n_tokens=5, temperature=1., p=.9)],
    'rdd': [dict(threshold=.3, block_length=4), dict(block_length=3, temperature=1., p=.9)],
    'cover': [dict(threshold=.2), dict(block_length=4, threshold=.1, seeds=2),
              dict(threshold=.2, seeds=0, temperature=1., p=.9)],
    'asrd': [dict(threshold=.2), dict(block_length=4, threshold=.1, patience=1, perturbation=2.),
             dict(threshold=.2, perturbation=0., temperature=1., p=.9)],
    'reflective': [dict(n_tokens=4), dict(temperature=1., p=.9)],
    'best-of': [dict(base='prism', drafts=2, score='quality'), dict(base='mask-predict', drafts=3)],
}

def grid(i, hyper):
    """Budgets, prompts and seeds of a policy's i-th choice: the defaults in full, each other
    choice on a part"""
    full = (5, 'shared'), (8, 'ragged'), (16, 'none'), (21, 'ragged')
    if not i: return [(b, p, s) for b, p in full for s in (0, 1)]
    if hyper.get('block_length') is not None: return [(8, 'even', 0), (16, 'even', 1),
                                                      (5, 'ragged', 1)]
    return [(5, 'none', 0), (8, 'shared', 1), (16, 'ragged', 0)]

def shown(v): return v.__name__ if callable(v) else str(v)

def cases(name):
    "key -> hyper-parameters, budget, prompt, seed"
    for i, hyper in enumerate([{}, *variants.get(name, [])]):
        label = name + ':' * bool(hyper) + ';'.join(f'{k}={shown(v)}' for k, v in hyper.items())
        for b, p, s in grid(i,
                            hyper): yield f'{label}|budget={b}|prompt={p}|seed={s}', hyper, b, p, s

# --- what is kept ---------------------------------------------------------------------------------
# --------------------
def digest(*tensors):
    return hashlib.sha256(b''.join(t.contiguous().numpy().tobytes()
                                   for t in tensors)).hexdigest()[:16]

def summed(a):     # [T, n, ...] -> [[sum of the finite values, how many are not] for each row]
    a = a.double().movedim(1, 0).flatten(1)
    return [[round(v, 9), k] for v,
            k in zip(a.where(a.isfinite(), 0).sum(1).tolist(), (~a.isfinite()).sum(1).tolist())]

@contextmanager
def one_thread():
    "With more, a batch is shared out among them, and there are more calls"
    n = torch.get_num_threads(); torch.set_num_threads(1)
    try: yield
    finally: torch.set_num_threads(n)

net, critic = Net(1), Net(2)

def measured(name, hyper, budget, prompt, seed):
    "What one case gives: `error` where it is refused"
    for m in (net, critic): m.reset()
    own = dict(critic=critic) if 'critic' in parameters(policies()[name]) else {}
    try: tokens, passes, steps, trace = sampled(net, name, budget, prompts[prompt], seed, own
                                                | hyper)
    except ValueError: return dict(error='ValueError')
    x, remasked, unmasked, score, tau = trace
    # tokens; tokens after each step, what was taken back and written; the qualities it chose by and
    # its temperatures
    out = dict(tokens=digest(tokens.long()), run=digest(x.long(), remasked, unmasked),
               passes=passes.tolist(),
               steps=steps, score=summed(score), tau=summed(tau))
    return out | dict(cost=net.cost() + (critic.cost() if own else []))

def measure(name):
    "key -> what the policy gives"
    with one_thread(): return {key: measured(name, *case) for key, *case in cases(name)}

def close(a, b):
    if isinstance(a, list) and isinstance(b,
                                          list): return len(a) == len(b) and all(map(close, a, b))
    if isinstance(a, float) or isinstance(b, float): return abs(a - b) <= TOLERANCE
    return a == b

def differences(was, now):
    "A line for each case that differs"
    lines = [f'{k}: not in frozen.json' for k in now if k not in was]
    lines += [f'{k}: no longer run' for k in was if k not in now]
    for key in was.keys() & now.keys():
        a, b = was[key], now[key]
        parts = [k for k in sorted(a.keys() | b.keys()) if not close(a.get(k), b.get(k))]
        lines += [f'{key}: {k} was {a.get(k)}, is {b.get(k)}' for k in parts]
    return sorted(lines)

def read(): return json.loads(path.read_text(encoding='utf-8'))

def write(frozen):
    "One line a policy"
    def line(name):
        costs = json.dumps(frozen[name], separators=(',', ':'), allow_nan=False)
        return f'{json.dumps(name)}: {costs}'
    path.write_text('{\n' + ',\n'.join(map(line, sorted(frozen))) + '\n}\n', encoding='utf-8')

if __name__ == '__main__': write({name: measure(name) for name in registered()})
