"""DiffusionGemma (nbs/models/canvas): logits and texts of transformers' own class, its text part
alone, canvases that begin after the prompt."""
import re, warnings

import pytest
import torch
from safetensors.torch import load_file
from transformers import DiffusionGemmaForBlockDiffusion

import navira
from navira.base.noise import Noise
from navira.sampler.draws import TokenSampler
from navira.state import State
from helpers.checkpoints import refused
from helpers.sample_api import says

NAME, C, MASK, END = 'diffusion-gemma', 6, 288, 276
VISION = 'model.encoder.vision_tower.patch_embedder.input_proj.weight'

@pytest.fixture
def folder(golden): return golden / NAME

def loaded(folder, **how):
    with pytest.warns(UserWarning, match='16 tensors of its vision part'):
        return navira.load(folder, **how)

@torch.inference_mode()
def gaps(model, folder):
    "The largest differences to its own class, without and with self-conditioning."
    told = load_file(folder / 'golden.safetensors')
    x, canvas = told['ids'], told['ids'].shape[1] - C
    run = model.starting(x.index_fill(1, torch.arange(canvas, x.shape[1]), MASK), torch.arange(2))
    again = torch.cat([x[:, :canvas], told['canvas']], 1)
    free = torch.arange(x.shape[1]).expand_as(x) >= canvas
    st = State.start(x, MASK, 9, Noise(0, torch.arange(2)), ~free)
    warm = st.but(x=again).remember(temperature=torch.full((2,), .7))
    logits = [p.logits(free)[:, :MASK] for p in (model(x), run.resume(st), run.resume(warm))]
    want = [told[k].flatten(0, 1) for k in ('logits', 'logits', 'conditioned')]
    return torch.stack([(a - b).abs().max() for a, b in zip(logits, want)])

def test_logits_are_those_of_its_own_class_with_and_without_its_last_prediction(folder):
    for dtype, most in ('float32', 1e-4), ('float64', 1e-4), ('bfloat16', 3):
        assert (gaps(loaded(folder, dtype=dtype), folder) < most).all(), dtype

def test_every_tensor_matters(folder):
    """But for scales of a whole residual stream, which the next norm undoes: of the last layer, and
    of the encoder's first, whose second layer gives only keys and values."""
    model, g = loaded(folder), torch.Generator().manual_seed(7)
    for name, w in model.net.state_dict().items():
        before = w.clone()
        if name.endswith('layer_scalar') and 'decoder.layers.0' not in name: continue
        w += (w.std(correction=0) + .1) * torch.randn(w.shape, generator=g)
        assert gaps(model, folder).max() > 1e-3, name
        w.copy_(before)
    assert gaps(model, folder).max() < 1e-4

def test_no_tensor_may_be_left_out_or_over(folder, copied):
    names = {re.sub(r'\.\d\.', '.1.', k): k for k in load_file(folder / 'model.safetensors')}
    for name in names.values():
        if 'vision' in name: continue
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            refused(copied(NAME, {name: None}), 'Missing')
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        more = {'model.audio_tower.weight': torch.ones(2)}
        refused(copied(NAME, more), 'unexpected: model.audio')

def test_its_vision_part_may_be_away_and_is_never_held(folder, copied):
    "A folder without it, as quantised ones are, loads without a warning."
    model = loaded(folder)
    assert not [k for k in model.net.state_dict() if 'vision' in k]
    weights = load_file(folder / 'model.safetensors')
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        bare = copied(NAME, {k: None for k in weights if 'vision' in k}, vision_config=None)
        assert (gaps(navira.load(bare), folder) < 1e-4).all()

def test_saved_again(folder, tmp_path):
    model = loaded(folder)
    navira.save(model, tmp_path)
    again = navira.load(tmp_path)
    def facts(m): return m.mask_id, m.vocab_size, m.block, m.eos_ids, m.length
    assert facts(again) == facts(model) == (MASK, MASK + 1, C, (END, 279), 64)
    assert (gaps(again, folder) < 1e-4).all()

def test_what_it_has_not(folder):
    refused(folder, 'has no mask', mask_id=4)
    refused(folder, 'predicts tokens in their place', shift=True)
    refused(folder, 'block=0', block=0)
    model = loaded(folder, block=4)
    assert model.block == model.config.canvas_length == 4
    with says(ValueError, 'token 288', 'below 288', 'renoised'): model(torch.tensor([[3, MASK]]))
    with says(ValueError, 'cache'): navira.sample(model, 'mdlm', 4, cache='prompt', length=4)
    with says(ValueError, 'attending'): model.attending(torch.tensor([[3, 4]]))

# --- texts --------------------------------------------------------------------------------------

def count(start, by=1, n=5): return [*range(start, start + n * by, by)]

PROMPTS = [count(24), count(31, 2), count(50, 3)]

def theirs(folder, prompts, T, canvases, seed, monkeypatch, **how):
    "What `generate` writes when it is fed navira's random numbers."
    net = DiffusionGemmaForBlockDiffusion.from_pretrained(folder).eval()
    x, at = torch.tensor(prompts), dict(canvas=-1, step=0)
    L = x.shape[1] + C * canvases
    def u(purpose): # of the canvas in work
        first = x.shape[1] + C * at['canvas']
        noise = Noise(seed, torch.arange(len(x)), T * at['canvas'])
        return noise.uniform(at['step'], purpose, L)[:, first:first + C]
    def encoder(*args, **more):
        at.update(canvas=at['canvas'] + 1, step=0)
    def randint(low=0, high=0, size=(), device=None): return (u('renoise') * high).long()
    def multinomial(probs, num_samples):
        token = TokenSampler()(probs.log(), u('token').flatten())[0]
        at['step'] += 1
        return token[:, None]
    net.model.encoder.register_forward_pre_hook(encoder)
    with monkeypatch.context() as m:
        m.setattr(torch, 'randint', randint)
        m.setattr(torch, 'multinomial', multinomial)
        return net.generate(x, max_new_tokens=C * canvases, max_denoising_steps=T, **how).sequences

@pytest.mark.parametrize('sure', [.005, .2, .6])
def test_texts_are_those_of_its_own_generate(folder, monkeypatch, sure):
    "Canvas after canvas, rows that stop at different steps, up to the end of each text."
    model, T, canvases, steps, ends = loaded(folder), 8, 3, set(), 0
    for seed in range(3):
        want = theirs(folder, PROMPTS, T, canvases, seed, monkeypatch, confidence_threshold=sure)
        out = navira.sample(model, 'entropy-bound', T * canvases, prompt=PROMPTS, seed=seed,
                            max_new_tokens=C * canvases, sure=sure)
        for ours, text in zip(out.tokens, want):
            ours = ours[ours >= 0]
            assert ours.tolist() == text[:len(ours)].tolist()
            assert ours[-1] == END or len(ours) == 5 + C * canvases
        steps |= {*out.n_forward.tolist()}
        ends += (out.tokens == END).sum().item()
    assert ends > 2 and (len(steps) > 3 or sure < .01)

def test_a_text_does_not_depend_on_those_beside_it(folder):
    "Prompts of several lengths, whose canvases begin where each ends; a blank after given tokens."
    model = loaded(folder, dtype='float64')
    prompts = [count(24), count(31, 2, 9), [40, 41, MASK, 43]]
    for name in 'entropy-bound', 'ddim', 'llada-low-confidence':
        both = navira.sample(model, name, 36, prompt=prompts, max_new_tokens=9, eos='keep')
        assert ((both.tokens >= 0).sum(1) == torch.tensor([14, 18, 13])).all()
        for i, prompt in enumerate(prompts):
            one = navira.sample(model, name, 36, prompt=[prompt], max_new_tokens=9, eos='keep',
                                n=range(i, i + 1))
            assert one.tokens[0].tolist() == both.tokens[i, :one.tokens.shape[1]].tolist()

@pytest.mark.parametrize('length', [None, 4, 20])
def test_canvases_begin_after_the_prompt_and_are_written_in_turn(folder, length):
    "Blocks of another length do not cross their ends."
    out = navira.sample(loaded(folder), 'entropy-bound', 72, prompt=[count(24, 2)],
                        max_new_tokens=15, eos='keep', block_length=length, trace=True)
    assert out.tokens[0].tolist() == count(24, 2, 20)
    masked = (out.trace.x[:, 0] == MASK)[:, 5:]
    for first in 6, 12:
        assert masked[masked[:, :first].any(1), first:].all()

def test_what_comes_out_is_read_with_the_last_prediction(folder, monkeypatch):
    "Without it, the same policy writes other texts; a new canvas begins without."
    model, had = loaded(folder), []
    decoder = model.net.model.decoder
    decoder.register_forward_pre_hook(
        lambda module, args, how: had.append(how['self_conditioning_mask'].all().item()),
        with_kwargs=True)
    navira.sample(model, 'ddim', 6, prompt=[count(24)], max_new_tokens=12, eos='keep')
    assert had == [False, True, True] * 2

def test_without_a_prompt_it_reads_what_begins_a_text(folder):
    model, told = loaded(folder), load_file(folder / 'golden.safetensors')
    begun = torch.cat([torch.full((2, 1), 278), told['canvas']], 1)
    with torch.inference_mode():
        a = model(told['canvas']).logits(told['canvas'] >= 0)
        b = model(begun).logits(torch.arange(7).expand(2, 7) > 0)
    torch.testing.assert_close(a, b)

@pytest.mark.parametrize('name', ['entropy-bound', 'remdm-uniform', 'navira', 'fast-dllm'])
def test_conversations_and_texts_while_they_are_written(folder, name):
    model, seen = loaded(folder), []
    answer = navira.chat(model, 'Hello', policy=name, budget=12, max_new_tokens=12, eos='keep',
                         progress=seen.append)
    texts = [s[0].text.replace('<|endoftext|>', '') for s in seen]
    assert texts[-1].endswith(answer) and len({*texts}) > 2
    guided = navira.guided(model, 1.5)
    out = navira.sample(guided, name, 24, prompt=[count(24)], max_new_tokens=12)
    assert not torch.isin(out.tokens, torch.tensor([MASK])).any()
