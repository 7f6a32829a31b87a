"Metrics of sets and of trajectories against slow transcriptions, a reference on several devices, and one behind a server that misbehaves."
import json, math, sys, threading, time, traceback, types
from collections import Counter
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
import numpy as np, pytest, torch
from hypothesis import given, strategies as hs
from scipy import stats
import navira
from navira import metrics
from navira.metrics import (Endpoint, Ratio, Reference, bootstrap, by_frequency, deciles, distinct, encode, entropy, features, grouped, lifetime, mauve, overlap,
                            perplexities, perplexity, picks, pooled_entropy, repetition, reselected, same_state, self_bleu, states, student_t)
from navira.prism import at_random, topk

transformers = pytest.importorskip('transformers')
from test_metrics import EOS, llama, texts, tokenizer
from toys import random_joint

@pytest.fixture(scope='module')
def ref(): return Reference(llama(), tokenizer())

# --- diversity -------------------------------------------------------------------------------------------------------------
ids = hs.integers(0, 4)
ragged = hs.lists(hs.lists(ids, min_size=4, max_size=11), min_size=2, max_size=5)
square = hs.integers(4, 9).flatmap(lambda L: hs.lists(hs.lists(ids, min_size=L, max_size=L), min_size=2, max_size=5))
def relabelled(rows): return [[7 * v + 3 for v in r] for r in rows]
def grams(row, n): return [tuple(row[i:i + n]) for i in range(len(row) - n + 1)]

def test_sets_with_known_answers():
    loop, same, apart = [[1, 2] * 4], [[1, 2, 3, 4]] * 5, [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert pooled_entropy([[3] * 9] * 2) == 0 and pooled_entropy(apart) == pytest.approx(math.log(8))
    assert distinct(apart) == 1 and distinct(same) == 3 / 15 and distinct([[3] * 9] * 2) == 1 / 16
    assert self_bleu(same) == 1 and self_bleu(apart, epsilon=0) == 0 and 0 < self_bleu(apart) < .06
    assert repetition(loop + same[:1] + [[3] * 9] + [[3]]).tolist() == [6/8, 0, 8/9, 0]

@given(square)
def test_pooled_entropy(rows):
    h = pooled_entropy(rows)
    assert entropy(rows).mean() - 1e-9 <= h <= math.log(sum(map(len, rows))) + 1e-9
    assert h == pytest.approx(pooled_entropy(relabelled(rows[::-1]))) == pytest.approx(entropy([sum(rows, [])]).item())

@given(ragged, hs.integers(1, 4))
def test_distinct(rows, n):
    every = [g for r in rows for g in grams(r, n)]
    assert distinct(rows, n) == len(set(every)) / len(every) == distinct(relabelled(rows[::-1]), n)
    assert distinct(rows + rows, n) == pytest.approx(distinct(rows, n) / 2)

def bleu(hyp, refs, max_n, epsilon):
    "Papineni et al. (2002), one hypothesis, as NLTK writes it."
    ps = []
    for n in range(1, max_n + 1):
        have, best = Counter(grams(hyp, n)), Counter()
        for r in refs: best |= Counter(grams(r, n))
        hits = sum((have & best).values())
        ps.append((hits or epsilon) / sum(have.values()))
    r = min((len(r) for r in refs), key=lambda m: (abs(m - len(hyp)), m))
    return 0. if min(ps) == 0 else (1 if len(hyp) > r else math.exp(1 - r / len(hyp))) * math.exp(sum(map(math.log, ps)) / max_n)

@given(ragged, hs.integers(1, 4), hs.sampled_from([0, .1]))
def test_self_bleu_equals_its_transcription(rows, max_n, epsilon):
    want = np.mean([bleu(r, rows[:i] + rows[i+1:], max_n, epsilon) for i, r in enumerate(rows)])
    got = self_bleu(rows, max_n, epsilon)
    assert got == pytest.approx(want) and 0 <= got <= 1 + 1e-12
    assert self_bleu(relabelled(rows[::-1]), max_n, epsilon) == pytest.approx(got)
    assert self_bleu(rows + rows, max_n, epsilon) == pytest.approx(1)

@given(ragged)
def test_repetition_equals_its_transcription(rows):
    longest = [max((n for n in range(1, len(r)) if max(Counter(grams(r, n)).values()) > 1), default=0) for r in rows]
    want = [k / len(r) for k, r in zip(longest, rows)]
    assert repetition(rows).tolist() == want == repetition(relabelled(rows)).tolist() == repetition([r[::-1] for r in rows]).tolist()
    assert repetition(rows, n=3).tolist() == [w if k >= 3 else 0 for w, k in zip(want, longest)]

def test_ids_of_any_integer_type():
    x = torch.randint(0, 9, (6, 20), generator=torch.Generator().manual_seed(0))
    for f in (entropy, pooled_entropy, distinct, self_bleu, repetition):
        a, b, c = (f(t) for t in (x, x.numpy().astype(np.uint16), [r.tolist() for r in x.int()]))
        assert np.array_equal(a, b) and np.array_equal(a, c)

def test_bad_sets():
    for f in (pooled_entropy, distinct, self_bleu, repetition):
        for bad in [], [[]], [[.5, 1.]]:
            with pytest.raises(ValueError): f(bad)
    for call, what in [(lambda: distinct([[1]], n=2), 'expected at least 2'), (lambda: distinct([[1]], n=0), 'n=0'), (lambda: self_bleu([[1, 2, 3, 4]]), 'at least 2'),
                       (lambda: self_bleu([[1, 2]] * 2), 'sample 0 has 2 tokens'), (lambda: self_bleu([[1]] * 2, max_n=0), 'max_n=0'), (lambda: self_bleu([[1]] * 2, 1, epsilon=2), 'epsilon=2'),
                       (lambda: repetition([[1]], n=1.5), 'n=1.5')]:
        with pytest.raises(ValueError, match=what): call()

# --- intervals ---------------------------------------------------------------------------------------------------------------
def test_student_quantiles():
    for df in [*range(1, 40), 99, 100, 999]:
        for level in .1, .5, .9, .95, .999: assert student_t(level, df) == pytest.approx(stats.t.ppf((1 + level) / 2, df), rel=1e-7)

def test_grouped():
    v = np.random.default_rng(0).random((43, 3))
    g = grouped(lambda a: a[:, 0].mean(), v, 6)
    groups = [v[i*7:(i + 1)*7, 0].mean() for i in range(6)]       # 43 = 6 * 7 + 1: the last is left out
    assert g.size == 7 and g.values.tolist() == pytest.approx(groups) and g.value == pytest.approx(np.mean(groups)) == float(g)
    assert g.interval() == pytest.approx(stats.t.interval(.95, 5, np.mean(groups), stats.sem(groups)))
    assert g.interval(.5) == pytest.approx(stats.t.interval(.5, 5, np.mean(groups), stats.sem(groups))) and '6 groups of 7' in repr(g)
    assert grouped(self_bleu, torch.ones(20, 8).long(), 5).interval() == (1, 1)
    for kw, what in (dict(groups=1), 'groups=1'), (dict(groups=44), '43 samples in 44'), (dict(level=1.), 'level=1.0'):
        with pytest.raises(ValueError, match=what): grouped(np.mean, v, **kw)

def test_ratio():
    part, whole = torch.tensor([1, 2, 0]), torch.tensor([2, 2, 0])      # the last sample had no chance
    r = Ratio(part, whole)
    assert r.value == 3/4 == float(r) and all(map(math.isnan, r.interval())) and repr(r) == 'Ratio(0.75, 3 samples)'
    r = Ratio(part.repeat(4), whole.repeat(4)); lo, hi = r.interval()
    assert (lo, hi) == bootstrap([1, 2, 0] * 4, [2, 2, 0] * 4) and lo < 3/4 < hi and '12 samples' in repr(r)

# --- perplexity under both rules, hidden states ----------------------------------------------------------------------------------
cases = texts(6) + [f'w1 w2 {EOS} w3 w4 {EOS} w5', f'{EOS} w1 w2 {EOS} w3', f'w1 {EOS} {EOS} w2', 'w1', '', EOS]

def test_two_rules_for_one_scoring(ref):
    two = perplexities(cases, ref)
    assert list(two) == ['once', 'stop']
    for rule, p in two.items():
        q = perplexity(cases, ref, eos=rule)
        np.testing.assert_allclose(p.nll, q.nll, rtol=1e-5); assert p.weight.tolist() == q.weight.tolist() and p.eos == rule

def hidden(ref, text):
    ids = ref.tokenizer(text)['input_ids'] or [ref.eos_id]
    with torch.no_grad(): return ref.model(torch.tensor([ids]), output_hidden_states=True).hidden_states[-1][0, -1]

def test_features_are_the_last_hidden_states(ref):
    x = features(ref, cases)
    assert x.shape == (12, 32) and x.dtype == torch.float32
    np.testing.assert_allclose(x, torch.stack([hidden(ref, t) for t in cases]), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(features(ref, [f'w1 w2 {EOS} {EOS} {EOS}'])[0], hidden(ref, f'w1 w2 {EOS}'), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(features(ref, [f'w1 w2 {EOS} w3'], eos='stop')[0], hidden(ref, f'w1 w2 {EOS}'), rtol=1e-4, atol=1e-5)
    for kw in dict(batch_tokens=1), dict(batch_tokens=300): np.testing.assert_allclose(features(ref, cases, **kw), x, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match='list of strings'): features(ref, 'w1')

# --- MAUVE ---------------------------------------------------------------------------------------------------------------------------
def test_mauve_is_called_with_real_text_first(monkeypatch):
    seen = {}
    def compute(**kw): seen.update(kw); return types.SimpleNamespace(mauve=.25, mauve_star=.75)
    monkeypatch.setitem(sys.modules, 'mauve', types.SimpleNamespace(compute_mauve=compute, __spec__=object()))
    p, q = torch.zeros(4, 3), torch.ones(5, 3)
    assert mauve(p, q) == .25 and mauve(p, q, buckets=3, scaling=2., star=True, seed=7) == .75
    assert seen['p_features'].tolist() == p.tolist() and seen['q_features'].tolist() == q.tolist()
    assert (seen['num_buckets'], seen['mauve_scaling_factor'], seen['seed']) == (3, 2., 7)

def test_mauve_says_what_is_wrong(monkeypatch):
    x = np.zeros((4, 3))
    for a, b, kw, what in [(x, x[:, :2], {}, 'features of 3 and 2'), (x[0], x, {}, r'p has shape \(3,\)'), (x, x[:1], {}, 'q has shape'), (x, x + math.inf, {}, 'q: text 0'),
                           (x, x, dict(buckets=9), 'at most the 8'), (x, x, dict(buckets=1), 'buckets=1')]:
        with pytest.raises(ValueError, match=what): mauve(a, b, **kw)
    monkeypatch.setattr(metrics, 'find_spec', lambda m: None)
    with pytest.raises(ImportError, match=r"'mauve-text'.*pip install \"\.\[mauve\]\""): mauve(x, x)

def test_mauve_known_answers():
    pytest.importorskip('mauve')
    cloud = np.random.default_rng(0).standard_normal((100, 5)); e = 100 * np.eye(5)
    assert mauve(cloud, cloud) == pytest.approx(1) and mauve(cloud + e[0], cloud + e[1]) == pytest.approx(1/252, abs=1e-3)
    half = np.concatenate([cloud[:50] + e[0], cloud[50:] + e[1]])
    assert .01 < mauve(half, cloud + e[0]) < .99

# --- several devices -------------------------------------------------------------------------------------------------------------------
@pytest.fixture(scope='module')
def folder(tmp_path_factory, ref):
    f = tmp_path_factory.mktemp('reference'); ref.model.save_pretrained(f); ref.tokenizer.save_pretrained(f)
    return f

def test_spread_by_accelerate(folder, ref, monkeypatch):
    real, asked = metrics._from_folder, []
    monkeypatch.setattr(metrics, '_from_folder', lambda *a, **kw: (asked.append(kw.get('device_map')), real(*a, **kw))[1])
    r = Reference.load(folder, dtype=torch.float32, device='auto'); Reference.load(folder, dtype=torch.float32)
    assert r.splits and asked == ['auto', None]
    want = ref if not torch.cuda.is_available() else Reference.load(folder, dtype=torch.float32, device='cpu')
    np.testing.assert_allclose(perplexity(cases, r).nll, perplexity(cases, want).nll, rtol=1e-3)

@pytest.mark.parametrize('away', ['lm_head', 'model.embed_tokens', 'model'])
def test_weights_kept_elsewhere_between_passes(folder, ref, tmp_path, away, two_threads):
    "Modules on the disk have no values of their own: only their hooks bring them in, for one batch at a time."
    from accelerate import dispatch_model
    m = Reference.load(folder, dtype=torch.float32, device='cpu').model
    parts = {'model.embed_tokens': 'cpu', 'model.layers': 'cpu', 'model.norm': 'cpu', 'model.rotary_emb': 'cpu', 'lm_head': 'cpu'}
    parts = {k: 'disk' if k.startswith(away) else v for k, v in parts.items()}
    r = Reference(dispatch_model(m, parts, main_device='cpu', offload_dir=str(tmp_path)), ref.tokenizer)
    assert metrics._entry(r.model) == torch.device('cpu') and r.splits
    for n in None, 1: np.testing.assert_allclose(perplexity(cases * 5, r, batch_tokens=n).nll, perplexity(cases * 5, ref).nll, rtol=1e-4)
    np.testing.assert_allclose(features(r, cases, batch_tokens=20), features(ref, cases), rtol=1e-4, atol=1e-5)

@pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a GPU')
@pytest.mark.parametrize('head', ['cpu', 0])
def test_body_and_head_on_different_devices(folder, ref, head):
    from transformers import AutoModelForCausalLM
    m = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, device_map={'model': 0 if head == 'cpu' else 'cpu', 'lm_head': head}).eval()
    r = Reference(m, ref.tokenizer)
    assert r.splits
    np.testing.assert_allclose(perplexity(cases, r).nll, perplexity(cases, ref).nll, rtol=1e-3)

# --- trajectories ------------------------------------------------------------------------------------------------------------------------
def bools(seed, T=5, n=3, L=4, p=.4): return torch.rand(T, n, L, generator=torch.Generator().manual_seed(seed)) < p
seeds = hs.integers(0, 10**6)

@given(seeds, hs.sampled_from([.05, .3, .7]))
def test_overlap_equals_sets(seed, p):
    a, b = bools(seed, p=p), bools(seed + 1, p=p)
    o = overlap(a, b); i, j, c = (v.numpy() for v in (o.intersection, o.jaccard, o.coefficient))
    both = either = 0; sums = Counter()
    for t in range(5):
        for s in range(3):
            A, B = (set(np.flatnonzero(x[t, s])) for x in (a.numpy(), b.numpy()))
            assert i[t, s] == len(A & B)
            assert j[t, s] == len(A & B) / len(A | B) if A | B else math.isnan(j[t, s])
            assert c[t, s] == len(A & B) / min(len(A), len(B)) if A and B else math.isnan(c[t, s])
            both, either = both + bool(A and B), either + bool(A | B)
            sums['i'] += len(A & B); sums['c'] += len(A & B) / min(len(A), len(B)) if A and B else 0
            sums['j'] += len(A & B) / len(A | B) if A | B else 0
    for reading, n in ('both', both), ('either', either):
        m = o.mean(reading)
        if not n: assert math.isnan(m['jaccard'].value); continue
        for k, name in ('i', 'intersection'), ('j', 'jaccard'), ('c', 'coefficient'): assert m[name].value == pytest.approx(sums[k] / n)

@given(seeds)
def test_overlap_invariants(seed):
    a, b = bools(seed), bools(seed + 1)
    o, back, self = overlap(a, b), overlap(b, a), overlap(a, a)
    for k in 'intersection', 'jaccard', 'coefficient': np.testing.assert_array_equal(getattr(o, k), getattr(back, k))
    ok = o.both
    assert (o.jaccard[ok] <= o.coefficient[ok]).all() and (o.coefficient[ok] <= 1).all() and (~o.both | o.either).all()
    assert (self.jaccard[self.either] == 1).all() and (self.both == self.either).all()
    assert (overlap(a, ~a).intersection == 0).all()

def test_bad_trajectories():
    a = bools(0)
    for b in a[:3], a[0], a.float():
        with pytest.raises(ValueError, match=r'expected two of \[T, n, L\] bool'): overlap(a, b)
    with pytest.raises(KeyError, match="did you mean 'either'"): overlap(a, a).mean('eithr')
    with pytest.raises(ValueError, match='within=0'): reselected(a, 0)

@given(seeds, hs.sampled_from([None, 1, 2, 9]))
def test_reselected_equals_a_loop(seed, within):
    a, r = bools(seed, T=6), None
    r, again = reselected(a, within), torch.zeros(3)
    for t, s, p in a.nonzero().tolist(): again[s] += bool(a[max(0, t - (within or t)):t, s, p].any())
    assert r.part.tolist() == again.tolist() and r.whole.tolist() == a.sum((0, 2)).tolist()

@pytest.fixture(scope='module')
def joint(): return random_joint(6, 2)
kinds = {'navira-det': {}, 'navira': dict(tau=.5), 'prism': {}, 'prism-stochastic': dict(tau=.5), 'remdm-cap': {}, 'mask-predict': {}, 'backbone': {}}

def run(joint, name, n=20, seed=3, budget=16, **kw):
    hyper = {**kinds[name], **({'eta': .4, 'on': 0.} if name.startswith(('navira', 'prism')) else {'eta': .3} if name == 'remdm-cap' else {})}
    return navira.sample(joint, name, budget=budget, n=n, seed=seed, trace=True, **hyper, **kw).trace

@pytest.mark.parametrize('name', kinds)
def test_lifetimes_account_for_every_token_and_step(joint, name):
    "Every token that was committed has a life, every remask ends one, and their steps add up to the tokens that stood."
    t = run(joint, name); life = lifetime(t.remasked, t.revealed)
    assert len(life.steps) == t.revealed.sum() and life.ended.sum() == t.remasked.sum() and (life.steps >= 1).all()
    stood = ((t.x[1:] != t.mask_id) & ~t.fixed).sum()
    assert life.steps.sum() == stood
    assert life.censored.part.sum() == (t.x[-1] != t.mask_id).sum()
    s = life.survival()
    assert s[0] == 1 and (s.diff() <= 0).all() and (s >= 0).all() and len(s) == t.T + 1
    if name == 'backbone': assert (s == 1).all() and math.isnan(life.mean_ended.value) and life.censored.value == 1
    else: assert life.ended.any()

def test_survival_of_lives_that_are_all_watched_is_the_share_that_is_left():
    life = metrics.Lifetimes(torch.tensor([1, 2, 2, 5]), torch.ones(4).bool(), torch.tensor([0, 0, 1, 1]), 2, 6)
    np.testing.assert_allclose(life.survival(), [1, 3/4, 1/4, 1/4, 1/4, 0, 0])
    assert life.mean_ended.value == 2.5 and life.mean_ended.part.tolist() == [3, 7]

@pytest.mark.parametrize('name', ['navira-det', 'navira'])
def test_rules_shown_the_states_of_a_run_pick_what_they_picked_in_it(joint, name):
    "State, step, noise and count are all as they were."
    t = run(joint, name)
    rule = {name: navira.policy(name, **kinds[name], eta=.4, on=0.)}
    again = torch.stack([picks(joint, st, rule, batch_size=7)[name] for st in states(t, seed=3)])
    assert torch.equal(again, t.remasked) and t.remasked.any()
    later = run(joint, name, n=5, first=15)
    again = torch.stack([picks(joint, st, rule)[name] for st in states(later, seed=3, first=15)])
    assert torch.equal(again, later.remasked) and torch.equal(later.remasked, t.remasked[:, 15:])

def test_same_state(joint):
    t = run(joint, 'prism')
    rules = {'det': navira.policy('navira-det'), 'prism': navira.policy('prism'), 'cold': navira.policy('navira', tau=1e-9), 'hot': navira.policy('navira', tau=1e9)}
    out = same_state(joint, states(t, seed=3), rules, n_remask=2)
    assert len(out) == 6 and out['det', 'prism'].jaccard.shape == (t.T, t.n)
    for pair in ('det', 'prism'), ('det', 'cold'):
        j = out[pair].jaccard[out[pair].either]
        assert (j == 1).all() and len(j)
    assert out['det', 'hot'].mean('either')['jaccard'].value < .9

def test_same_state_says_what_is_wrong(joint):
    t = run(joint, 'prism'); det = navira.policy('navira-det')
    for rules, kw, what in [({'a': det}, {}, 'two or more'), ({'a': det, 'b': 'prism'}, {}, "rule 'b' is 'prism'"), ({'a': det, 'c': navira.policy('remdm-cap')}, dict(n_remask=1), "rule 'c' selects by"),
                            ({'a': det, 'c': navira.policy('remdm-conf')}, {}, "rule 'c' has no score")]:
        with pytest.raises(ValueError, match=what): same_state(joint, states(t), rules, **kw)
    with pytest.raises(ValueError, match='no states'): same_state(joint, [], {'a': det, 'b': det})

def test_a_score_that_is_partly_nan_is_an_error(joint):
    "A damaged head ranks the other tokens, and nobody would notice"
    def damaged(st, p): return torch.where(torch.arange(st.x.shape[1]) == 0, math.nan, 1.).expand(st.x.shape)
    rule = {'a': replace(navira.policy('navira-det'), remask=(damaged, topk(1)))}
    st = list(states(run(joint, 'prism'), seed=3))[-1]
    assert st.committed[:, 0].any() and st.committed[:, 1:].any()
    with pytest.raises(ValueError, match="rule 'a' scores .* with NaN"): picks(joint, st, rule)

@given(hs.lists(hs.integers(0, 50), min_size=1, max_size=60).filter(any), hs.integers(1, 12))
def test_deciles(counts, groups):
    d, c = deciles(counts, groups), torch.tensor(counts)
    assert d.min() >= 0 and d.max() < groups and len(d) == len(c)
    order = c.argsort(stable=True)
    assert (d[order].diff() >= 0).all()      # the rarer, the lower
    share = torch.zeros(groups).index_add(0, d, c.float()) / c.sum()
    assert (share <= 1/groups + c.max() / c.sum() + 1e-6).all()      # no group is over its share by more than one token

def test_by_frequency_counts_every_pick():
    from navira.denoiser import Config, MaskedLM
    with torch.random.fork_rng():
        torch.manual_seed(0); m = MaskedLM(Config(vocab_size=30, model_length=16, hidden_dim=16, cond_dim=8, n_blocks=1, n_heads=2, quality_blocks=1)).eval()
    rows = torch.randint(0, 29, (12, 16), generator=torch.Generator().manual_seed(0)); counts = rows.flatten().bincount(minlength=30)
    rules = {'det': navira.policy('navira-det'), 'random': replace(navira.policy('navira-det'), remask=(at_random, topk(1))), 'hot': navira.policy('navira', tau=5.)}
    for t in 0., .5:
        out = by_frequency(m, rules, rows, counts, share=.25, t=t, batch_size=5)
        for groups in out.values():
            shown, hit = (sum(getattr(g, k) for g in groups) for k in ('whole', 'part'))
            assert len(groups) == 10 and torch.equal(hit, (.25 * shown - 1e-9).ceil()) and (shown == 16).all() == (t == 0)
    for kw, what in [(dict(share=0), 'share=0'), (dict(t=1), 't=1'), (dict(counts=counts[:5]), 'counts of 5 tokens'), (dict(counts=counts * 0), 'not all 0'), (dict(rows=rows + 1), 'none of them the mask 29')]:
        with pytest.raises(ValueError, match=what): by_frequency(m, rules, **{**dict(rows=rows, counts=counts), **kw})

# --- a reference behind a server ---------------------------------------------------------------------------------------------------------
class Server(ThreadingHTTPServer):
    "Answers from a model, after doing what the script says: one entry a request, `None` for nothing unusual."
    daemon_threads = True
    def __init__(self, ref, script=(), form='prompt_logprobs', change=lambda body: body):
        super().__init__(('127.0.0.1', 0), Handler)
        self.ref, self.script, self.form, self.change, self.requests, self.keys, self.now, self.most, self.lock = ref, list(script), form, change, [], [], 0, 0, threading.Lock()
    @property
    def url(self): return f'http://127.0.0.1:{self.server_port}/v1'
    @torch.no_grad()
    def answer(self, ids):
        lp = self.ref.model(torch.tensor([ids])).logits.log_softmax(-1)[0]
        each, word = [None] + [lp[t, i].item() for t, i in enumerate(ids[1:])], self.ref.tokenizer.convert_ids_to_tokens
        if self.form == 'echo': return dict(choices=[dict(logprobs=dict(token_logprobs=each + [-1.], tokens=[word(i) for i in ids] + ['x']))])
        table = [None] + [{str(i): dict(logprob=v, rank=2, decoded_token=word(i)), '29': dict(logprob=-.1, rank=1)} if i != 29 else {'29': dict(logprob=v)} for i, v in zip(ids[1:], each[1:])]
        return dict(id='x', object='text_completion', choices=[dict(index=0, text='x', finish_reason='length', prompt_logprobs=table)])

class Handler(BaseHTTPRequestHandler):
    def log_message(self, *args): pass
    def send(self, status, body, **headers):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for k, v in dict(Content_Type='application/json', Content_Length=str(len(body)), **headers).items(): self.send_header(k.replace('_', '-'), v)
        self.end_headers(); self.leave(); self.wfile.write(body)      # before the client has the answer: it may ask again at once
    def leave(self):
        with self.server.lock: self.server.now -= getattr(self, 'here', 0); self.here = 0
    def do_GET(self): self.send(200, dict(object='list', data=[dict(id='the-model', object='model', created=0, owned_by='us')]))
    def do_POST(self):
        s, q = self.server, json.loads(self.rfile.read(int(self.headers['Content-Length'])))
        self.asked = q['prompt']
        with s.lock:
            todo = s.script.pop(0) if s.script else None
            s.requests.append(q); s.keys.append(self.headers['Authorization']); s.now += 1; self.here = 1; s.most = max(s.most, s.now)
        try: return todo(self) if todo else self.send(200, s.change(s.answer(q['prompt'])))
        except (BrokenPipeError, ConnectionResetError): pass      # the client has gone
        finally: self.leave()

def fails(status, **headers): return lambda h: h.send(status, dict(error=dict(message=f'scripted {status}, key {h.headers["Authorization"]}')), retry_after_ms='1', **headers)
def hangs(seconds): return lambda h: time.sleep(seconds)
def slow(h): time.sleep(.05); h.send(200, h.server.answer(h.asked))
def breaks_off(h): h.send_response(200); h.send_header('Content-Type', 'application/json'); h.send_header('Content-Length', '1000'); h.end_headers(); h.wfile.write(b'{"choi')

@pytest.fixture
def serve(ref, monkeypatch):
    "A server and an endpoint for it."
    pytest.importorskip('openai')
    monkeypatch.setenv('NO_PROXY', '127.0.0.1'); monkeypatch.setenv('OPENAI_API_KEY', 'sk-secret-123'); made = []
    def start(script=(), form='prompt_logprobs', change=lambda body: body, **kw):
        made.append(s := Server(ref, script, form, change)); threading.Thread(target=s.serve_forever, kwargs=dict(poll_interval=.01), daemon=True).start()
        return s, Endpoint(s.url, 'the-model', ref.tokenizer, **{**dict(form=form, retries=2, timeout=30), **kw})
    yield start
    for s in made: s.shutdown(); s.server_close()

@pytest.mark.parametrize('form', ['prompt_logprobs', 'echo'])
def test_endpoint_gives_the_numbers_of_the_model(serve, ref, form):
    s, end = serve(form=form)
    for rule in 'once', 'stop':
        here, there = perplexity(cases, ref, eos=rule), perplexity(cases, end, eos=rule)
        np.testing.assert_allclose(there.nll, here.nll, rtol=1e-4); assert there.weight.tolist() == here.weight.tolist() and there.reference == 'the-model'
    q = s.requests[0]
    assert q['model'] == 'the-model' and all(isinstance(i, int) for i in q['prompt']) and q['max_tokens'] == 1
    assert q.get('prompt_logprobs') == 1 if form == 'prompt_logprobs' else q['echo'] and q['logprobs'] == 1
    assert set(s.keys) == {'Bearer sk-secret-123'} and len(s.requests) == 2 * 9     # texts without a scored token are not sent

def test_without_a_key(serve, monkeypatch):
    monkeypatch.delenv('OPENAI_API_KEY'); s, end = serve(); perplexity(['w1 w2'], end); assert s.keys == ['Bearer EMPTY']
    monkeypatch.setenv('OTHER', 'k2'); s, end = serve(key='OTHER'); perplexity(['w1 w2'], end); assert s.keys == ['Bearer k2']

@pytest.mark.parametrize('fault', [fails(429), fails(500), fails(503), breaks_off, lambda h: h.connection.close()], ids=['429', '500', '503', 'broken off', 'closed'])
def test_what_may_be_repeated_is_repeated(serve, ref, fault):
    s, end = serve([fault, None, fault], concurrency=1)
    ts = texts(3)
    np.testing.assert_allclose(perplexity(ts, end).nll, perplexity(ts, ref).nll, rtol=1e-4)
    assert len(s.requests) == 5

def test_a_hanging_server(serve, ref):
    s, end = serve([hangs(3)], timeout=.7)
    np.testing.assert_allclose(perplexity(['w1 w2 w3'], end).nll, perplexity(['w1 w2 w3'], ref).nll, rtol=1e-4)
    s, end = serve([hangs(3)] * 9, timeout=.2, retries=1)
    with pytest.raises(ConnectionError, match='no answer in 2 tries'): perplexity(['w1 w2 w3'], end)

def test_a_server_that_stays_down(serve, ref):
    s, end = serve([fails(500)] * 50, concurrency=1)
    with pytest.raises(ConnectionError, match="'the-model' at http://127.0.0.1.*no answer in 3 tries"): perplexity(texts(20), end)
    assert len(s.requests) < 30     # of 60: what had not begun was dropped
    gone = Endpoint('http://127.0.0.1:9/v1', 'm', ref.tokenizer, retries=0)
    with pytest.raises(ConnectionError, match='no answer in 1 tries'): perplexity(['w1 w2'], gone)

@pytest.mark.parametrize('status', [400, 401, 403, 422])
def test_a_refusal_is_not_repeated_and_never_shows_the_key(serve, status):
    s, end = serve([fails(status)] * 9, concurrency=1)
    with pytest.raises(ValueError, match=f'the server refused.*scripted {status}') as e: perplexity(['w1 w2'], end)
    assert len(s.requests) == 1
    whole = ''.join(traceback.format_exception(e.value)) + repr(end)
    assert 'sk-secret' not in whole and e.value.__cause__ is None and e.value.__context__ is None

def test_the_key_is_in_no_error_of_any_kind(serve):
    for script in [fails(500)] * 9, [fails(429)] * 9, [lambda h: h.send(200, dict(said=h.headers['Authorization']))]:
        s, end = serve(script, retries=1)
        with pytest.raises((ValueError, ConnectionError)) as e: perplexity(['w1 w2'], end)
        assert 'sk-secret' not in ''.join(traceback.format_exception(e.value))

def test_no_error_has_the_key_chained_to_it(serve):
    said = dict(error=dict(message='key sk-secret-123'))
    for script in [fails(404)], [fails(500)] * 9, [lambda h: h.send(200, b'{"choices": ["sk-secret-123"]}')] * 9, [lambda h: h.send(200, b'sk-secret-123')] * 9, [lambda h: h.send(404, said)]:
        s, end = serve(script, retries=0)
        with pytest.raises((KeyError, ValueError, ConnectionError)) as e: perplexity(['w1 w2'], replace(end, model='the-modle', name=''))
        assert e.value.__context__ is None and 'sk-secret' not in ''.join(traceback.format_exception(e.value))

@pytest.mark.parametrize('url', ['http://h/v1?api_key=hush', 'http://h/v1#hush', 'me:hush@h/v1', 'h/v1?key=hush', 'ftp://h/v1?hush'])
def test_an_address_with_a_secret_is_not_repeated(ref, url):
    with pytest.raises(ValueError, match='base_url holds') as e: Endpoint(url, 'm', ref.tokenizer)
    assert 'hush' not in str(e.value)

def test_a_byte_a_moment_is_too_late(serve):
    def dribbles(h):
        h.send_response(200); h.send_header('Content-Length', '1000'); h.end_headers()
        for _ in range(300): h.wfile.write(b' '); h.wfile.flush(); time.sleep(.2)
    s, end = serve([dribbles], timeout=.7, retries=0)
    start = time.monotonic()
    with pytest.raises(ConnectionError, match='no answer in 1 tries'): perplexity(['w1 w2'], end)
    assert time.monotonic() - start < 15
    for timeout in 1e300, math.nan, -1:
        with pytest.raises(ValueError, match='at most 86400'): replace(end, timeout=timeout)

def test_an_answer_of_any_size_is_not_read(serve, monkeypatch):
    monkeypatch.setattr(Endpoint, 'largest', 1000)
    s, end = serve(change=lambda body: b'[' + b' ' * 2000 + b']', retries=0)
    with pytest.raises(ConnectionError, match='more than 1,000 bytes'): perplexity(['w1 w2'], end)
    s, end = serve([lambda h: h.send(200, b'x', Content_Encoding='br')], retries=0)
    with pytest.raises(ConnectionError, match="packed by 'br'"): perplexity(['w1 w2'], end)

def test_ctrl_c_drops_what_is_under_way(serve):
    "Raised where the second Ctrl-C would be: while the first text is awaited"
    held = threading.Event()
    s, end = serve([None] + [lambda h: held.wait(60)] * 9, concurrency=1)
    def pressed(done, total): raise KeyboardInterrupt
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt): perplexity(texts(9), end, progress=pressed)
    assert time.monotonic() - start < 15 and not end.under_way
    held.set()

def test_the_nearest_model_is_named(serve, ref):
    s, end = serve([fails(404)])
    with pytest.raises(KeyError, match="did you mean 'the-model'"): perplexity(['w1 w2'], replace(end, model='the-modle', name=''))
    s, end = serve([fails(404)])
    with pytest.raises(ValueError, match='refused.*404'): perplexity(['w1 w2'], end)       # it is there: something else was not found

def shorter(body): body['choices'][0]['prompt_logprobs'].pop(); return body
def other_ids(body): body['choices'][0]['prompt_logprobs'][1:] = [{str(int(k) + 100): v for k, v in e.items()} for e in body['choices'][0]['prompt_logprobs'][1:]]; return body
def without(body): del body['choices'][0]['prompt_logprobs']; return body
def value(v):
    def change(body):
        for e in body['choices'][0]['prompt_logprobs'][1:]:
            for k in e: e[k]['logprob'] = v
        return body
    return change

@pytest.mark.parametrize('change', [lambda b: b'<html>sorry</html>', lambda b: b'', lambda b: b'\xff\xfe', lambda b: [1], lambda b: dict(choices=[]), lambda b: dict(choices=[7]), shorter, other_ids, without],
                         ids=['html', 'empty', 'bytes', 'list', 'no choice', 'number', 'shorter', 'other ids', 'without'])
def test_malformed_answers(serve, change):
    s, end = serve(change=change, retries=0)
    with pytest.raises(ValueError, match="no log-probabilities of the prompt.*expected 'prompt_logprobs'.*form='echo'"): perplexity(['w1 w2 w3'], end)

@pytest.mark.parametrize('v', [math.nan, None, 'x', .5, math.inf, -math.inf, True])
def test_log_probabilities_that_are_none(serve, v):
    s, end = serve(change=value(v))
    with pytest.raises(ValueError, match='expected a number of at most 0'): perplexity(['w1 w2 w3'], end)

def test_another_tokenizer_is_noticed(serve, ref):
    def shift(body):
        for e in body['choices'][0]['prompt_logprobs'][1:]: [v.update(decoded_token='z') for v in e.values()]
        return body
    s, end = serve(change=shift)
    with pytest.raises(ValueError, match="another tokenizer: token .* is 'z' there and 'w"): perplexity(['w1 w2 w3'], end)

def test_requests_at_once(serve):
    s, end = serve([slow] * 12, concurrency=3); seen = []
    perplexity(texts(12), end, progress=lambda done, total: seen.append((done, total)))
    assert 2 <= s.most <= 3 and len(s.requests) == 12
    assert [d for d, _ in seen] == sorted(d for d, _ in seen) and seen[-1][0] == seen[-1][1] and len(seen) == 12

def test_bad_endpoints(ref, folder, monkeypatch):
    for kw, what in [(dict(base_url='localhost:8000'), 'base_url'), (dict(base_url='ftp://h/v1'), 'base_url'), (dict(concurrency=0), 'concurrency=0'), (dict(retries=-1), 'retries=-1'),
                     (dict(timeout=0), 'timeout=0'), (dict(eos='<nope>'), 'no token of m')]:
        with pytest.raises(ValueError, match=what): Endpoint(**{**dict(base_url='http://h/v1', model='m', tokenizer=ref.tokenizer), **kw})
    with pytest.raises(ValueError) as e: Endpoint('http://me:hush@h/v1', 'm', ref.tokenizer)
    assert 'hush' not in str(e.value)
    with pytest.raises(KeyError, match="did you mean 'echo'"): Endpoint('http://h/v1', 'm', ref.tokenizer, form='ehco')
    end = Endpoint.load('http://h/v1', 'm', folder, concurrency=2)
    assert (end.eos, end.concurrency, end.name) == (EOS, 2, 'm') and encode(end, ['w1'])[0].tolist() == encode(ref, ['w1'])[0].tolist()
    assert encode(replace(end, limit=2), ['w1 w2 w3'])[0].tolist() == [3, 4]
    with pytest.raises(FileNotFoundError, match='no such folder'): Endpoint.load('http://h/v1', 'm', './none')
    with pytest.raises(ValueError, match='no hidden states'): features(end, ['w1'])
    monkeypatch.setattr(metrics, 'find_spec', lambda m: None)
    with pytest.raises(ImportError, match=r"'openai'.*pip install \"\.\[eval\]\""): perplexity(['w1 w2'], end)
