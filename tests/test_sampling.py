"The loop: what every run keeps, blocks, the end of a text, and what may be asked for."

import copy

import pytest
import torch
from hypothesis import given, settings, strategies as hs

import navira
from navira.base.noise import Noise
from navira.diffusion import Forward
from navira.prism import prism
from navira.registry import parameters, policies, policy
from navira.sampling import sample, states
from helpers.peers import KINDS
from helpers.sample_api import embedded, says  # noqa: F401
from toys import chi2, counted, random_joint, Tiny, TinyForward

MASK = 5
NAMES = sorted(n for n, f in policies().items() if 'critic' not in parameters(f))
OFTEN = dict(eta=0.4, on=0.0)

# ---- A sample is its own


def test_a_run_is_its_states():
    model, rows = Tiny(6, MASK), torch.arange(3)
    x = torch.full((3, 6), MASK)
    for name in ('backbone', 'navira-det', 'remdm-conf'):
        *_, last = states(policy(name), model, x, 4, Noise(7, rows))
        out = sample(model, name, 4 * policy(name).passes, 3, seed=7)
        assert torch.equal(last.x, out.tokens) and torch.equal(last.n_forward, out.n_forward)


@settings(max_examples=12)
@given(
    hs.lists(hs.lists(hs.integers(0, MASK), min_size=1, max_size=5), min_size=1, max_size=5),
    hs.integers(0, 9),
    hs.sampled_from([None, 1, 2]),
    hs.sampled_from(['prism', 'navira-det']),
)
def test_a_sample_is_what_it_is_alone(rows, seed, batch_size, name):
    model = Tiny(6, MASK)
    out = sample(model, name, 8, prompt=rows, seed=seed, batch_size=batch_size, **OFTEN)
    for i, r in enumerate(rows):
        assert (
            all(v in (MASK, w) for v, w in zip(r, out.tokens[i].tolist()))
            and MASK not in out.tokens[i]
        )
        alone = sample(model, name, 8, range(i, i + 1), prompt=r, seed=seed, **OFTEN)
        assert (
            torch.equal(alone.tokens[0], out.tokens[i]) and alone.n_forward[0] == out.n_forward[i]
        )


def test_texts_of_several_lengths_are_what_they_are_alone(embedded):
    texts = [
        'The <|mask|> and<|mask|><|mask|> went',
        'A <|mask|>.',
        'It was',
        'One <|mask|><|mask|> of us <|mask|><|mask|> it.',
    ]
    for batch_size in (None, 3):
        out = sample(
            embedded, 'navira-det', 8, prompt=texts, seed=5, batch_size=batch_size, **OFTEN
        )
        assert ((out.tokens < 0).sum(1) > 0).tolist() == [True, True, False, True]
        for i in (0, 1, 3):
            alone = sample(
                embedded, 'navira-det', 8, range(i, i + 1), prompt=texts[i], seed=5, **OFTEN
            )
            assert alone[0] == out[i] and alone.n_forward[0] == out.n_forward[i]
    with says(ValueError, 'trace=True', 'one length'):
        sample(embedded, 'prism', 8, prompt=texts[:2], trace=True)


@pytest.mark.parametrize('batch_size', [1, 3, 8])
def test_the_number_of_threads_changes_no_sample(batch_size):
    model, n, outs = random_joint(4, 3), torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            outs.append(sample(model, 'navira', 6, 7, batch_size=batch_size, trace=True, **OFTEN))
    finally:
        torch.set_num_threads(n)
    for o in outs[1:]:
        assert torch.equal(o.n_forward, outs[0].n_forward)
        assert torch.equal(o.trace.x, outs[0].trace.x)
        assert torch.equal(o.trace.score.nan_to_num(9.0), outs[0].trace.score.nan_to_num(9.0))


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16, torch.float64])
def test_low_precision_stays_inside_the_network(dtype):
    class Low(TinyForward):
        def logits(self, where):
            return super().logits(where).to(dtype)

        def _quality(self):
            return super()._quality().to(dtype)

    class LowModel(Tiny):
        def __call__(self, x):
            return Low(self, x)

    for name in ('prism', 'navira-piecewise', 'navira-onepass', 'mdlm', 'remdm-conf'):
        out = sample(LowModel(6, 4), name, 8, n=3, trace=True)
        assert (
            out.tokens < 4
        ).all() and out.trace.score.dtype == out.trace.tau.dtype == torch.float32


# ---- Blocks


@pytest.mark.parametrize('name', NAMES)
def test_every_policy_writes_in_blocks_from_left_to_right(name):
    model, seen = Tiny(12, MASK), []
    hyper = dict(eta=0.1) if 'eta' in parameters(policies()[name]) else {}
    out = sample(
        model,
        policy(name, **hyper),
        24,
        n=3,
        prompt=torch.tensor([1, 2]),
        max_new_tokens=9,
        block_length=4,
        seed=2,
        progress=seen.extend,
        batch_size=3,
    )
    assert out.tokens.shape == (3, 11) and (out.tokens != MASK).all()
    # one that edits has passes over blocks that are full
    assert name == 'block-refinement' or (out.n_forward <= 24).all()
    for p in seen:
        masks = [i for i, v in enumerate(p.ids) if v == MASK]
        begun = [b for b in range(3) if any(v != MASK for v in p.ids[2 + 4 * b : 6 + 4 * b])]
        assert not masks or max(begun, default=0) <= (masks[0] - 2) // 4, p.ids


@pytest.mark.parametrize('name', ['backbone', 'prism', 'navira-piecewise', 'remdm-cap'])
def test_one_block_is_no_block(name):
    model, how = Tiny(12, MASK), dict(n=4, length=9, seed=1)
    a, b = sample(model, name, 16, **how), sample(model, name, 16, block_length=9, **how)
    assert (
        torch.equal(a.tokens, b.tokens)
        and torch.equal(a.n_forward, b.n_forward)
        and a.n_steps == b.n_steps
    )


def test_blocks_of_one_are_left_to_right_and_exact():
    "A token a pass in a fixed order, with exact conditionals: the joint."
    joint = random_joint(3, 3)
    out = sample(joint, 'backbone', 3, n=20_000, block_length=1, top_p=1.0, batch_size=20_000)
    texts = map(tuple, torch.cartesian_prod(*[torch.arange(3)] * 3).tolist())
    probs = {x: float(joint.joint[x]) for x in texts}
    assert chi2(counted(out.tokens), probs) > 1e-3
    assert chi2(counted(out.tokens), {x[::-1]: p for x, p in probs.items()}) < 1e-6


@settings(max_examples=20)
@given(
    hs.integers(1, 12),
    hs.integers(1, 12),
    hs.integers(2, 40),
    hs.sampled_from(['prism', 'navira-det', 'mdlm']),
)
def test_the_budget_is_shared_out_among_blocks(new, length, budget, name):
    model, blocks = Tiny(12, MASK), -(-new // length)
    how, passes = dict(max_new_tokens=new, block_length=length), policy(name).passes
    if budget < blocks * passes:
        with pytest.raises(ValueError, match='blocks need'):
            sample(model, name, budget, **how)
        return
    out = sample(model, name, budget, **how)
    assert out.n_steps == budget // passes and out.n_forward.max() <= budget


def test_a_policy_that_works_in_blocks_itself_gets_their_length():
    model = Tiny(12, MASK)
    own = sample(model, 'llada-low-confidence', 12, n=2, length=12, block_length=4)
    assert own.policy == 'llada-low-confidence, block_length=4'
    same = sample(model, policy('llada-low-confidence', block_length=4), 12, n=2, length=12)
    assert torch.equal(own.tokens, same.tokens)


# ---- The end of a text


class Ends(Tiny):
    "A small model with a token that ends a text."
    eos_ids = (0,)
    never = ()

    def suppressing(self, ids):
        out = copy.copy(self)
        out.never = ids
        return out

    def __call__(self, x):
        self.rows.append(len(x))
        return EndsForward(self, x)


class EndsForward(TinyForward):
    def logits(self, where):
        out = super().logits(where)
        out[:, [*self.m.never]] = -torch.inf
        return out


def test_a_text_is_cut_at_its_end_kept_or_never_ends():
    model, how = Ends(12, MASK), dict(n=32, length=12, seed=4)
    kept, cut = (sample(model, 'prism', 8, eos=eos, **how).tokens for eos in ('keep', 'cut'))
    for a, b in zip(kept.tolist(), cut.tolist()):
        end = a.index(0) + 1 if 0 in a else 12
        assert b == a[:end] + [-1] * (12 - end)
    assert (cut == -1).any()
    assert (sample(model, 'prism', 8, eos='suppress', **how).tokens > 0).all()
    with says(ValueError, "eos='suppress'", 'names no token'):
        sample(Tiny(6, 4), 'prism', 8, eos='suppress')


# greedily, no text of this model ends
LESS_GREEDY = {
    'llada2-edit': dict(temperature=1.0),
    't2m': dict(temperature=1.0),
    'proseco': dict(n_correct=1, every=12),
    'asrd': dict(temperature=1.0),
    'block-refinement': dict(temperature=1.0),
}


@pytest.mark.parametrize('name, block_length', [(name, 3) for name in NAMES]
                         + [(name, None) for name in NAMES if name in KINDS])
def test_final_tokens_stay_and_text_and_trace_end_alike(name, block_length, one_thread):
    seen, rule = [], policy(name, **LESS_GREEDY.get(name, {}))
    out = sample(
        Ends(12, MASK),
        rule,
        24,
        n=12,
        length=12,
        seed=6,
        block_length=block_length,
        trace=True,
        progress=seen.extend,
    )
    assert (out.tokens == -1).any() and torch.equal(out.trace.x[-1].long(), out.tokens)
    for row, tokens in enumerate(out.tokens):
        text, mine = tokens[tokens >= 0].tolist(), [p for p in seen if p.sample == row]
        assert all(p.ids[: p.final] == text[: p.final] for p in mine)
        assert mine[-1].ids == text and mine[-1].final == len(text)
    # what is written for good is shown before the last step
    assert rule.revises or any(p.final for p in seen[:-12])


@pytest.mark.parametrize(
    'name, how',
    [('backbone', {}), ('remdm-conf', dict(block_length=3)), ('mdlm', {})]
    + [(name, dict(length=12)) for name in ('klass', 'dos', 'dawn', 'demask')],
)
def test_a_text_that_has_ended_takes_part_in_no_further_pass(name, how, one_thread):
    rows = []

    class Counting(Ends):
        def __call__(self, x):
            rows.append(len(x))
            return super().__call__(x)

    how = dict(n=24, length=12, seed=4, batch_size=24) | how
    out = sample(Counting(12, MASK), name, 12, **how)
    passes = sum(rows)
    full = sample(Ends(12, MASK), name, 12, eos='keep', **how)
    ended = (out.tokens == -1).any(1)
    assert ended.any() and passes == out.n_forward.sum()
    assert (out.n_forward[ended] < full.n_forward[ended]).any() and (
        out.n_forward <= full.n_forward
    ).all()


# ---- What may be asked for


def test_a_model_of_transformers_is_refused_with_what_to_wrap_it_in():
    bert = type('Bert', (torch.nn.Linear,), dict(__module__='transformers.models.bert'))(2, 2)
    with says(ValueError, 'transformers', 'Bert', 'no navira.Denoiser', 'no mask_id', 'no length',
              'navira.wrap'):
        sample(bert)


def test_without_a_named_policy_the_model_chooses(pytestconfig, embedded):
    model = navira.load(pytestconfig.rootpath / 'tests' / 'golden' / 'llada')
    assert sample(model, budget=4, length=8).policy == 'llada-low-confidence'
    assert navira.fill('the ___', model=model).policy == 'llada-low-confidence'
    assert (
        sample(embedded, budget=4, length=8).policy
        == navira.fill('the ___').policy
        == 'remdm-cap, top_p=0.5'
    )
    assert 'top_p=0.9' in sample(embedded, budget=4, length=8, top_p=0.9).policy
    parts = (
        'navira finetune --model FOLDER --lora 16',
        'load(head=) or --head',
        'llada-low-confidence',
    )
    with says(ValueError, *parts):
        sample(model, 'prism', 4)


class Plain(Forward):
    "Another pass without its qualities"

    def __init__(self, p):
        self.p, self.seen_masked = p, p.seen_masked

    def logits(self, where):
        return self.p.logits(where)


class NoHead(Tiny):
    def __call__(self, x):
        return Plain(super().__call__(x))


def test_a_handwritten_model_without_qualities():
    assert len(sample(NoHead(6, 4), 'backbone', 4)) == 1
    with says(ValueError, 'quality head'):
        sample(NoHead(6, 4), 'prism', 8, **OFTEN)


BAD = [
    (['navria', "'navira'"], dict(policy='navria')),
    (['bugdet', "'budget'"], dict(bugdet=3)),
    (['eta', 'already'], dict(policy=prism(), eta=0.1)),
    (['policy=3', "'prism'"], dict(policy=3)),
    (['budget=1', '2-pass', '2'], dict(budget=1)),
    (['n=range(3, 9, 2)'], dict(n=range(3, 9, 2))),
    (['tau_min=0.6', 'tau_mid=0.2'], dict(tau_min=0.6)),
    (['on=0.9', 'off=0.5'], dict(on=0.9, off=0.5)),
    (["'logit'"], dict(score='logits')),
]


@pytest.mark.parametrize('parts, kw', BAD, ids=[str(list(kw)) for _, kw in BAD])
def test_bad_input_is_named_before_any_work(parts, kw):
    model = Tiny(6, 4)
    with says((KeyError, ValueError), *parts):
        sample(model, **dict(policy='navira-piecewise', budget=8) | kw)
    assert not model.rows


numbers = hs.floats() | hs.integers()
values = hs.none() | numbers | hs.text(max_size=4) | hs.lists(hs.integers(), max_size=3)


@settings(max_examples=150)
@given(
    hs.dictionaries(
        hs.sampled_from(
            [
                'budget',
                'n',
                'seed',
                'length',
                'batch_size',
                'max_new_tokens',
                'eos',
                'block_length',
                'progress',
                'eta',
                'on',
                'top_p',
                'tau_min',
                'p1',
                'n_remask',
                'score',
            ]
        ),
        values,
        max_size=3,
    )
)
def test_whatever_is_asked_for_ends_in_samples_or_in_a_sentence(kw):
    kw = dict(policy='navira-piecewise', budget=4, n=1) | {k: v for k, v in kw.items()}
    small = all(
        abs(v) < 50 for k in ('budget', 'n') if isinstance(v := kw[k], (int, float)) and v == v
    )
    try:
        out = sample(Tiny(6, 4), **kw) if small else None
    except (ValueError, KeyError) as e:
        assert str(e) and '\n' not in str(e)
    else:
        assert out is None or (out.tokens < 4).all()


