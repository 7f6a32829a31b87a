"""`navira.sample`, `navira.fill` and what they return: prompts, blanks, mistakes, what is shown, help."""
import errno, math, os, re
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings, strategies as hs

import navira
import navira.registry as sampling_registry
from navira.diffusion import Forward
from navira.prism import prism
from navira.registry import policies, register
from navira.replay import replay
from navira.sampling import Samples, _encode, sample, start_ids
from helpers.sample_api import PUBLIC, embedded, says  # noqa: F401
from toys import Tiny, TinyForward, random_joint

# ---- Mistakes

class NoHead:
    "A model whose forwards have no qualities, or are something else"
    mask_id, length = 4, 6
    def __init__(self, gives=None): self.inner, self.gives, self.calls = Tiny(6, 4), gives, 0
    def __call__(self, x):
        self.calls += 1
        if self.gives is not None: return self.gives
        class Plain(Forward):
            def __init__(self, p): self.p, self.seen_masked = p, p.seen_masked
            def logits(self, where): return self.p.logits(where)
        return Plain(self.inner(x))

# ---- What is returned

class Letters:
    "A tokenizer of characters"
    def decode(self, ids, **_): return ''.join(map(chr, ids))

def letters(*texts, **kw):
    most = max(map(len, texts))
    ids = torch.tensor([[*map(ord, t), *[-1] * (most - len(t))] for t in texts])
    return Samples(
        ids, torch.arange(len(texts)) + 41, 32, 64, 1.25, Letters(), **dict(policy='navira', charged=64) | kw
    )

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
@given(
    hs.lists(hs.lists(hs.integers(0, 4), min_size=1, max_size=6), min_size=1, max_size=5),
    hs.integers(0, 9),
    hs.sampled_from([None, 1, 2]),
)
def test_rows_of_ids_may_differ_in_length(rows, seed, batch_size):
    # 4 is the mask: something is left to write
    rows = [r[:5] + [4] if 4 not in r and len(r) == 6 else r for r in rows]
    out = sample(Tiny(6, 4), 'navira-det', 8, prompt=rows, seed=seed, batch_size=batch_size, eta=.4, on=0.)
    for i, r in enumerate(rows):
        assert all(v in (4, w) for v, w in zip(r, out.tokens[i].tolist())) and 4 not in out.tokens[i]
        assert torch.equal(
            sample(Tiny(6, 4), 'navira-det', 8, prompt=r, seed=seed, first=i, eta=0.4, on=0.0).tokens[0], out.tokens[i]
        )

@pytest.mark.parametrize(
    'given', [[[0, 1], [2]], [torch.tensor([0, 1]), torch.tensor([2])], (torch.tensor([0, 1]).numpy(), [2])]
)
def test_rows_of_any_kind(given): assert start_ids(Tiny(3, 4), prompt=given).tolist() == [[0, 1, 4], [2, 4, 4]]

@pytest.mark.parametrize(
    'prompt, shown',
    [
        ([], 'list'),
        ([[]], 'list'),
        ([[0, 1], []], 'list'),
        ([[0], 'a'], 'list'),
        (['a', 3], 'list'),
        ([0.5], 'list'),
        ([[0.5], [1, 2]], 'list'),
        ([True], 'list'),
        ([2**70], 'list'),
        ({}, 'dict'),
        (3, 'int'),
        (torch.zeros(1, 1, 1, dtype=torch.long), 'Tensor'),
        (object(), 'object'),
    ],
)
def test_what_is_no_prompt(prompt, shown):
    with says(ValueError, f'prompt: {shown}', 'expected a text'): sample(Tiny(6, 4), 'prism', 4, prompt=prompt)

def test_n_and_prompts():
    model = Tiny(6, 4)
    assert len(sample(model, 'prism', 4)) == 1 and len(sample(model, 'prism', 4, prompt=[0, 1])) == 1
    assert len(sample(model, 'prism', 4, n=3, prompt=[0, 1])) == 3
    assert len(sample(model, 'prism', 4, n=2, prompt=[[0], [1, 2]])) == 2
    for n in (1, 3, 4):
        with says(ValueError, '2 prompts', f'n={n}', 'leave n out'):
            sample(model, 'prism', 4, n=n, prompt=[[0], [1, 2]])

@pytest.fixture(scope='module', params=['bert', 'roberta'])
def encoder(request): return navira.load(request.config.rootpath / 'tests' / 'golden' / request.param)

@pytest.mark.parametrize('how', [dict(length=10), {}, dict(max_new_tokens=4)])
def test_a_beginning_does_not_end(encoder, how):
    "Where masks follow a text, nothing that a tokenizer puts after a whole text stands between."
    x = start_ids(encoder, prompt=['the man', 'the'], **how)
    for row, text in zip(x, ['the man', 'the']):
        given = row[(row >= 0) & (row != encoder.mask_id)].tolist()
        whole = encoder.tokenizer.encode(text)
        assert whole.special_tokens_mask[0] and whole.special_tokens_mask[-1] and given == whole.ids[:-1]

FAMILIES = ['llada', 'bert', 'dream', 'proseco', 'diffugpt', None]     # dream and diffugpt are shifted

@pytest.mark.parametrize('how', [dict(max_new_tokens=4), dict(length=5), {}])
@pytest.mark.parametrize('name', FAMILIES)
def test_an_empty_prompt_is_a_text_from_nothing(pytestconfig, name, how):
    "After what the tokenizer puts before a text, and beside others."
    model = navira.load(name and pytestconfig.rootpath / 'tests' / 'golden' / name)
    lead = model.tokenizer.encode('').ids[:-1]     # [CLS], without the [SEP]
    for prompt in ('', ['', 'the']):
        x = start_ids(model, prompt=prompt, **how)
        assert x[0, :len(lead)].tolist() == lead and set(x[0, len(lead):].tolist()) <= {model.mask_id, -1}
        out = sample(model, 'mdlm', 4, prompt=prompt, eos='keep', **how)
        assert out.tokens.shape == x.shape and (out.tokens != model.mask_id).all()

def test_special_tokens_round_a_prompt_are_not_of_the_text(encoder):
    "Those that a user typed are, and so are those that the model wrote."
    cls, sep = encoder.tokenizer.encode('').tokens
    seen, blank = [], encoder.tokenizer.id_to_token(encoder.mask_id)
    how = dict(eos='keep', stream=seen.append)
    for prompt, kw in (('the [MASK*2] man', {}), (['the [MASK*2] man', 'man [MASK*3] the'], {}),
                       ('the', dict(max_new_tokens=2)), (f'the {blank} man {sep}', {})):
        seen.clear()
        out = sample(encoder, 'backbone', 2, prompt=prompt, **how, **kw)
        assert (out.tokens[:, 0] == encoder.tokenizer.token_to_id(cls)).all()
        for text, ids in zip(out, out.tokens.tolist()):
            ids = [i for i in ids if i >= 0][1:]
            if not kw: assert ids.pop() == encoder.tokenizer.token_to_id(sep)
            assert text == encoder.tokenizer.decode(ids, skip_special_tokens=False)
        last = {p.sample: str(p) for p in seen}
        assert [last[i] for i in range(len(out))] == out.texts == out[:] and repr(out[0])[1:-1] in repr(out)
    assert out[0].startswith('the') and out[0].endswith(sep) and not out[0].endswith(sep + sep)
    ids = encoder.tokenizer.encode('the').ids
    assert sample(encoder, 'backbone', 2, prompt=ids, length=5)[0].startswith(cls)

def test_a_text_with_blanks_keeps_its_end(encoder):
    for text in ('the [MASK*2] man', 'the man [MASK*2]'):
        assert start_ids(encoder, prompt=text)[0, -1] == encoder.tokenizer.encode('the').ids[-1]
    x = start_ids(encoder, prompt='the man [MASK*2]', max_new_tokens=3)[0]
    assert (x[-5:] == encoder.mask_id).all() and x[-6] == encoder.tokenizer.encode('man').ids[-2]

def test_half_a_character_is_no_text(embedded):
    with says(ValueError, 'prompt', 'at character 2'): sample(embedded, 'prism', 4, prompt='ab\ud800')

# ---- Blanks

@pytest.mark.parametrize('odd', ['[MASK*-1]', '[MASK*x]', '[MASK*10000000000]', '[MASK*0]', '[MASK*65]', '[MASK*]'])
def test_a_blank_that_is_none_is_named(pytestconfig, odd):
    "At once, and with the right form."
    model = navira.load(pytestconfig.rootpath / 'tests' / 'golden' / 'llada')
    for call in (navira.sample, lambda model, prompt: navira.fill(prompt, model=model)):
        with says(ValueError, odd, '64', '[MASK*12]'): call(model, prompt=f'the {odd} man')

@pytest.mark.parametrize('name', ['llada', 'bert', None])
def test_one_blank_is_written_alike_for_all_models(pytestconfig, name):
    model = navira.load(name and pytestconfig.rootpath / 'tests' / 'golden' / name)
    a, b = (start_ids(model, prompt=f'the {blank} man') for blank in ('[MASK]', '[MASK*1]'))
    assert a.equal(b) and (a == model.mask_id).sum() == 1

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
    texts = [
        'The <|mask|> and<|mask|><|mask|> went',
        'A <|mask|>.',
        'It was',
        'One <|mask|><|mask|> of us <|mask|><|mask|> it.',
    ]
    for batch_size in (None, 1, 3):
        out = sample(embedded, 'navira-det', 8, prompt=texts, seed=5, eta=.3, on=0., batch_size=batch_size)
        assert out.tokens.shape == (4, embedded.length)
        assert ((out.tokens < 0).sum(1) > 0).tolist() == [True, True, False, True]
        for i in (0, 1, 3):
            alone = sample(embedded, 'navira-det', 8, prompt=texts[i], seed=5, first=i, eta=.3, on=0.)
            assert alone[0] == out[i] and torch.equal(alone.tokens[0], out.tokens[i][out.tokens[i] >= 0])
            assert alone.n_forward[0] == out.n_forward[i]
    with says(ValueError, 'trace=True', 'one length'): sample(embedded, 'prism', 8, prompt=texts[:2], trace=True)

@pytest.mark.parametrize(
    'model, parts',
    [
        ('embedded', ["'embedded'", 'navira.load()']),
        ('runs/mine', ["navira.load('runs/mine')"]),
        (None, ['NoneType', 'no mask_id', 'navira.load']),
        (3, ['int', 'navira.load']),
        (SimpleNamespace(mask_id=3, length=4), ['__call__']),
        (Tiny, ['Tiny', 'is a class' if hasattr(Tiny, 'mask_id') else 'no mask_id']),
        (lambda x: x, ['no mask_id and no length', 'Forward']),
        (SimpleNamespace(__call__=1), ['no mask_id and no length']),
    ],
)
def test_what_is_no_model(model, parts):
    with says(ValueError, 'model', *parts): sample(model)

def test_a_model_of_transformers_is_told_what_to_be():
    bert = type('BertForMaskedLM', (torch.nn.Linear,), dict(__module__='transformers.models.bert.modeling_bert'))(2, 2)
    with says(ValueError, 'BertForMaskedLM', 'no mask_id and no length', 'Forward', 'transformers'): sample(bert)

def test_without_a_named_policy_the_model_chooses(pytestconfig, embedded):
    model = navira.load(pytestconfig.rootpath / 'tests' / 'golden' / 'llada')
    assert sample(model, budget=4, length=8).policy == 'llada-low-confidence'
    assert navira.fill('the ___', model=model).policy == 'llada-low-confidence'
    assert sample(embedded, budget=4, length=8).policy == navira.fill('the ___').policy == (
        'remdm-cap, top_p=0.5')
    assert 'top_p=0.9' in sample(embedded, budget=4, length=8, top_p=.9).policy
    parts = 'navira finetune --model FOLDER --lora 16', 'load(head=) or --head', 'llada-low-confidence'
    with says(ValueError, *parts): sample(model, 'prism', 4)

def test_what_stream_gets_is_said():
    assert all(f'`{name}`' in sample.__doc__ for name in ('Partial', 'sample', 'ids', 'settled'))

def test_a_model_without_a_head():
    model = NoHead()
    assert len(sample(model, 'backbone', 4)) == 1
    for name in ('prism', 'navira-piecewise'):
        model = NoHead()
        with says(ValueError, 'quality head', 'navira finetune'): sample(model, name, 64)
        assert model.calls == 1
    with says(ValueError, 'model', 'gave Tensor', 'Forward'): sample(NoHead(torch.zeros(1, 6, 5)), 'backbone', 4)

@pytest.mark.parametrize(
    'parts, kw',
    [
        (['bugdet', "'budget'"], dict(bugdet=3)),
        (['prompts', "'prompt'"], dict(prompts='a')),
        (['batchsize', "'batch_size'"], dict(batchsize=3)),
        (['lenght', "'length'"], dict(lenght=3)),
        (["'tau'", "'tau_min', 'tau_mid' or 'tau_max'"], dict(policy='navira-piecewise', tau=0.1)),
        (["'tau'", "'tau_min' or 'tau_max'"], dict(policy='navira-quadratic', tau=0.1)),
        (['tau_lo', 'tau_'], dict(policy='navira-piecewise', tau_lo=0.1)),
        (['zzzz', 'eta', 'budget'], dict(zzzz=1)),
        (['bugdet', "'budget'"], dict(policy=navira.policy('prism'), bugdet=3)),
        (['eta', 'has them already'], dict(policy=navira.policy('prism'), eta=0.1)),
        (['policy=3', "'prism'"], dict(policy=3)),
        (['policy=', 'would give when called'], dict(policy=policies()['prism'])),
        (["progress='yes'"], dict(progress='yes')),
    ],
)
def test_a_keyword_that_is_none(parts, kw):
    model = Tiny(6, 4)
    with says((KeyError, ValueError), *parts): sample(model, **kw)
    assert not model.rows

def test_seeds_that_would_be_one_are_refused():
    sample(Tiny(6, 4), 'prism', 4, seed=2**63 - 1); sample(Tiny(6, 4), 'prism', 4, seed=-2**63)
    with says(ValueError, 'first='): sample(Tiny(6, 4), 'prism', 4, n=2, first=2**63 - 1)

@pytest.mark.parametrize('kw', [dict(n=10**12), dict(n=1e12, prompt=[0, 1]), dict(n=2**62), dict(n=10**12, trace=True)])
def test_what_does_not_fit_into_memory_is_a_sentence(kw):
    with says(ValueError, 'n=', 'GiB', 'first='): sample(Tiny(6, 4), 'prism', 4, **kw)

def test_a_trace_that_does_not_fit():
    with says(ValueError, 'with a trace', 'GiB'): sample(Tiny(6, 4), 'prism', 10**6, n=10**5, trace=True)

def test_a_factory_that_makes_no_policy(monkeypatch):
    names = dict(sampling_registry._registry)
    for room in ('navira.registry', 'navira.sampling'): monkeypatch.setattr(f'{room}._registry', names)
    monkeypatch.setattr('navira.registry._about', dict(sampling_registry._about))
    register('mine')(lambda top_p=.9: 3)
    with says(ValueError, "'mine'", 'int', 'a Policy'): sample(Tiny(6, 4), 'mine')

# ---- Precision

@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_low_precision_stays_inside_the_network(dtype):
    class Low(TinyForward):
        def logits(self, where): return super().logits(where).to(dtype)
        def _quality(self): return super()._quality().to(dtype)
    class LowModel(Tiny):
        def __call__(self, x): return Low(self, x)
    for name in ('prism', 'navira-piecewise', 'navira-onepass', 'mdlm', 'remdm-conf'):
        out = sample(LowModel(6, 4), name, 8, n=3, trace=True)
        assert (out.tokens < 4).all() and out.trace.score.dtype == out.trace.tau.dtype == torch.float32

def test_samples_are_their_texts():
    out = letters('one', 'three', 'seventeen')
    assert len(out) == 3 and list(out) == out.texts == ['one', 'three', 'seventeen'] and out[0] == 'one'
    assert out[-1] == 'seventeen' and out[1:] == ['three', 'seventeen'] and 'three' in out
    with pytest.raises(IndexError): out[3]

def test_samples_show_texts_and_cost():
    assert repr(letters('one')) == '1 sample by navira: 41 forward passes run, 64 charged\n\n[0] one'
    shown = repr(letters(*map(str, range(12))))
    assert shown.startswith('12 samples by navira: 41 to 52 forward passes run, 64 charged each\n')
    assert '[7] 7' in shown and '[8]' not in shown and '4 more' in shown
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

def test_escape_sequences_are_spelled_out():
    assert (
        '\\x1b[2J' in repr(letters('a\x1b[2Jb'))
        and '\x1b' not in letters('a\x1b[2Jb')._repr_html_()
        and '<b>' not in letters('<b>')._repr_html_()
    )

def test_these_are_all(): assert set(PUBLIC) == set(navira.__all__) - {'schedules'}

# ---- Files

def test_a_replay_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    out = sample(Tiny(6, 4), 'prism', 4, trace=True)
    page = replay(out.trace, lambda ids: str(ids))
    path = tmp_path/'replay.html'
    page.save(path)
    before, write = path.read_text(encoding='utf-8'), type(path).write_text
    def full(self, text, **kw):
        write(self, text[:len(text) // 2], **kw)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))
    monkeypatch.setattr(type(path), 'write_text', full)
    with says(OSError, 'replay'): page.save(path)
    assert path.read_text(encoding='utf-8') == before and [p.name for p in tmp_path.iterdir()] == ['replay.html']

# ---- Batches side by side

@pytest.mark.parametrize('batch_size', [1, 3, 8])
def test_the_number_of_threads_changes_no_sample(batch_size):
    model, n = random_joint(4, 3), torch.get_num_threads()
    try:
        outs = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            seen = []
            outs.append(
                sample(model, 'navira', 6, 7, batch_size=batch_size, trace=True, on=0.0, eta=0.4, progress=seen.append)
            )
            assert sum(seen) == 7 * outs[-1].n_steps and max(seen) <= batch_size
    finally: torch.set_num_threads(n)
    for o in outs[1:]:
        assert torch.equal(o.tokens, outs[0].tokens) and torch.equal(o.n_forward, outs[0].n_forward)
        assert torch.equal(o.trace.x, outs[0].trace.x)
        assert torch.equal(o.trace.score.nan_to_num(9.), outs[0].trace.score.nan_to_num(9.))

# ---- Bad input

@pytest.mark.parametrize(
    'error, parts, kw',
    [
        (KeyError, ['navria', "'navira'"], dict(policy='navria')),
        (KeyError, ['PRISM'], dict(policy='PRISM')),
        (KeyError, ['xyz', 'expected one of', 'navira-det'], dict(policy='xyz')),
        (KeyError, ['tau_mi', "'tau_min'"], dict(tau_mi=0.1)),
        (KeyError, ['etaa', "'eta'"], dict(policy='prism', etaa=0.1)),
        (KeyError, ['tau'], dict(policy='prism', tau=0.1)),
        (KeyError, ['tau'], dict(tau=0.1)),
        (KeyError, ['eta'], dict(policy='backbone', eta=0.1)),
        (ValueError, ['budget=1', 'two-pass', '2'], dict(budget=1)),
        (ValueError, ['budget=0', '1'], dict(policy='prism', budget=0)),
        (ValueError, ['budget=-4'], dict(budget=-4)),
        (ValueError, ['budget=7.5', 'whole number'], dict(budget=7.5)),
        (ValueError, ['budget=nan'], dict(budget=math.nan)),
        (ValueError, ['budget=inf'], dict(budget=math.inf)),
        (ValueError, ['n=0'], dict(n=0)),
        (ValueError, ['n=-3'], dict(n=-3)),
        (ValueError, ['n=1.5'], dict(n=1.5)),
        (ValueError, ['length=0', '6'], dict(length=0)),
        (ValueError, ['length=7', '6'], dict(length=7)),
        (ValueError, ['length=2.5'], dict(length=2.5)),
        (ValueError, ['batch_size=0'], dict(batch_size=0)),
        (ValueError, ['batch_size=-1'], dict(batch_size=-1)),
        (ValueError, ['batch_size=1.5'], dict(batch_size=1.5)),
        (ValueError, ['tau_min=-0.1'], dict(tau_min=-0.1)),
        (ValueError, ['tau_max=inf'], dict(tau_max=math.inf)),
        (ValueError, ['tau_mid=nan'], dict(tau_mid=math.nan)),
        (ValueError, ['tau_min=0.6', 'tau_mid=0.2'], dict(tau_min=0.6)),
        (ValueError, ['p1=0.8', 'p2=0.75'], dict(p1=0.8)),
        (ValueError, ['p2=1'], dict(p2=1.0)),
        (ValueError, ['tau_min=0.3', 'tau_max=0.2'], dict(policy='navira-sigmoid', tau_min=0.3, tau_max=0.2)),
        (ValueError, ['k=-1'], dict(policy='navira-sigmoid', k=-1.0)),
        (ValueError, ['c=1.5'], dict(policy='navira-sigmoid', c=1.5)),
        (ValueError, ['h=1'], dict(policy='navira-quadratic', h=1.0)),
        (ValueError, ['tau', '-0.5'], dict(policy='navira', tau=-0.5)),
        (ValueError, ['tau', 'nan'], dict(policy='navira', tau=math.nan)),
        (ValueError, ['tau', 'inf'], dict(policy='prism-stochastic', tau=math.inf)),
        (ValueError, ['eta=1.1'], dict(eta=1.1)),
        (ValueError, ['eta=-0.1'], dict(policy='prism', eta=-0.1)),
        (ValueError, ['eta=nan'], dict(eta=math.nan)),
        (ValueError, ['on=0.9', 'off=0.5'], dict(on=0.9, off=0.5)),
        (ValueError, ['on=-0.1'], dict(on=-0.1)),
        (ValueError, ['off=1.5'], dict(off=1.5)),
        (ValueError, ['on=nan'], dict(on=math.nan)),
        (ValueError, ['top_p=0'], dict(top_p=0.0)),
        (ValueError, ['top_p=1.5'], dict(top_p=1.5)),
        (ValueError, ['top_p=-1'], dict(policy='backbone', top_p=-1.0)),
        (ValueError, ['top_p=nan'], dict(top_p=math.nan)),
        (KeyError, ['logits', "'logit'"], dict(score='logits')),
        (ValueError, ['prompt', '9 tokens', '6'], dict(prompt=torch.zeros(9, dtype=torch.long))),
        (ValueError, ['prompt', '2 prompts', 'n=3'], dict(n=3, prompt=torch.full((2, 6), 4))),
        (ValueError, ['prompt', '0..4', '9'], dict(prompt=torch.tensor([9]))),
        (ValueError, ['prompt', '-1'], dict(prompt=torch.tensor([-1]))),
        (ValueError, ['prompt', '6 given', 'nothing left'], dict(prompt=torch.zeros(6, dtype=torch.long))),
        (ValueError, ['prompt', 'tokenizer'], dict(prompt='abc')),
    ],
)
def test_bad_input_is_named_before_any_work(error, parts, kw):
    model = Tiny(6, 4)
    with says(error, *parts): sample(model, **{'policy': 'navira-piecewise', 'budget': 8, **kw})
    assert not model.rows

def test_a_policy_has_its_hyper_parameters_already():
    with says(ValueError, 'eta'): sample(Tiny(6, 4), prism(), 4, eta=.1)

# ---- Blocks, new tokens, the end of a text

class Ends(Tiny):
    "A small model with tokens that end a text."
    eos_ids = (0,)
    def suppressing(self, ids):
        return Never(self, ids)

class Never:
    def __init__(self, inner, ids): self.inner, self.ids = inner, list(ids)
    def __getattr__(self, k): return getattr(self.inner, k)
    def __call__(self, x):
        p, ids = self.inner(x), self.ids
        class Without(Forward):
            seen_masked = p.seen_masked
            def logits(self, where):
                out = p.logits(where).clone(); out[:, ids] = -torch.inf
                return out
            def _quality(self): return p.quality()
        return Without()

NAMES = sorted(n for n, f in policies().items() if 'critic' not in sampling_registry.parameters(f))

@pytest.mark.parametrize('name', NAMES)
def test_every_policy_writes_in_blocks_from_left_to_right(name):
    model = Tiny(12, 5)
    hyper = dict(eta=.1) if 'eta' in sampling_registry.parameters(policies()[name]) else {}
    seen = []
    out = sample(model, policy_of(name, **hyper), 24, n=3, prompt=torch.tensor([1, 2]), max_new_tokens=9,
                 block_length=4, seed=2, stream=seen.append, batch_size=3)
    assert out.tokens.shape == (3, 11) and (out.tokens != model.mask_id).all() and (out.n_forward <= 24).all()
    for p in seen:
        masks = [i for i, v in enumerate(p.ids) if v == model.mask_id]
        begun = [b for b in range(3) if any(v != model.mask_id for v in p.ids[2 + 4 * b:6 + 4 * b])]
        assert not masks or max(begun, default=0) <= (masks[0] - 2) // 4, p.ids
    for sample_id in range(3):
        mine = [p for p in seen if p.sample == sample_id]
        for a, b in zip(mine, mine[1:]): assert a.settled <= b.settled and a.ids[:a.settled] == b.ids[:a.settled]
        assert mine[-1].settled == 11 and mine[-1].ids == out.tokens[sample_id].tolist()

@pytest.mark.parametrize('name', ['backbone', 'prism', 'navira-piecewise', 'remdm-cap'])
def test_one_block_is_no_block(name):
    model, how = Tiny(12, 5), dict(n=4, length=9, seed=1)
    a, b = sample(model, name, 16, **how), sample(model, name, 16, block_length=9, **how)
    assert torch.equal(a.tokens, b.tokens) and torch.equal(a.n_forward, b.n_forward) and a.n_steps == b.n_steps

def test_blocks_of_one_are_left_to_right_and_exact():
    "A token a pass in a fixed order, with exact conditionals: the joint."
    from toys import chi2, counted
    joint = random_joint(3, 3)
    out = sample(joint, 'backbone', 3, n=20_000, block_length=1, top_p=1., batch_size=20_000)
    texts = map(tuple, torch.cartesian_prod(*[torch.arange(3)] * 3).tolist())
    probs = {x: float(joint.joint[x]) for x in texts}
    assert chi2(counted(out.tokens), probs) > 1e-3
    swapped = {x[::-1]: p for x, p in probs.items()}
    assert chi2(counted(out.tokens), swapped) < 1e-6

@settings(max_examples=20)
@given(hs.integers(1, 12), hs.integers(1, 12), hs.integers(2, 40), hs.sampled_from(['prism', 'navira-det', 'mdlm']))
def test_the_budget_is_shared_out(new, length, budget, name):
    model, blocks = Tiny(12, 5), -(-new // length)
    passes = 2 if name == 'navira-det' else 1
    if budget < blocks * passes:
        with pytest.raises(ValueError, match='blocks of'):
            sample(model, name, budget, max_new_tokens=new, block_length=length)
        return
    out = sample(model, name, budget, max_new_tokens=new, block_length=length)
    assert out.n_steps == budget // passes and out.n_forward.max() <= budget

def test_a_policy_that_works_in_blocks_itself_is_told_their_length():
    model = Tiny(12, 5)
    own = sample(model, 'llada-low-confidence', 12, n=2, length=12, block_length=4)
    assert own.policy == 'llada-low-confidence, block_length=4'
    same = sample(model, policy_of('llada-low-confidence', block_length=4), 12, n=2, length=12)
    assert torch.equal(own.tokens, same.tokens)

def policy_of(name, **hyper): return sampling_registry.policy(name, **hyper)

def test_a_text_is_cut_at_its_end():
    model = Ends(12, 5)
    kept, cut = (sample(model, 'prism', 8, n=32, length=12, seed=4, eos=eos).tokens for eos in ('keep', 'cut'))
    for a, b in zip(kept.tolist(), cut.tolist()):
        end = a.index(0) + 1 if 0 in a else 12
        assert b == a[:end] + [-1] * (12 - end)
    assert (cut == -1).any()
    never = sample(model, 'prism', 8, n=32, length=12, seed=4, eos='suppress').tokens
    assert (never > 0).all()
    given = sample(model, 'prism', 8, n=8, prompt=torch.tensor([0, 5, 5, 5, 2]), length=5).tokens       # in the middle
    assert (given >= 0).all()
    with says(ValueError, "eos='suppress'", 'names no token'): sample(Tiny(6, 4), 'prism', 8, eos='suppress')
    with says(KeyError, 'eos', "'cut'"): sample(model, 'prism', 8, eos='cutt')

# greedily, no text of this model ends
LESS_GREEDY = {'llada2-edit': dict(temperature=1.), 't2m': dict(temperature=1.), 'proseco': dict(n_correct=1, every=12)}

@pytest.mark.parametrize('block_length', [None, 3])
@pytest.mark.parametrize('name', NAMES)
def test_what_follows_the_end_is_neither_streamed_nor_traced(name, block_length, one_thread):
    "Whatever the policy remasks: a settled token stays, and in the end text, stream and trace are the same."
    seen = []
    rule = policy_of(name, **LESS_GREEDY.get(name, {}))
    out = sample(Ends(12, 5), rule, 24, n=12, length=12, seed=4, block_length=block_length, trace=True,
                 stream=seen.append)
    assert (out.tokens == -1).any() and torch.equal(out.trace.x[-1].long(), out.tokens)
    for row, tokens in enumerate(out.tokens):
        text, mine = tokens[tokens >= 0].tolist(), [p for p in seen if p.sample == row]
        assert all(p.ids[:p.settled] == text[:p.settled] for p in mine)
        assert mine[-1].ids == text and mine[-1].settled == len(text)

@pytest.mark.parametrize('name, how', [('backbone', {}), ('remdm-conf', dict(block_length=3)), ('mdlm', {})])
def test_a_text_that_has_ended_takes_part_in_no_further_pass(name, how, one_thread):
    model, rows = Ends(12, 5), []
    inner = Tiny.__call__
    class Counting(Ends):
        def __call__(self, x): rows.append(len(x)); return inner(self, x)
    out = sample(Counting(12, 5), name, 12, n=24, length=12, seed=4, batch_size=24, **how)
    full = sample(model, name, 12, n=24, length=12, seed=4, batch_size=24, eos='keep', **how)
    ended = (out.tokens == -1).any(1)
    assert ended.any() and sum(rows) == out.n_forward.sum()
    assert (out.n_forward[ended] < full.n_forward[ended]).any() and (out.n_forward <= full.n_forward).all()

def test_new_tokens(embedded):
    texts = ['The man', 'It was a dark and stormy night when', 'She']
    out = sample(embedded, 'prism', 8, prompt=texts, max_new_tokens=6, seed=3, eta=.3, on=0.)
    lengths = (out.tokens >= 0).sum(1)
    assert (lengths - out.given == 6).all() and out.tokens.shape[1] == lengths.max()
    for i, text in enumerate(texts):
        assert out[i] == text + out.new_texts[i]
        alone = sample(embedded, 'prism', 8, prompt=text, max_new_tokens=6, seed=3, first=i, eta=.3, on=0.)
        assert alone.new_texts[0] == out.new_texts[i]
    several = sample(embedded, 'prism', 8, n=3, prompt='The man', max_new_tokens=6)
    assert len(several) == 3 and all(t.startswith('The man') for t in several)
    assert sample(embedded, 'prism', 8, max_new_tokens=6).tokens.shape == (1, 6)
    with says(ValueError, 'length=20', 'max_new_tokens=6'): sample(embedded, 'prism', 8, length=20, max_new_tokens=6)
    with says(ValueError, 'max_new_tokens=0'): sample(embedded, 'prism', 8, max_new_tokens=0)
    with says(ValueError, 'prompt 1', '120 new'): sample(embedded, 'prism', 8, prompt=texts, max_new_tokens=120)

def test_blanks_by_their_number(embedded):
    ids = _encode(embedded, ['The [MASK*3] of<|mask|> it'])[0]
    assert ids.tolist() == _encode(embedded, ['The<|mask|><|mask|><|mask|> of<|mask|> it'])[0].tolist()
    out = sample(embedded, 'prism', 8, prompt='The [MASK*3] of it')
    assert out.tokens.shape[1] == len(_encode(embedded, ['The [MASK*3] of it'])[0]) and out[0].endswith('of it')
    with says(ValueError, 'MASK*', '128'): sample(embedded, 'prism', 8, prompt='The [MASK*300] of it')
    with says(ValueError, 'MASK*'): sample(embedded, 'prism', 8, prompt='The [MASK*0] of it')
