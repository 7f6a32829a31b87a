"""`navira.sample`, `navira.fill` and what they return, as people call them: prompts, blanks, mistakes, what is shown, help."""
import errno, functools, inspect, io, math, os, re, sys, threading, time
from types import SimpleNamespace
import pytest, torch
from hypothesis import given, settings, strategies as hs
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
import navira
from navira import sampling
from navira.denoiser import Config, MaskedLM
from navira.diffusion import Pass
from navira.prism import Policy, backbone
from navira.sampling import ProgressBar, Samples, _encode, comments, documented, fill, policies, policy, register, sample, start_ids
from toys import Tiny, TinyPass, small_lm

def says(error, *parts):
    return pytest.raises(error, match='.*'.join(map(re.escape, map(str, parts))))

@pytest.fixture(scope='module')
def embedded(): return navira.load()

def wordy(words, mask=None, **kw):
    "A small model whose tokenizer splits at spaces; `mask`: how it writes the mask, as an ordinary word or not at all"
    vocab = {w: i for i, w in enumerate([*words, *([mask] if mask else [])])}
    tok = Tokenizer(WordLevel(vocab, unk_token=words[0]))
    tok.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    lm = MaskedLM(Config(len(words) + 1, 8, 16, 8, 1, 2, dropout=0., quality_blocks=1, **kw), tok).eval()
    return lm

# ---- Prompts

def test_prompts_are_samples(embedded):
    texts = ['The man', 'It was a dark and stormy night when', 'She']
    out = sample(embedded, 'prism', 8, prompt=texts, length=16, seed=3, eta=.3, on=0.)
    assert len(out) == 3 and out.tokens.shape == (3, 16)
    for i, text in enumerate(texts):
        assert out[i].startswith(text)
        alone = sample(embedded, 'prism', 8, prompt=text, length=16, seed=3, first=i, batch_size=1, eta=.3, on=0.)
        assert torch.equal(alone.tokens[0], out.tokens[i])

@settings(max_examples=8)
@given(hs.lists(hs.lists(hs.integers(0, 4), min_size=1, max_size=6), min_size=1, max_size=5), hs.integers(0, 9), hs.sampled_from([None, 1, 2]))
def test_rows_of_ids_may_differ_in_length(rows, seed, batch_size):
    rows = [r[:5] + [4] if 4 not in r and len(r) == 6 else r for r in rows]      # 4 is the mask: something is left to write
    out = sample(Tiny(6, 4), 'navira-det', 8, prompt=rows, seed=seed, batch_size=batch_size, eta=.4, on=0.)
    for i, r in enumerate(rows):
        assert all(v in (4, w) for v, w in zip(r, out.tokens[i].tolist())) and 4 not in out.tokens[i]
        assert torch.equal(sample(Tiny(6, 4), 'navira-det', 8, prompt=r, seed=seed, first=i, eta=.4, on=0.).tokens[0], out.tokens[i])

@pytest.mark.parametrize('given', [[[0, 1], [2]], [torch.tensor([0, 1]), torch.tensor([2])], (torch.tensor([0, 1]).numpy(), [2])])
def test_rows_of_any_kind(given): assert start_ids(Tiny(3, 4), prompt=given).tolist() == [[0, 1, 4], [2, 4, 4]]

@pytest.mark.parametrize('prompt, shown', [([], 'list'), ([[]], 'list'), ([[0, 1], []], 'list'), ([[0], 'a'], 'list'), (['a', 3], 'list'), ([.5], 'list'), ([[.5], [1, 2]], 'list'), ([True], 'list'),
                                           ([2**70], 'list'), ({}, 'dict'), (3, 'int'), (torch.zeros(1, 1, 1, dtype=torch.long), 'Tensor'), (object(), 'object')])
def test_what_is_no_prompt(prompt, shown):
    with says(ValueError, f'prompt: {shown}', 'expected a text'): sample(Tiny(6, 4), 'prism', 4, prompt=prompt)

def test_n_and_prompts():
    model = Tiny(6, 4)
    assert len(sample(model, 'prism', 4)) == 1 and len(sample(model, 'prism', 4, prompt=[0, 1])) == 1 and len(sample(model, 'prism', 4, n=3, prompt=[0, 1])) == 3
    assert len(sample(model, 'prism', 4, n=2, prompt=[[0], [1, 2]])) == 2
    for n in (1, 3, 4):
        with says(ValueError, '2 prompts', f'n={n}', 'leave n out'): sample(model, 'prism', 4, n=n, prompt=[[0], [1, 2]])

def test_half_a_character_is_no_text(embedded):
    with says(ValueError, 'prompt', 'at character 2'): sample(embedded, 'prism', 4, prompt='ab\ud800')

# ---- Blanks

def test_a_blank_takes_its_leading_space(embedded):
    M, ids = embedded.mask_id, lambda t: _encode(embedded, [t])[0].tolist()
    space = embedded.tokenizer.encode(' ').ids[0]
    for text in ('The man opened the <|mask|> and walked in.', 'The man opened the<|mask|> and walked in.'):
        assert ids(text) == [*ids('The man opened the'), M, *ids(' and walked in.')] and space not in ids(text)
    assert ids('a <|mask|> <|mask|><|mask|>.') == [*ids('a'), M, M, M, *ids('.')]
    assert ids('<|mask|> and') == ids(' <|mask|> and') == [M, *ids(' and')] and ids('a\n<|mask|>') == [*ids('a\n'), M]

def test_a_text_with_blanks_is_as_long_as_it_is(embedded):
    text = 'The man opened the <|mask|> and walked in.'
    out = sample(embedded, 'prism', 4, n=2, prompt=text)
    assert out.tokens.shape[1] == len(_encode(embedded, [text])[0])
    for t in out: assert t.startswith('The man opened the') and t.endswith(' and walked in.') and '<|mask|>' not in t
    assert sample(embedded, 'prism', 4, prompt=text, length=20).tokens.shape[1] == 20

def test_texts_of_several_lengths_are_what_they_are_alone(embedded):
    texts = ['The <|mask|> and<|mask|><|mask|> went', 'A <|mask|>.', 'It was', 'One <|mask|><|mask|> of us <|mask|><|mask|> it.']
    for batch_size in (None, 1, 3):
        out = sample(embedded, 'navira-det', 8, prompt=texts, seed=5, eta=.3, on=0., batch_size=batch_size)
        assert out.tokens.shape == (4, embedded.length) and ((out.tokens < 0).sum(1) > 0).tolist() == [True, True, False, True]
        for i in (0, 1, 3):
            alone = sample(embedded, 'navira-det', 8, prompt=texts[i], seed=5, first=i, eta=.3, on=0.)
            assert alone[0] == out[i] and torch.equal(alone.tokens[0], out.tokens[i][out.tokens[i] >= 0]) and alone.n_forward[0] == out.n_forward[i]
    with says(ValueError, 'trace=True', 'one length'): sample(embedded, 'prism', 8, prompt=texts[:2], trace=True)

def test_fill(embedded):
    text = 'The man opened ___ and walked in.'
    out = navira.fill(text, n=4, tokens=1)
    assert len(out) == 4 and all(t.startswith('The man opened') and t.endswith(' and walked in.') and '_' not in t and '<|mask|>' not in t for t in out)
    assert out.tokens.shape == (4, len(_encode(embedded, ['The man opened and walked in.'])[0]) + 1)
    again = fill(text, n=2, tokens=1, first=2, model=embedded)
    assert list(again) == out[2:]
    assert list(fill([text, '______ is here, and ___.'], n=2, model=embedded))[:2] == list(fill(text, n=2))
    assert all(t.startswith(('The man', ' and')) or ' is here, and' in t for t in fill(['______ is here, and ___.'], n=3))

def test_the_length_of_a_blank(embedded):
    masks = lambda text, **kw: int((fill(text, model=embedded, budget=2, **kw).tokens >= 0).sum()) - len(_encode(embedded, [re.sub(' ?_{3,}', '', text)])[0])
    assert [masks(f'It was {"_" * k} then') for k in (3, 5, 6, 9, 10)] == [1, 1, 2, 3, 3]
    assert masks('It was ___ then ______ too', tokens=4) == 8
    assert fill('It was <|mask|> then', model=embedded, budget=2).tokens.equal(fill('It was ___ then', model=embedded, budget=2).tokens)
    assert masks('___', tokens=3) == 3

@pytest.mark.parametrize('text, tokens, policy, budget', [('a ___ b', None, 'prism', 2), ('a ___ b', None, 'navira-det', 4), (['a ______ b ___', 'a ___'], None, 'navira-det', 12), ('___', 100, 'prism', 128)])
def test_the_budget_of_a_filling(embedded, monkeypatch, text, tokens, policy, budget):
    monkeypatch.setattr(sampling, 'sample', functools.wraps(sample)(lambda model, policy, budget, **kw: budget))
    assert fill(text, tokens=tokens, policy=policy, model=embedded) == budget

@pytest.mark.parametrize('parts, text, kw', [(['no blank in it', '___'], 'The man opened the door.', {}), (['no blank in it'], ['a ___', 'b __ c'], {}), (['text=', 'a list of texts'], 3, {}), (['text=[]'], [], {}),
    (['n=0'], '___', dict(n=0)), (['tokens=0'], '___', dict(tokens=0)), (['tokens=1.5'], '___', dict(tokens=1.5)), (['at most 128'], '___', dict(tokens=10**9)), (['longer than the 128'], 'a ___ b', dict(tokens=128)),
    (["did you mean 'tokens'?"], '___', dict(tokns=1)), (["'prompt'"], '___', dict(prompt='a')), (["model='embedded'", 'navira.load()'], '___', dict(model='embedded'))])
def test_what_cannot_be_filled(parts, text, kw):
    with says((ValueError, KeyError), *parts): fill(text, **kw)

@pytest.mark.parametrize('mask, written', [('[MASK]', '[MASK]'), (None, '<|mask|>')])
def test_tokenizers_that_do_not_know_the_mask_as_a_token(mask, written):
    lm = wordy(['an', 'owl', 'hoots'], mask)
    before = lm.tokenizer.to_str()
    assert _encode(lm, [f'an {written}, {written}owl'])[0].tolist()[:2] == [0, 3] and _encode(lm, [f'{written} owl'])[0].tolist() == [3, 1]
    out = sample(lm, 'backbone', 4, n=3, prompt=f'an {written} hoots')
    assert out.tokens[:, 0].tolist() == [0] * 3 and out.tokens.shape == (3, 3) and (out.tokens != 3).all() and lm.tokenizer.to_str() == before
    assert fill('an ___ hoots', n=3, model=lm, policy='backbone', budget=4).tokens.equal(out.tokens)

# ---- Mistakes

class NoHead:
    "A model whose passes have no qualities, or are something else"
    mask_id, length = 4, 6
    def __init__(self, gives=None): self.inner, self.gives, self.calls = Tiny(6, 4), gives, 0
    def __call__(self, x):
        self.calls += 1
        if self.gives is not None: return self.gives
        class Plain(Pass):
            def __init__(self, p): self.p, self.seen_masked = p, p.seen_masked
            def logits(self, where): return self.p.logits(where)
        return Plain(self.inner(x))

@pytest.mark.parametrize('model, parts', [('embedded', ["'embedded'", 'navira.load()']), ('runs/mine', ["navira.load('runs/mine')"]), (None, ['NoneType', 'no mask_id', 'navira.load']), (3, ['int', 'navira.load']),
    (SimpleNamespace(mask_id=3, length=4), ['__call__']), (Tiny, ['Tiny', 'is a class' if hasattr(Tiny, 'mask_id') else 'no mask_id']), (lambda x: x, ['no mask_id and no length', 'Pass']),
    (SimpleNamespace(__call__=1), ['no mask_id and no length'])])
def test_what_is_no_model(model, parts):
    with says(ValueError, 'model', *parts): sample(model)

def test_a_model_of_transformers_is_told_what_to_be():
    bert = type('BertForMaskedLM', (torch.nn.Linear,), dict(__module__='transformers.models.bert.modeling_bert'))(2, 2)
    with says(ValueError, 'BertForMaskedLM', 'no mask_id and no length', 'Pass', 'transformers'): sample(bert)

def test_a_model_without_a_head():
    model = NoHead()
    assert len(sample(model, 'backbone', 4)) == 1
    for name in ('prism', 'navira-piecewise'):
        model = NoHead()
        with says(ValueError, 'quality head', 'navira finetune'): sample(model, name, 64)
        assert model.calls == 1
    with says(ValueError, 'model', 'gave Tensor', 'Pass'): sample(NoHead(torch.zeros(1, 6, 5)), 'backbone', 4)

@pytest.mark.parametrize('parts, kw', [(['bugdet', "'budget'"], dict(bugdet=3)), (['prompts', "'prompt'"], dict(prompts='a')), (['batchsize', "'batch_size'"], dict(batchsize=3)), (['lenght', "'length'"], dict(lenght=3)),
    (["'tau'", "'tau_min', 'tau_mid' or 'tau_max'"], dict(tau=.1)), (["'tau'", "'tau_min' or 'tau_max'"], dict(policy='navira-quadratic', tau=.1)), (['tau_lo', 'tau_'], dict(tau_lo=.1)),
    (['zzzz', 'tau_min', 'budget'], dict(zzzz=1)), (['bugdet', "'budget'"], dict(policy=navira.policy('prism'), bugdet=3)), (['eta', 'has them already'], dict(policy=navira.policy('prism'), eta=.1)),
    (['policy=3', "'prism'"], dict(policy=3)), (['policy=', 'would give when called'], dict(policy=policies()['prism'])), (['policy=None'], dict(policy=None)), (["progress='yes'"], dict(progress='yes'))])
def test_a_keyword_that_is_none(parts, kw):
    model = Tiny(6, 4)
    with says((KeyError, ValueError), *parts): sample(model, **kw)
    assert not model.rows

@pytest.mark.parametrize('bad', [2**63, -2**63 - 1, 2**64, 10**40, 1e300, math.inf, -math.inf, math.nan, .5, '3', True, [3], 1j])
@pytest.mark.parametrize('name', ['n', 'budget', 'seed', 'length', 'first', 'batch_size'])
def test_numbers_of_another_kind(name, bad):
    model, t0 = Tiny(6, 4), time.perf_counter()
    with says(ValueError, f'{name}='): sample(model, 'prism', **{name: bad})
    assert not model.rows and time.perf_counter() - t0 < 5

def test_seeds_that_would_be_one_are_refused():
    sample(Tiny(6, 4), 'prism', 4, seed=2**63 - 1); sample(Tiny(6, 4), 'prism', 4, seed=-2**63)
    with says(ValueError, 'first='): sample(Tiny(6, 4), 'prism', 4, n=2, first=2**63 - 1)

@pytest.mark.parametrize('n, text', [(10**12, '___'), (2**62, ['___', 'a ___'])])
def test_more_fillings_than_memory_are_refused_before_there_are_prompts(n, text, embedded):
    with says(ValueError, 'n=', 'GiB', 'first='): fill(text, n, model=embedded)

@pytest.mark.parametrize('kw', [dict(n=10**12), dict(n=1e12, prompt=[0, 1]), dict(n=2**62), dict(n=10**12, trace=True)])
def test_what_does_not_fit_into_memory_is_a_sentence(kw):
    with says(ValueError, 'n=', 'GiB', 'first='): sample(Tiny(6, 4), 'prism', 4, **kw)

def test_a_trace_that_does_not_fit():
    with says(ValueError, 'with a trace', 'GiB'): sample(Tiny(6, 4), 'prism', 10**6, n=10**5, trace=True)

@pytest.mark.parametrize('wrong, parts', [(lambda: Policy(reveal=policy('prism').reveal, predcit=1), ['predcit', "'predict'"]), (lambda: Policy(revael=1), ['revael', "'reveal'"]),
    (lambda: register(policies()['prism']), ['name first']), (lambda: register(''), ['name first']), (lambda: register('mine')(policy('prism')), ['mine', 'Policy', 'factory']), (lambda: register('mine')(3), ['mine', 'int', 'factory'])])
def test_what_is_no_policy_or_factory(wrong, parts):
    with says((KeyError, ValueError), *parts): wrong()
    assert 'mine' not in policies()

def test_a_factory_that_makes_no_policy(monkeypatch):
    monkeypatch.setattr(sampling, '_registry', dict(sampling._registry)); monkeypatch.setattr(sampling, '_about', dict(sampling._about))
    register('mine')(lambda p=.9: 3)
    with says(ValueError, "'mine'", 'int', 'a Policy'): sample(Tiny(6, 4), 'mine')

# ---- Precision

@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_low_precision_stays_inside_the_network(dtype):
    class Low(TinyPass):
        def logits(self, where): return super().logits(where).to(dtype)
        def _quality(self): return super()._quality().to(dtype)
    class LowModel(Tiny):
        def __call__(self, x): return Low(self, x)
    for name in ('prism', 'navira-piecewise', 'navira-onepass', 'mdlm', 'remdm-conf'):
        out = sample(LowModel(6, 4), name, 8, n=3, trace=True)
        assert (out.tokens < 4).all() and out.trace.score.dtype == out.trace.tau.dtype == torch.float32

# ---- What is returned

class Letters:
    "A tokenizer of characters"
    def decode(self, ids, **_): return ''.join(map(chr, ids))

def letters(*texts, **kw):
    most = max(map(len, texts))
    ids = torch.tensor([[*map(ord, t), *[-1] * (most - len(t))] for t in texts])
    return Samples(ids, torch.arange(len(texts)) + 41, 32, 64, 1.25, Letters(), **dict(policy='navira', charged=64) | kw)

def test_samples_are_their_texts():
    out = letters('one', 'three', 'seventeen')
    assert len(out) == 3 and list(out) == out.texts == ['one', 'three', 'seventeen'] and out[0] == 'one' and out[-1] == 'seventeen' and out[1:] == ['three', 'seventeen'] and 'three' in out
    with pytest.raises(IndexError): out[3]

def test_samples_show_texts_and_cost():
    assert repr(letters('one')) == '1 sample by navira: 41 forward passes run, 64 charged\n\n[0] one'
    shown = repr(letters(*map(str, range(12))))
    assert shown.startswith('12 samples by navira: 41 to 52 forward passes run, 64 charged each\n') and '[7] 7' in shown and '[8]' not in shown and '4 more' in shown
    assert str(letters('one')) == repr(letters('one')) and 'tokens' not in shown
    plain = repr(Samples(torch.tensor([[3, 4]]), torch.tensor([2]), 2, 2, 0.))
    assert '[3, 4]' in plain and '2 forward passes run, 2 charged' in plain

def test_a_run_says_what_was_charged():
    out = sample(Tiny(6, 4), 'navira-det', 65, n=2)
    assert out.charged == 64 and out.n_forward.max() < 64 and '64 charged' in repr(out)
    assert sample(Tiny(6, 4), 'prism', 65).charged == 65

@settings(max_examples=30)
@given(hs.text(max_size=40))
def test_a_text_controls_neither_terminal_nor_page(text):
    text = text or 'x'
    shown = repr(letters(text))
    assert not re.search('[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]', shown)
    shown.encode()
    page = letters(text)._repr_html_()
    assert re.sub(r'</?(p|ol start="0"|li style="white-space: pre-wrap"|/?ol|li)>', '', page).count('<') == 0

def test_escape_sequences_are_spelled_out(): assert '\\x1b[2J' in repr(letters('a\x1b[2Jb')) and '\x1b' not in letters('a\x1b[2Jb')._repr_html_() and '<b>' not in letters('<b>')._repr_html_()

# ---- Progress

class Slow(Tiny):
    def __call__(self, x):
        time.sleep(.008)
        return super().__call__(x)

class Terminal(io.StringIO):
    def isatty(self): return True

def watched(monkeypatch, stream, **kw):
    monkeypatch.setattr(sys, 'stderr', stream)
    monkeypatch.setattr(sampling, 'ProgressBar', lambda total, name: ProgressBar(total, name, wait=.05))
    monkeypatch.setenv('TERM', 'xterm')
    out = sample(Slow(40, 4), 'backbone', 20, n=4, batch_size=2, **kw)
    assert (out.tokens < 4).all()
    return stream.getvalue()

def test_a_terminal_gets_a_bar_that_goes(monkeypatch, two_threads):
    shown = watched(monkeypatch, Terminal())
    assert 'backbone' in shown and '/80' in shown and shown.endswith(('\x1b[2K', '\x1b[?25h', '\x1b[1A\x1b[2K'))

def test_nobody_looks_nothing_is_shown(monkeypatch):
    assert watched(monkeypatch, io.StringIO()) == '' and watched(monkeypatch, Terminal(), progress=False) == ''
    told = []
    assert watched(monkeypatch, Terminal(), progress=told.append) == '' and sum(told) == 80
    monkeypatch.setattr(sys, 'stderr', None)
    sample(Tiny(6, 4), 'prism', 4)

def test_a_bar_that_was_asked_for(monkeypatch):
    "is shown at once; where no terminal is, its last state stays, without control codes"
    monkeypatch.setenv('TERM', 'xterm')          # rich draws nothing in a dumb one
    for stream in (Terminal(), io.StringIO()):
        monkeypatch.setattr(sys, 'stderr', stream)
        sample(Tiny(6, 4), 'backbone', 4, n=4, progress=True)
        assert 'backbone' in stream.getvalue() and '16/16' in stream.getvalue()
        assert stream.isatty() == ('\x1b' in stream.getvalue())
    with pytest.raises(ValueError, match="progress='yes': expected None, True, False"): sample(Tiny(6, 4), 'backbone', 4, progress='yes')

def test_a_short_run_shows_none(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(sys, 'stderr', stream)
    sample(Tiny(6, 4), 'prism', 4, n=4)
    assert stream.getvalue() == ''

def test_a_notebook_keeps_nothing_of_the_bar(monkeypatch):
    ipython = pytest.importorskip('IPython')
    seen = []
    monkeypatch.setattr(ipython, 'get_ipython', lambda: SimpleNamespace(kernel=1))
    monkeypatch.setattr(ipython.display, 'display', lambda data, **_: (seen.append(data), SimpleNamespace(update=lambda data, **_: seen.append(data)))[1])
    assert watched(monkeypatch, io.StringIO()) == ''
    texts = [d['text/plain'] for d in seen]
    assert len(texts) > 2 and texts[0] == texts[-1] == '' and any('/80' in t for t in texts) and '\x1b' not in ''.join(texts)

def test_an_error_takes_the_bar_away(monkeypatch):
    class Breaks(Slow):
        def __call__(self, x):
            if len(self.rows) > 20: raise RuntimeError('broken')
            return super().__call__(x)
    stream, before = Terminal(), threading.active_count()
    monkeypatch.setattr(sys, 'stderr', stream); monkeypatch.setenv('TERM', 'xterm')
    monkeypatch.setattr(sampling, 'ProgressBar', lambda total, name: ProgressBar(total, name, wait=.05))
    with pytest.raises(RuntimeError, match='broken'): sample(Breaks(40, 4), 'backbone', 40)
    for _ in range(50):
        if threading.active_count() > before: time.sleep(.1)     # its own thread may be about to end
    assert '/40' in stream.getvalue() and threading.active_count() <= before

# ---- Help

PUBLIC = ['sample', 'fill', 'load', 'save', 'perplexity', 'entropy', 'register', 'policy', 'policies', 'Policy']

def test_these_are_all(): assert set(PUBLIC) == set(navira.__all__) - {'schedules'}

@pytest.mark.parametrize('name', PUBLIC + [n for n in policies()])
def test_help_has_every_parameter_and_what_it_is(name):
    f = getattr(navira, name) if name in PUBLIC else policies()[name]
    doc, said = ' '.join(f.__doc__.split()), comments(f)
    for k in inspect.signature(f).parameters:
        assert re.search(rf'^\**{k}( : |, default |$)', f.__doc__, re.M), k
        assert k in said and ' '.join(said[k].split()) in doc, k
    assert doc.count('Parameters ---') == (1 if inspect.signature(f).parameters else 0) and ' at 0x' not in doc
    assert documented(f).__doc__ == f.__doc__

@pytest.mark.parametrize('name', [n for n in PUBLIC if n != 'Policy'])
def test_the_site_has_them_too_and_once(name):
    from nbdev.showdoc import show_doc     # what a page of the site is made by
    f = getattr(navira, name)
    page = show_doc(f)._repr_markdown_()
    for k, p in inspect.signature(f).parameters.items():
        if p.kind is not p.VAR_KEYWORD: assert len(re.findall(rf'^ *{k}\b.*# {re.escape(comments(f)[k])}$', page, re.M)) == 1, k
    assert '----------' not in page

def test_comments_of_any_source(tmp_path, monkeypatch):
    (tmp_path/'mine.py').write_text('def f(a, b=3): # of both\n    "F."\ndef g(\n    a, # first: a # in it\n    *rest, # the rest\n    k=1,\n    **more # others\n) -> int: # so many\n    "G."\nh = lambda a: a\n')
    monkeypatch.syspath_prepend(tmp_path)
    import mine
    assert comments(mine.g) == {'a': 'first: a # in it', 'rest': 'the rest', 'more': 'others', 'return': 'so many'} and comments(mine.h) == {} and comments(len) == {}
    assert documented(mine.g).__doc__.startswith('G.\n\nParameters\n----------\na\n    first: a # in it\n*rest\n    the rest\nk, default 1\n**more\n    others\n\nReturns\n-------\nint\n    so many')

# ---- Files

def test_a_replay_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    out = sample(Tiny(6, 4), 'prism', 4, trace=True)
    page = sampling.replay(out.trace, lambda ids: str(ids))
    path = tmp_path/'replay.html'
    page.save(path)
    before, write = path.read_text(encoding='utf-8'), type(path).write_text
    def full(self, text, **kw):
        write(self, text[:len(text) // 2], **kw)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))
    monkeypatch.setattr(type(path), 'write_text', full)
    with says(OSError, 'replay'): page.save(path)
    assert path.read_text(encoding='utf-8') == before and [p.name for p in tmp_path.iterdir()] == ['replay.html']


def test_numbers_of_numpy_are_numbers():
    import numpy as np
    model = small_lm()
    a = navira.sample(model, 'prism', np.int64(6), np.int32(2), np.uint8(3), eta=np.float32(.25), n_remask=np.int64(1))
    assert torch.equal(a.tokens, navira.sample(model, 'prism', 6, 2, 3, eta=.25, n_remask=1).tokens)
    for wrong in (dict(budget=np.float32(2.5)), dict(n=np.bool_(True)), dict(seed=np.nan)):
        with pytest.raises(ValueError): navira.sample(model, 'prism', **wrong)

def test_a_method_may_be_a_factory():
    class Mine:
        def rule(self, p=.9): return backbone(p)
    from navira.sampling import _about, _registry, policies, register
    try:
        register('a-method')(Mine().rule)
        assert 'a-method' in policies() and navira.sample(small_lm(), 'a-method', 4).n_steps == 4
    finally: _registry.pop('a-method', None); _about.pop('a-method', None)
