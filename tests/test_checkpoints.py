"Checkpoints in MDLM's layout, from disk: whole, damaged, foreign and malicious; and the network against a plain transcription."
import collections, contextlib, json, math, os, pickle, shutil, subprocess, sys, types, zipfile
from dataclasses import replace
from pathlib import Path
import pytest, torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from navira.diffusion import Pass
from navira.denoiser import Config, MaskedLM, QualityHead, DiT, Stored, assemble, leftovers, load, n_params, name_ema, read_pickle, save, with_head, written

TINY = Config(vocab_size=11, model_length=12, hidden_dim=16, cond_dim=8, n_blocks=2, n_heads=2, dropout=.1, quality_blocks=None)
HEAD = replace(TINY, quality_blocks=1)
X = torch.tensor([[1, 10, 3, 10, 0], [10, 10, 7, 2, 10]])

def noisy(config=HEAD, seed=0, scale=.3):
    model, g = MaskedLM(config), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters(): p.copy_(scale * torch.randn(p.shape, generator=g))
    return model.eval()

def same(a, b):
    "Whether two models have the same parameters."
    a, b = dict(a.named_parameters()), dict(b.named_parameters())
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)

def refused(source, *words, error=ValueError, **kwargs):
    "`load` raises `error`, and the message has the words and the name of the source."
    with pytest.raises(error) as e: load(source, **kwargs)
    for w in (Path(source).name, *words): assert w in str(e.value), str(e.value)

@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad(): yield

# --- the network --------------------------------------------------------------------------------------------------------------------

def plain_forward(w, x, n_blocks, n_heads):
    "MDLM's forward, written from its description (samplers.md 7), full logits; `w` maps names without prefix to tensors of one type."
    def norm(x, weight): return (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt() * weight
    def linear(x, name): return x @ w[name + ".weight"].T + w.get(name + ".bias", 0)
    def turn(q):                                                                            # [B, L, H, d]
        L, d = q.shape[1], q.shape[-1]
        a = torch.outer(torch.arange(L), 10000. ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)).to(q.dtype)
        cos, sin = a.cos()[None, :, None], a.sin()[None, :, None]
        one, two = q[..., :d // 2], q[..., d // 2:]
        return torch.cat([one * cos - two * sin, two * cos + one * sin], -1)
    B, L = x.shape
    h = w["vocab_embed.embedding"][x]
    c = torch.cat([torch.ones(128), torch.zeros(128)]).to(h.dtype)[None]                    # cos and sin of 0
    c = F.silu(linear(F.silu(linear(c, "sigma_map.mlp.0")), "sigma_map.mlp.2"))
    for i in range(n_blocks):
        b = f"blocks.{i}."
        shift1, scale1, gate1, shift2, scale2, gate2 = linear(c, b + "adaLN_modulation").chunk(6, -1)
        y = linear(norm(h, w[b + "norm1.weight"]) * (1 + scale1) + shift1, b + "attn_qkv").view(B, L, 3, n_heads, -1)
        q, k, v = turn(y[:, :, 0]), turn(y[:, :, 1]), y[:, :, 2]
        a = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])
        y = torch.einsum("bhqk,bkhd->bqhd", a.softmax(-1), v).reshape(B, L, -1)
        h = h + gate1 * linear(y, b + "attn_out")
        y = linear(norm(h, w[b + "norm2.weight"]) * (1 + scale2) + shift2, b + "mlp.0")
        y = .5 * y * (1 + torch.tanh(math.sqrt(2 / math.pi) * (y + .044715 * y ** 3)))      # tanh-GELU
        h = h + gate2 * linear(y, b + "mlp.2")
    shift, scale = linear(c, "output_layer.adaLN_modulation").chunk(2, -1)
    return linear(norm(h, w["output_layer.norm_final.weight"]) * (1 + scale) + shift, "output_layer.linear")

def bare(model): return {k.removeprefix("backbone."): v for k, v in model.state_dict().items() if k.startswith("backbone.")}

@pytest.mark.parametrize("dtype,tol", [(torch.float64, 1e-10), (torch.float32, 1e-4)])
def test_same_as_plain_transcription(dtype, tol):
    model = noisy().to(dtype)
    model.backbone.rotary_emb.inv_freq = (10000. ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8)).to(dtype)
    ref, p = plain_forward(bare(model), X, 2, 2), model(X)
    got = p.logits(torch.ones_like(X, dtype=torch.bool)).view(2, 5, 11)
    assert got.dtype == dtype and torch.isneginf(got[..., 10]).all()
    assert (got - ref)[..., :10].abs().max() < tol

@pytest.mark.parametrize("where", [X == 10, X == 7, X < 99, X < 0])
def test_lazy_logits_are_rows_of_the_full_ones(where):
    p = noisy().double()(X)
    every = p.logits(torch.ones_like(X, dtype=torch.bool)).view(2, 5, 11)
    assert torch.allclose(p.logits(where), every[where], atol=1e-12)

def test_rows_do_not_depend_on_the_batch():
    model = noisy().double()
    for r in range(2):
        assert torch.allclose(model(X[r:r + 1]).quality(), model(X).quality()[r:r + 1], atol=1e-12)

def test_quality_runs_once_and_needs_a_head():
    model, calls = noisy(), []
    model.quality.register_forward_hook(lambda *a: calls.append(1))
    p = model(X)
    assert p.quality() is p.quality() and len(calls) == 1 and p.quality().shape == X.shape
    with pytest.raises(ValueError, match="navira finetune"): noisy(TINY)(X).quality()
    assert not with_head(noisy(TINY))(X).quality().any()

def test_a_pass_without_a_quality_says_so():
    class Plain(Pass): pass
    with pytest.raises(ValueError, match="Plain gives no quality: this model has no quality head; backbone and mdlm need none"): Plain().quality()

def test_parameter_counts_of_the_published_sizes():
    with torch.device("meta"): assert (n_params(DiT(Config())), n_params(QualityHead(Config()))) == (169_627_218, 7_877_377)

def test_autocast_keeps_residual_and_scores_in_fp32():
    model = noisy()
    with torch.autocast("cpu", torch.bfloat16): p = model(X)
    assert p.h.dtype == p.quality().dtype == p.logits(X == 10).dtype == torch.float32
    ref = model(X)
    assert (p.quality() - ref.quality()).abs().max() < .1 * (1 + ref.quality().abs().max())
    assert not torch.equal(p.h, ref.h)

def test_dropout_in_training_only():
    model = noisy()
    assert torch.equal(model(X).h, model(X).h)
    model.train()
    assert not torch.equal(model(X).h, model(X).h)

def test_differentiable():
    model = noisy()
    with torch.enable_grad():
        p = model(X)
        (F.cross_entropy(p.logits(X == 10), torch.ones(5, dtype=torch.long)) + p.quality().sum()).backward()
    assert all(q.grad is not None and q.grad.isfinite().all() for q in model.parameters())

@pytest.mark.parametrize("x,words", [(torch.zeros(1, 13, dtype=torch.long), "13 positions"), (torch.zeros(1, 0, dtype=torch.long), "0 positions"),
                                     (torch.zeros(5, dtype=torch.long), "[5]"), (torch.zeros(1, 5), "float32")])
def test_input_is_checked(x, words):
    with pytest.raises(ValueError) as e: noisy()(x)
    assert words in str(e.value)

@pytest.mark.parametrize("bad", [dict(vocab_size=0), dict(n_heads=5), dict(n_blocks=1.5), dict(dropout=1.), dict(time_conditioning=True), dict(mask_id=50258), dict(quality_blocks=2)])
def test_config_is_checked(bad):
    with pytest.raises(ValueError, match=next(iter(bad))): Config(**bad)

# --- round trips -------------------------------------------------------------------------------------------------------------------

def small_tokenizer():
    tok = Tokenizer(models.WordLevel({c: i for i, c in enumerate("abcdefghij")}, unk_token="a"))
    tok.pre_tokenizer = pre_tokenizers.Whitespace()
    return tok

@pytest.mark.parametrize("config", [TINY, HEAD])
def test_round_trip_fp32(tmp_path, config):
    model = noisy(config)
    model.tokenizer = small_tokenizer()
    save(model, tmp_path / "a" / "b")
    again = load(tmp_path / "a" / "b")
    assert same(model, again) and again.config == config and not again.training
    assert (again.length, again.mask_id, again.device.type) == (12, 10, "cpu")
    assert again.tokenizer.encode("c d").ids == [2, 3] and again.tokenizer.token_to_id("<|mask|>") == 10
    assert torch.equal(again(X).logits(X == 10), model(X).logits(X == 10))
    assert sorted(p.name for p in (tmp_path / "a" / "b").iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]

def test_round_trip_bf16(tmp_path):
    model = noisy()
    save(model, tmp_path / "m", torch.bfloat16)
    again = load(str(tmp_path / "m"))
    assert all(p.dtype == torch.float32 for p in again.parameters())
    assert same(again, model.bfloat16().float())
    assert torch.equal(again.backbone.rotary_emb.inv_freq, MaskedLM(HEAD).backbone.rotary_emb.inv_freq)  # not rounded

def test_save_overwrites_and_leaves_the_old_one_on_failure(tmp_path, monkeypatch):
    one, two = noisy(seed=1), noisy(seed=2)
    save(one, tmp_path / "m"); save(two, tmp_path / "m")
    assert same(load(tmp_path / "m"), two)
    def torn(tensors, path, **kw): Path(path).write_bytes(b"half"); raise RuntimeError("disk full")
    monkeypatch.setattr("navira.denoiser.save_file", torn)
    with pytest.raises(RuntimeError): save(one, tmp_path / "m")
    assert same(load(tmp_path / "m"), two) and not [p for p in (tmp_path / "m").iterdir() if p.name.startswith(".")]

def test_what_a_killed_save_leaves_is_removed_and_nothing_else(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""]); dead.wait()
    ours, running = (tmp_path / f".navira-{pid}-0123456789abcdef.tmp" for pid in (dead.pid, os.getppid()))
    kept = {running.name, ".mine.tmp", ".model.safetensors.tmp", ".navira-x-0123456789abcdef.tmp", f".navira-{dead.pid}-0.tmp", f"navira-{dead.pid}-0123456789abcdef.tmp"}
    for name in {ours.name, *kept}: (tmp_path / name).write_bytes(b"half")
    assert leftovers(tmp_path) == [ours] and leftovers(tmp_path / "nowhere") == []
    model = noisy()
    save(model, tmp_path)
    assert same(load(tmp_path), model) and {p.name for p in tmp_path.iterdir()} == kept | {"config.json", "model.safetensors"}

def test_two_writers_of_one_file_do_not_share_a_temporary_one(tmp_path):
    with written(tmp_path / "x") as one, written(tmp_path / "x") as two:
        one.write_text("one"); two.write_text("two")
        assert one != two and leftovers(tmp_path) == []                                     # they are being written
    assert (tmp_path / "x").read_text() == "one" and [p.name for p in tmp_path.iterdir()] == ["x"]

@contextlib.contextmanager
def full_disk(size):
    "No file may grow beyond `size` bytes: the error of a full disk, with another number."
    resource = pytest.importorskip("resource")
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try: yield
    finally: resource.setrlimit(resource.RLIMIT_FSIZE, old)

@pytest.mark.parametrize("dim,words,name", [(64, 0, "model.safetensors"), (16, 1000, "tokenizer.json")])
def test_save_on_a_full_disk_says_so_and_leaves_the_old_model_whole(tmp_path, dim, words, name):
    old, new = noisy(seed=1), noisy(replace(HEAD, hidden_dim=dim), seed=2)
    old.tokenizer, new.tokenizer = small_tokenizer(), small_tokenizer()
    new.tokenizer.add_tokens([f"word {i}" for i in range(words)])
    save(old, tmp_path / "m")
    before = {p.name: p.read_bytes() for p in (tmp_path / "m").iterdir()}
    with full_disk(30_000), pytest.raises(OSError) as e: save(new, tmp_path / "m")
    assert str(e.value).startswith(f"{tmp_path / 'm' / name}: no space left") and "make room" in str(e.value)
    assert {p.name: p.read_bytes() for p in (tmp_path / "m").iterdir()} == before

def test_save_where_it_cannot(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot be written"): save(noisy(), tmp_path / "file" / "m")

# --- MDLM's layouts ----------------------------------------------------------------------------------------------------------------

def hub_folder(folder, model, prefix=True, **more):
    "As the repositories of MDLM have it."
    folder.mkdir(parents=True)
    keep = "vocab_size model_length hidden_dim cond_dim n_blocks n_heads dropout time_conditioning".split()
    config = {k: getattr(model.config, k) for k in keep} | dict(model_type="mdlm", return_dict=False, architectures=["MDLM"], auto_map={"AutoModelForMaskedLM": "x--y.z"}, torch_dtype="float32")
    (folder / "config.json").write_text(json.dumps(config | more))
    state = {k if prefix else k.removeprefix("backbone."): v.contiguous() for k, v in model.state_dict().items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    return folder

@pytest.mark.parametrize("prefix", [True, False])
def test_hub_layout_on_disk(tmp_path, prefix):
    model = noisy(TINY)
    again = load(hub_folder(tmp_path / "hf", model, prefix))
    assert same(model, again) and again.config == TINY and again.tokenizer is None

def test_hub_id(tmp_path, monkeypatch):
    "Configuration first, then the weights; nothing else is asked for."
    model, asked = noisy(TINY), []
    folder = hub_folder(tmp_path / "hf", model)
    def snapshot(repo, allow_patterns=None, **kw): asked.append((repo, tuple(allow_patterns))); return str(folder)
    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    assert same(load("kuleshov-group/mdlm-owt"), model)
    assert asked[0] == ("kuleshov-group/mdlm-owt", ("config.json",)) and not any(p.endswith(".py") for _, ps in asked for p in ps)

def test_hub_id_brings_the_gpt2_tokenizer(tmp_path, monkeypatch):
    "MDLM's repositories have none: GPT-2's is fetched and gets the mask as id 50257."
    config = replace(TINY, vocab_size=50258, mask_id=50257)
    folders = {"kuleshov-group/mdlm-no_flashattn-fp32-owt": hub_folder(tmp_path / "hf", noisy(config)), "openai-community/gpt2": tmp_path / "gpt2"}
    (tmp_path / "gpt2").mkdir()
    Tokenizer(models.WordLevel({f"w{i}": i for i in range(50257)}, unk_token="w0")).save(str(tmp_path / "gpt2" / "tokenizer.json"))
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda repo, **kw: str(folders[repo]))
    model = load("kuleshov-group/mdlm-no_flashattn-fp32-owt")
    assert model.mask_id == 50257 == model.tokenizer.token_to_id("<|mask|>")

def test_foreign_hub_model_is_refused_before_its_weights(tmp_path, monkeypatch):
    folder, asked = hub_folder(tmp_path / "hf", noisy(TINY), model_type="llada"), []
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda repo, allow_patterns: asked.append(allow_patterns) or str(folder))
    with pytest.raises(ValueError, match="'llada'.*expected 'mdlm'"): load("GSAI-ML/LLaDA-8B-Base")
    assert asked == [["config.json"]]

def test_hub_offline(monkeypatch):
    def unreachable(*a, **kw): raise ConnectionError("no route")
    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    with pytest.raises(FileNotFoundError) as e: load("kuleshov-group/mdlm-own")
    for w in ("kuleshov-group/mdlm-own", "ConnectionError", "'kuleshov-group/mdlm-owt'", "navira.load()"): assert w in str(e.value)

def lightning(path, raw, average, **more):
    torch.save({"state_dict": raw.state_dict(), "ema": {"decay": .9999, "num_updates": 3, "shadow_params": average}, "epoch": 0, "global_step": 7, **more}, path)
    return path

def test_ckpt_average_and_raw(tmp_path):
    raw, average = noisy(TINY, 1), noisy(TINY, 2)
    path = lightning(tmp_path / "best.ckpt", raw, list(average.parameters()))
    assert same(load(path), average) and same(load(path, ema=False), raw)
    assert load(path).config == replace(TINY, model_length=1024) and load(path, length=12).length == 12

def test_ckpt_with_a_head_in_the_list(tmp_path):
    "Before, after or absent: the backbone is found by its shapes; a head without an average stays raw."
    raw, average = noisy(HEAD, 1), noisy(HEAD, 2)
    bone, head = list(average.backbone.parameters()), list(average.quality.parameters())
    for shadow in (bone + head, head + bone): assert same(load(lightning(tmp_path / "a.ckpt", raw, shadow)), average)
    for shadow in (bone, bone + head[:3], head[2:] + bone):
        m = load(lightning(tmp_path / "a.ckpt", raw, shadow))
        assert same(m.backbone, average.backbone) and same(m.quality, raw.quality)

@pytest.mark.parametrize("cut", [slice(1, None), slice(None, -1), slice(None, None, -1), slice(0, 0)])
def test_ckpt_with_a_list_that_does_not_fit(tmp_path, cut):
    refused(lightning(tmp_path / "a.ckpt", noisy(TINY), list(noisy(TINY).parameters())[cut]), "ema.shadow_params", "in the order and the shapes of the backbone")

def test_bare_state_dict_and_bin(tmp_path):
    model = noisy(TINY)
    torch.save(model.backbone.state_dict(), tmp_path / "bare.pt")
    assert same(load(tmp_path / "bare.pt"), model)
    folder = hub_folder(tmp_path / "hf", model)
    (folder / "model.safetensors").unlink(); torch.save(model.state_dict(), folder / "pytorch_model.bin")
    assert same(load(folder), model)

def test_views_and_transposes_in_a_ckpt(tmp_path):
    torch.save({"a": torch.arange(12.).view(3, 4).T[1:, ::2], "b": torch.tensor(3.), "c": torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))}, tmp_path / "v.pt")
    d = read_pickle(tmp_path / "v.pt")
    assert torch.equal(d["a"].read(), torch.arange(12.).view(3, 4).T[1:, ::2]) and d["b"].read() == 3 and d["c"].read().dtype == torch.bfloat16

# --- the full size -----------------------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def owt(tmp_path_factory):
    "Random weights of the published size, without a head, in bf16: 339 MB."
    g = torch.Generator().manual_seed(0)
    with torch.device("meta"): state = MaskedLM(Config()).state_dict()
    state = {k: (v if k.endswith("inv_freq") else torch.empty(v.shape, dtype=torch.bfloat16).normal_(0, .05, generator=g)) for k, v in state.items()}
    state["backbone.rotary_emb.inv_freq"] = 10000 ** (-torch.arange(0, 64, 2) / 64)
    folder = tmp_path_factory.mktemp("owt")
    yield folder, state
    shutil.rmtree(folder)

def full_size_is_right(model, state, x=torch.tensor([[5, 50257, 50256, 50257, 0, 11, 50257, 77]])):
    assert n_params(model) == 169_627_218 and (model.length, model.mask_id, model.quality) == (1024, 50257, None)
    assert torch.equal(model.backbone.blocks[11].mlp[2].weight, state["backbone.blocks.11.mlp.2.weight"].float())
    return model(x).logits(x == 50257)

def test_full_size_safetensors(owt):
    folder, state = owt
    hub_folder(folder / "hf", types.SimpleNamespace(config=Config(), state_dict=lambda: state))
    model, x = load(folder / "hf"), torch.tensor([[5, 50257, 50256, 50257, 0, 11, 50257, 77]])
    logits = full_size_is_right(model, state)
    ref = plain_forward(bare(model), x, 12, 12)[x == 50257]
    assert logits.shape == (3, 50258) and (logits - ref)[:, :-1].abs().max() < 1e-3 * ref.abs().max()
    shutil.rmtree(folder / "hf")

def test_full_size_ckpt(owt):
    "Raw weights are constants with stride 0 here, so that the file holds one set; the average is what counts."
    folder, state = owt
    average = [v for k, v in state.items() if not k.endswith("inv_freq")]
    constant = {k: torch.full((1,), .5).expand(v.shape) if v.dim() else v for k, v in state.items()}
    torch.save({"state_dict": constant, "ema": {"shadow_params": average}}, folder / "mdlm.ckpt")
    full_size_is_right(load(folder / "mdlm.ckpt"), state)
    (folder / "mdlm.ckpt").unlink()

# --- foreign objects ---------------------------------------------------------------------------------------------------------------

@pytest.fixture
def foreign():
    "Modules that exist while the file is written and are gone when it is read."
    before, made = set(sys.modules), {}
    hidden = {k: sys.modules.pop(k) for k in list(sys.modules) if k.split(".")[0] in ("omegaconf", "transformers", "tokenizers", "lightning")}
    def module(name):
        parts = name.split(".")
        for i in range(1, len(parts) + 1): sys.modules.setdefault(".".join(parts[:i]), types.ModuleType(".".join(parts[:i])))
        return sys.modules[name]
    def make(name, *bases, **body):
        mod, cls = name.rsplit(".", 1)
        made[cls] = type(cls, bases or (object,), {"__module__": mod, "__qualname__": cls, **body})
        setattr(module(mod), cls, made[cls])
        return made[cls]
    def gone():
        for k in list(sys.modules):
            if k.split(".")[0] in ("omegaconf", "transformers", "tokenizers", "lightning"): del sys.modules[k]
    make.gone = gone
    yield make
    gone(); sys.modules.update(hidden)

def foreign_objects(make):
    "One object for each way in which a pickle makes one."
    Meta = make("omegaconf.base.ContainerMetadata")
    Dict = make("omegaconf.dictconfig.DictConfig", dict, __setstate__=lambda self, s: self.__dict__.update(s), __getstate__=lambda self: {"_metadata": Meta(), "_content": {"length": 1024}})
    List = make("omegaconf.listconfig.ListConfig", list)
    Slots = make("transformers.tokenization_utils.AddedToken", __slots__=("content", "__weakref__"), __getstate__=lambda self: (None, {"content": self.content}))
    New = make("tokenizers.Tokenizer", __getnewargs__=lambda self: (b"bytes",), __new__=lambda cls, *a: object.__new__(cls), __getstate__=lambda self: b'{"version": "1.0"}', __setstate__=lambda self, s: None)
    Reduced = make("transformers.models.gpt2.tokenization_gpt2_fast.GPT2TokenizerFast")
    Reduced.__reduce__ = lambda self: (Reduced, (), {"_tokenizer": New(), "pad": slots}, iter([1, 2]), iter([("a", 1)]))
    Reduced.append = Reduced.extend = Reduced.__setitem__ = lambda self, *a: None
    slots = Slots(); slots.content = "[PAD]"
    counts = collections.defaultdict(list); counts["a"].append(Dict(a=1))
    Attr = make("lightning.fabric.utilities.data.AttributeDict", dict)
    return {"hyper_parameters": {"config": Dict(lr=1e-4, steps=List([1, 2, "x"])), "tokenizer": Reduced()}, "hparams_type": Attr, "flags": counts,
            "callbacks": {"ModelCheckpoint": {"path": Path("a/b"), "best": torch.tensor(1.)}}, "seen": {Slots: 1}, "sets": {1, 2}, "octets": bytearray(b"xyz"), "more": b"\xff", "size": torch.Size([2])}

def test_foreign_objects_open_without_their_packages(tmp_path, foreign):
    raw, average = noisy(TINY, 1), noisy(TINY, 2)
    path = lightning(tmp_path / "mdlm.ckpt", raw, list(average.parameters()), **foreign_objects(foreign))
    foreign.gone()
    assert same(load(path), average)
    assert not {"omegaconf", "transformers", "lightning"} & set(sys.modules)                # nothing was imported to open it
    d = read_pickle(path)
    assert d["sets"] == {1, 2} and d["global_step"] == 7 and d["callbacks"]["ModelCheckpoint"]["best"].read() == 1
    assert type(d["hyper_parameters"]["config"]).__module__.startswith("navira")

def test_numpy_and_optimiser_state(tmp_path):
    import numpy as np
    model = noisy(TINY)
    opt = torch.optim.AdamW(model.parameters())
    for p in model.parameters(): p.grad = torch.ones_like(p)
    opt.step()
    more = dict(optimizer_states=[opt.state_dict()], rng=np.random.get_state(), value=np.float64(3.), type=torch.float32, device=torch.device("cpu"))
    assert same(load(lightning(tmp_path / "a.ckpt", model, list(model.parameters()), **more)), model)

# --- malice ------------------------------------------------------------------------------------------------------------------------

class Calls:
    "Pickles as `function(*args)`."
    def __init__(self, function, *args, state=None): self.how = (function, args) if state is None else (function, args, state)
    def __reduce__(self): return self.how

def attacks(marker):
    touch = f"touch {marker}"
    code = f"open({str(marker)!r}, 'w').write('x')"
    return {"os.system": Calls(os.system, touch), "builtins.eval": Calls(eval, code), "builtins.exec": Calls(exec, code), "builtins.getattr": Calls(getattr, Path("x"), "unlink"),
            "subprocess.Popen": Calls(subprocess.Popen, ["touch", str(marker)]), "builtins.open": Calls(open, str(marker), "w"), "builtins.__import__": Calls(__import__, "antigravity"),
            "shutil.copy": Calls(shutil.copy, __file__, str(marker)), "torch.load": Calls(torch.load, str(marker)), "pickle.loads": Calls(pickle.loads, pickle.dumps(Calls(os.system, touch))),
            "torch.hub": Calls(torch.hub.load, "x/y", "z"), "torch.save": Calls(torch.save, {}, str(marker)), "functools.partial": Calls(__import__("functools").partial, os.system, touch)}

@pytest.mark.parametrize("which", list(attacks(Path("x"))))
@pytest.mark.parametrize("place", ["top", "state_dict", "average", "inside"])
def test_malicious_ckpt_is_refused_and_does_nothing(tmp_path, which, place, foreign):
    model, marker, path = noisy(TINY), tmp_path / "owned", tmp_path / "evil.ckpt"
    bad, params = attacks(marker)[which], list(model.parameters())
    Dict = foreign("omegaconf.dictconfig.DictConfig", dict)
    d = {"state_dict": dict(model.state_dict()), "ema": {"shadow_params": params}}
    if place == "top": d["x"] = bad
    if place == "state_dict": d["state_dict"]["x"] = bad
    if place == "average": params.append(bad)
    if place == "inside": d["hyper_parameters"] = {"config": Dict(a=[Dict(b=bad)])}
    torch.save(d, path)
    foreign.gone()
    refused(path, "refused", which.split(".")[1])
    assert not marker.exists()

def by_hand(path, code, storages=("0",)):
    "A zip in the layout of torch.save around a pickle written opcode by opcode."
    with zipfile.ZipFile(path, "w") as z:
        z.writestr("a/data.pkl", code)
        for s in storages: z.writestr(f"a/data/{s}", bytes(64))
    return path

STORAGE = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x10tQ"
REBUILD = b"ctorch._utils\n_rebuild_tensor_v2\n(" + STORAGE + b"%s(%st(%stI00\nccollections\nOrderedDict\n)RtR"

@pytest.mark.parametrize("code,words", [
    (b"cposix\nsystem\n(X\x05\x00\x00\x00touchtR.", "posix.system"),                        # GLOBAL and REDUCE
    (b"(X\x05\x00\x00\x00touchios\nsystem\n.", "os.system"),                                # INST
    (b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x01x\x85R.", "os.system"),                  # STACK_GLOBAL
    (b"\x80\x04\x8c\x0eomegaconf.base\x8c\x03a.b\x93\x8c\x02os\x8c\x06system\x93b.", "os.system"),
    (b"\x80\x02\x82\x01.", ""),                                                             # EXT1, the extension registry
    (b"c__builtin__\ngetattr\n(comegaconf\nX\nX\x0c\x00\x00\x00__subclasses__tR.", "builtins.getattr"),
    (b"ccopyreg\n__newobj__\n(comegaconf\nX\ntR.", "copyreg.__newobj__"),
    (b"cnavira.denoiser\nload\n(tR.", "navira.denoiser.load"),
    (b"(X\x04\x00\x00\x00evilX\x01\x00\x00\x000tQ.", ""),                                   # a persistent id that is no storage
    (b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x0a\x00\x00\x00../../../xK\x01tQ.", "persistent id"),
    (REBUILD % (b"K\x00", b"K\x02", b"K\x01") + b"}X\x06\x00\x00\x00memberX\x01\x00\x00\x00xsb.", "changes a tensor"),  # BUILD on a tensor
    (b"", ""), (b".", ""), (b"\x80\x02}q\x00", ""), (b"garbage", ""), (b"}" * 10_000, ""),
])
def test_opcodes(tmp_path, code, words):
    refused(by_hand(tmp_path / "evil.ckpt", code), words)

def test_state_given_to_a_function_does_not_outlive_the_file(tmp_path):
    "BUILD may set attributes of what `find_class` returned: it is ours, made for this file only."
    by_hand(tmp_path / "evil.ckpt", b"ctorch._utils\n_rebuild_tensor_v2\n(N}X\x0c\x00\x00\x00__defaults__)stb.")
    with pytest.raises(ValueError): load(tmp_path / "evil.ckpt")
    model = noisy(TINY)
    assert same(load(lightning(tmp_path / "good.ckpt", model, list(model.parameters()))), model)

@pytest.mark.parametrize("offset,size,stride", [(b"K\x00", b"M\xff\xff", b"K\x01"), (b"M\xff\xff", b"K\x01", b"K\x01"), (b"K\x00", b"K\x10", b"M\xff\xff"), (b"J\xff\xff\xff\xff", b"K\x01", b"K\x01"), (b"K\x00", b"J\xff\xff\xff\xff", b"K\x01")])
def test_window_outside_the_storage(tmp_path, offset, size, stride):
    d = read_pickle(by_hand(tmp_path / "evil.ckpt", REBUILD % (offset, size, stride) + b"."))
    assert isinstance(d, Stored)
    with pytest.raises(ValueError, match="evil.ckpt"): d.read()

def test_compressed_members_and_legacy_format(tmp_path):
    model = noisy(TINY)
    with zipfile.ZipFile(tmp_path / "bomb.ckpt", "w", zipfile.ZIP_DEFLATED) as z: z.writestr("a/data.pkl", b"}."); z.writestr("a/data/0", bytes(10_000_000))
    refused(tmp_path / "bomb.ckpt", "torch.save")
    torch.save({"state_dict": model.state_dict(), "x": Calls(os.system, f"touch {tmp_path / 'owned'}")}, tmp_path / "old.ckpt", _use_new_zipfile_serialization=False)
    refused(tmp_path / "old.ckpt", "not a zip archive")
    (tmp_path / "plain.ckpt").write_bytes(pickle.dumps(Calls(os.system, f"touch {tmp_path / 'owned'}")))
    refused(tmp_path / "plain.ckpt", "not a zip archive")
    assert not (tmp_path / "owned").exists()

# --- small files that would take for ever, or all memory -----------------------------------------------------------------------------

NEST = b"N" + b"2\x86" * 60                                                                # (x, x) sixty times over: 2**60 at a walk
TEXT = lambda s: b"X" + len(s).to_bytes(4, "little") + s
SHARED = b"(" + b"K\x01" * 20_000 + b"lq\x01"                                              # a list of 20000, kept as memo 1
STATE = lambda shape: b"}" + TEXT(b"state_dict") + b"}(" + TEXT(b"vocab_embed.embedding") + REBUILD % (b"K\x00", shape, b"K\x00K\x00") + TEXT(b"sigma_map.mlp.0.bias") \
    + REBUILD % (b"K\x00", b"K\x08", b"K\x01") + TEXT(b"rotary_emb.inv_freq") + REBUILD % (b"K\x00", b"K\x04", b"K\x01") + b"us."
N = lambda n: b"I%d\n" % n

SMALL = {"str": b"c__builtin__\nstr\n" + NEST + b"\x85R.",
         "repr of a key": b"}" + NEST + b"Ns.", "set": b"\x80\x04\x8f(" + NEST + b"\x90.", "set called": b"c__builtin__\nset\n]" + NEST + b"a\x85R.",
         "frozen": b"\x80\x04(" + NEST + b"\x91.", "frozen called": b"c__builtin__\nfrozenset\n]" + NEST + b"a\x85R.", "size": b"ctorch\nSize\n" + NEST + b"\x85Rq\x00}h\x00Ns.",
         "id": NEST + b"Q.", "id of a storage": b"(" + TEXT(b"storage") + NEST + TEXT(b"0") + NEST + b"tQ.", "frozen in frozen": b"\x80\x04}" + 2 * (b"(N\x91q\x00" + b"0(h\x00(h\x00\x91\x91q\x00" * 40 + b"Ns") + b".",
         "memo": b"Nr" + (4 * 10**8).to_bytes(4, "little") + b"0.", "memo in text": b"Np4000000000\n0.",
         "bytearray": b"\x80\x05\x96" + (10**12).to_bytes(8, "little") + b".", "bytes": b"\x80\x04\x8e" + (10**12).to_bytes(8, "little") + b".", "frame": b"\x80\x04\x95" + (10**15).to_bytes(8, "little") + b"N.",
         "text": b"\x80\x04\x8d" + (10**12).to_bytes(8, "little") + b".", "bytes called": b"c__builtin__\nbytes\n" + N(10**12) + b"\x85R.", "list called": b"c__builtin__\nlist\n" + TEXT(b"x" * 99) + b"\x85R.",
         "copies": SHARED + b"(" + b"c__builtin__\nset\nh\x01\x85R" * 2000 + b"l.", "pairs": b"(" + TEXT(b"ab") * 5000 + b"lq\x01(" + b"ccollections\nOrderedDict\nh\x01\x85R" * 2000 + b"l.",
         "arguments": b"(" + b"N" * 5000 + b"tq\x01" + b"comegaconf\nx\nq\x02" + b"h\x02h\x01R0" * 10_000 + b"N.", "states": b"(" + b"".join(b"M" + k.to_bytes(2, "little") + b"N" for k in range(20_000)) + b"dq\x01comegaconf\nx\n)R" + b"h\x01b" * 100_000 + b".",
         "dimensions": REBUILD % (b"K\x00", b"K\x01" * 1000, b"K\x01" * 1000) + b".", "names": b"".join(b"comegaconf\nx%d\n0" % i for i in range(10_001)) + b"N.", "long name": b"comegaconf\n" + b"x" * 100_000 + b"\n.",
         "numbers": b"}(" + b"".join(b"\x8a\x0a" + (k * (2**61 - 1)).to_bytes(10, "little") + b"N" for k in range(2**10, 2**10 + 20_000)) + b"u.",
         "a window of one number": STATE(N(2**20) + N(2**20)), "sizes of 1e12": STATE(N(10**12) + N(10**12)), "sizes of 1e18": STATE(N(10**18) + N(10**18)), "sizes of -1": STATE(N(-1) + N(-1)), "sizes of 0": STATE(N(0) + N(4)), "one size": STATE(N(4))}

CONFIGS = {f"{k}={v!r}": {k: v} for k in ("vocab_size", "hidden_dim", "cond_dim", "n_blocks", "n_heads", "model_length") for v in (10**12, 10**18, 1e12, -1)} | {"mask_id=True": {"mask_id": True}, "vocab_size='11'": {"vocab_size": "11"}}

LIMITED = """
import json, os, resource, sys
from navira.denoiser import load
pages = int(open("/proc/self/statm").read().split()[0]) if os.path.exists("/proc/self/statm") else 0
if pages: resource.setrlimit(resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGE_SIZE") + 2**29,) * 2)      # half a gigabyte more
resource.setrlimit(resource.RLIMIT_CPU, (90, 90))
for name in sorted(os.listdir(sys.argv[1])):
    print(json.dumps([name, None]), flush=True)
    try: load(os.path.join(sys.argv[1], name)); said = "opened"
    except Exception as e: said = f"{type(e).__name__}: {e}"
    print(json.dumps([name, said]), flush=True)
"""

@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    "What `load` says of each, in a process that may not take much; the last one begun is the one that took it."
    pytest.importorskip("resource")
    place = tmp_path_factory.mktemp("small")
    for name, code in SMALL.items(): by_hand(place / f"{name}.ckpt", code)
    for name, bad in CONFIGS.items():
        (place / name).mkdir()
        (place / name / "config.json").write_text(json.dumps(dict(model_type="mdlm", vocab_size=11, hidden_dim=16, n_blocks=2, n_heads=2) | bad))
        save_file({"x": torch.ones(1)}, place / name / "model.safetensors")
    (place / "deep").mkdir(); (place / "deep" / "config.json").write_text("[" * 100_000)
    (place / "large").mkdir(); (place / "large" / "config.json").write_text(" " * 2**20 + "{}")
    for name in ("pipe.ckpt", "pipe.safetensors", "pipe of a config/config.json"):
        (place / name).parent.mkdir(exist_ok=True); os.mkfifo(place / name)
    r = subprocess.run([sys.executable, "-c", LIMITED, str(place)], capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=240)
    return {name: said for name, said in map(json.loads, r.stdout.splitlines())}

@pytest.mark.parametrize("name", SMALL)
def test_a_small_file_takes_little_time_and_memory(verdicts, name):
    said = verdicts.get(f"{name}.ckpt")
    assert said and said.startswith("ValueError: ") and f"{name}.ckpt: " in said and "MemoryError" not in said and len(said) < 1000, said

@pytest.mark.parametrize("name,words", [("copies", "again and again"), ("pairs", "again and again"), ("arguments", "again and again"), ("states", "again and again"), ("names", "10000 names"), ("long name", "100009 letters"), ("dimensions", "1000 dimensions"),
                                        ("id", "persistent id"), ("bytearray", "no checkpoint needs"), ("a window of one number", "share their numbers"), ("sizes of 1e12", "larger than the file"),
                                        ("sizes of 1e18", "larger than the file"), ("sizes of 0", "none of them 0"), ("one size", "expected 2 dimensions")])
def test_what_is_wrong_with_a_small_file_is_said(verdicts, name, words): assert words in verdicts[f"{name}.ckpt"], verdicts[f"{name}.ckpt"]

@pytest.mark.parametrize("name", CONFIGS)
def test_sizes_that_no_network_has(verdicts, name): assert verdicts[name].startswith("ValueError") and "config.json: " in verdicts[name] and f"{name}: expected" in verdicts[name], verdicts[name]

@pytest.mark.parametrize("name,words", [("pipe.ckpt", "a pipe or a device; expected a file"), ("pipe.safetensors", "a pipe or a device; expected a file"), ("pipe of a config", "a pipe or a device; expected a file"), ("deep", "not a readable JSON file"), ("large", "expected at most 1048576")])
def test_what_is_no_file_of_that_kind(verdicts, name, words): assert verdicts[name] and words in verdicts[name], verdicts[name]

def test_a_tensor_larger_than_its_numbers(tmp_path):
    d = read_pickle(by_hand(tmp_path / "evil.ckpt", REBUILD % (b"K\x00", N(2**40), b"K\x00") + b"."))
    with pytest.raises(ValueError, match="evil.ckpt: a/data/0 cannot be read .a tensor of 4398046511104 bytes in 64"): d.read()

def test_members_that_claim_more_than_the_file(tmp_path):
    path = by_hand(tmp_path / "evil.ckpt", b"N.")
    data = bytearray(path.read_bytes())
    at = data.rindex(b"PK\x01\x02") + 20                                                    # of the last entry of the directory: its sizes
    data[at:at + 8] = (2**31).to_bytes(4, "little") * 2
    path.write_bytes(data)
    refused(path, "not laid out as torch.save does")

def test_what_few_checkpoints_hold_still_opens(tmp_path):
    "Shared tuples, big numbers, frozen sets and classes as values are no attack."
    pair, model = (1, 2), noisy(TINY)
    more = dict(pairs=[pair] * 1000, nest=((pair, pair), {pair: 1}), big=2**127, frozen=frozenset([1]), types=[int, dict, list], ordered=collections.OrderedDict(a=1), octets=b"x" * 100_000, deep=[[[[(((1,),),)]]]], number=complex(1, 2))
    path = lightning(tmp_path / "m.ckpt", model, list(model.parameters()), **more)
    assert same(load(path), model)
    d = read_pickle(path)
    assert d["pairs"] == more["pairs"] and d["nest"][0] == (pair, pair) and list(d["nest"][1]) == [pair] and d["ordered"] == {"a": 1} and d["octets"] == more["octets"] and d["deep"] == more["deep"]

# --- damage and mistakes -----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", ["m.safetensors", "m.ckpt"])
@pytest.mark.parametrize("keep", [0, 1, 7, 100, .3, .7, .999])
def test_truncated(tmp_path, name, keep):
    model, path = noisy(TINY), tmp_path / name
    if name.endswith("ckpt"): lightning(path, model, list(model.parameters()))
    else: save_file(dict(model.state_dict()), path)
    whole = path.read_bytes()
    path.write_bytes(whole[:keep if isinstance(keep, int) else int(keep * len(whole))])
    refused(path)

def test_flipped_bits_in_a_ckpt_are_noticed(tmp_path):
    model = noisy(TINY)
    path = lightning(tmp_path / "m.ckpt", model, list(model.parameters()))
    data = bytearray(path.read_bytes())
    at = bytes(data).index(model.backbone.vocab_embed.embedding.numpy().tobytes())
    data[at + 5] ^= 0xff
    path.write_bytes(data)
    refused(path, "data/", ema=False)

def test_text_under_a_checkpoints_name(tmp_path):
    for name in ("m.ckpt", "m.safetensors", "m.pt"):
        (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n" * 5)
        refused(tmp_path / name)

def test_foreign_and_misshapen_weights(tmp_path):
    state = dict(noisy(TINY).state_dict())
    def kept(name, d): save_file({k: v.contiguous() for k, v in d.items()}, tmp_path / name); return tmp_path / name
    refused(kept("bert.safetensors", {"encoder.layer.0.weight": torch.ones(3, 3)}), "backbone.vocab_embed.embedding")
    refused(kept("more.safetensors", state | {"adapter.weight": torch.ones(1)}), "unexpected: adapter.weight")
    refused(kept("less.safetensors", {k: v for k, v in state.items() if "blocks.1.norm2" not in k}), "missing: backbone.blocks.1.norm2.weight")
    refused(kept("shape.safetensors", state | {"backbone.blocks.0.attn_out.weight": torch.ones(16, 8)}), "wrong shape: backbone.blocks.0.attn_out.weight [16, 8] instead of [16, 16]")

def test_folders_that_do_not_fit(tmp_path):
    save(noisy(), tmp_path / "m")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    def refit(**change): (tmp_path / "m" / "config.json").write_text(json.dumps(config | change))
    def says(*words, error=ValueError):
        with pytest.raises(error) as e: load(tmp_path / "m")
        assert all(w in str(e.value) for w in words), str(e.value)
    refit(n_blocks=3); says("model.safetensors", "missing: backbone.blocks.2")
    refit(hidden_dim=32); says("wrong shape", "and ")
    refit(quality_blocks=None); says("unexpected: quality.")
    refit(time_conditioning=True); says("config.json", "time_conditioning=True")
    refit(model_type="bert"); says("'bert'", "'mdlm'")
    refit(vocab_size="11"); says("vocab_size='11'")
    (tmp_path / "m" / "config.json").write_text("{"); says("config.json", "JSON")
    (tmp_path / "m" / "config.json").write_text("[]"); says("config.json", "mdlm")
    refit(); (tmp_path / "m" / "tokenizer.json").write_text("{}"); says("tokenizer.json")
    (tmp_path / "m" / "tokenizer.json").unlink(); (tmp_path / "m" / "model.safetensors").unlink(); says("model.safetensors", error=FileNotFoundError)
    (tmp_path / "m" / "config.json").unlink(); says("config.json", error=FileNotFoundError)

def test_tokenizer_larger_than_the_model(tmp_path):
    save(noisy(), tmp_path / "m")
    Tokenizer(models.WordLevel({str(i): i for i in range(20)}, unk_token="0")).save(str(tmp_path / "m" / "tokenizer.json"))
    with pytest.raises(ValueError, match="20 tokens, but the model has 11"): load(tmp_path / "m")

def words(*names, **more):
    tok = Tokenizer(models.WordLevel({w: i for i, w in enumerate(names)} | more, unk_token=names[0]))
    tok.pre_tokenizer = pre_tokenizers.Whitespace()
    return tok

def marked_at(i):
    "Eleven tokens, the mask one of them."
    return words(*"abcdefghij"[:i], "<|mask|>", *"abcdefghij"[i:])

@pytest.mark.parametrize("tok,said", [(lambda: marked_at(7), "<|mask|> is token 7, and the model's mask is token 10, here 'j'"), (lambda: words(*"abcdefghijk"), "<|mask|> is not in it, and the model's mask is token 10, here 'k'"),
                                      (lambda: words(*"abcde"), "<|mask|> is not in it"), (lambda: words(*"abcdefghi", **{"<|mask|>": 10, "z": 99}), "has a token 99, but the model has 11")])
def test_a_tokenizer_whose_mask_is_not_the_models(tmp_path, tok, said):
    "From the folder, and given: the blank would stay in the text, as letters."
    save(noisy(), tmp_path / "m")
    with pytest.raises(ValueError) as e: load(tmp_path / "m", tokenizer=tok())
    assert str(e.value).startswith("tokenizer: ") and said in str(e.value)
    tok().save(str(tmp_path / "m" / "tokenizer.json"))
    for source in (tmp_path / "m", tmp_path / "m" / "model.safetensors"):
        with pytest.raises(ValueError) as e: load(source)
        assert "tokenizer.json: " in str(e.value) and said in str(e.value)

def test_a_mask_that_is_a_word_of_the_vocabulary_is_read_as_the_mask(tmp_path):
    "Without being marked as special it is taken to pieces: three unknown words."
    tok = marked_at(10)
    assert 10 not in tok.encode("b <|mask|> c").ids
    save(noisy(), tmp_path / "m")
    tok.save(str(tmp_path / "m" / "tokenizer.json"))
    for model in (load(tmp_path / "m"), load(tmp_path / "m", tokenizer=tok)): assert model.tokenizer.encode("b <|mask|> c").ids == [1, 10, 2]

def test_a_tokenizer_that_is_given_is_not_changed(tmp_path):
    save(noisy(), tmp_path / "m")
    tok = small_tokenizer()
    model = load(tmp_path / "m", tokenizer=tok)
    assert model.tokenizer.token_to_id("<|mask|>") == 10 and tok.token_to_id("<|mask|>") is None
    assert load(tmp_path / "m", tokenizer=types.SimpleNamespace(backend_tokenizer=tok)).tokenizer.encode("c<|mask|>").ids == [2, 10]      # of the transformers library

@pytest.mark.parametrize("given", ["tokenizer.json", 5, len])
def test_what_is_no_tokenizer(tmp_path, given):
    save(noisy(), tmp_path / "m")
    with pytest.raises(ValueError, match=f"tokenizer: {type(given).__name__}; expected a tokenizers.Tokenizer"): load(tmp_path / "m", tokenizer=given)

@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 10_000, b'{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}', b'{"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 1099511627776}, "unk_token": "a"}}'])
def test_a_damaged_tokenizer_is_named(tmp_path, content):
    save(noisy(), tmp_path / "m")
    (tmp_path / "m" / "tokenizer.json").write_bytes(content)
    with pytest.raises(ValueError, match="tokenizer.json: not a readable tokenizer"): load(tmp_path / "m")

def test_missing_sources(tmp_path, monkeypatch):
    save(noisy(), tmp_path / "model")
    refused(tmp_path / "modle", "did you mean", "model", error=FileNotFoundError)
    refused(tmp_path / "nothing.ckpt", "expected", error=FileNotFoundError)
    refused("nowhere", "kuleshov-group/mdlm-owt", error=FileNotFoundError)
    monkeypatch.chdir(tmp_path)
    refused("model/best.ckpt", "not found", error=FileNotFoundError)
    monkeypatch.setattr("navira.denoiser.WEIGHTS", tmp_path / "weights")
    with pytest.raises(FileNotFoundError, match="embedded model"): load()

# --- names that people type --------------------------------------------------------------------------------------------------------

def test_embedded_is_a_name(monkeypatch, tmp_path):
    save(noisy(), tmp_path / "weights")
    monkeypatch.setattr("navira.denoiser.WEIGHTS", tmp_path / "weights")
    assert same(load("embedded"), load()) and same(load("embedded"), noisy())
    refused("embeded", "'embedded'", error=FileNotFoundError)

def test_a_training_run_finds_its_model(tmp_path):
    (tmp_path / "run").mkdir(); (tmp_path / "run" / "run.json").write_text("{}")
    refused(tmp_path / "run", "no model/config.json yet", "the run ends", error=FileNotFoundError)
    save(noisy(), tmp_path / "run" / "model")
    assert same(load(tmp_path / "run"), noisy())
    save(noisy(seed=5), tmp_path / "run")                                                   # a model of its own comes first
    assert same(load(tmp_path / "run"), noisy(seed=5))
    refused(tmp_path, "no config.json", error=FileNotFoundError)

def test_a_critics_run_finds_its_critic(tmp_path):
    from navira.baselines import Critic, find_critic
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match="no critic/critic.safetensors yet"): find_critic(tmp_path)
    critic = Critic.of(noisy(), 1)
    critic.save(tmp_path / "critic")
    assert find_critic(tmp_path) == tmp_path / "critic" and same(Critic.load(tmp_path), critic)

@pytest.mark.parametrize("source", [3, b"x", ["a"], object()])
def test_what_is_no_source(source):
    with pytest.raises(ValueError, match=f"source={type(source).__name__}: expected a folder, a file"): load(source)

# --- weights that are no numbers ---------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("value,word", [(math.nan, "NaN"), (math.inf, "infinity"), (-math.inf, "infinity")])
@pytest.mark.parametrize("name", ["backbone.output_layer.linear.bias", "quality.block.mlp.0.weight"])
@pytest.mark.parametrize("kept", [torch.float32, torch.bfloat16])
def test_weights_that_are_not_finite_are_refused(tmp_path, value, word, name, kept):
    model = noisy()
    dict(model.named_parameters())[name].flatten()[-1] = value
    save(model, tmp_path / "m", kept)
    refused(tmp_path / "m" / "model.safetensors", name, word, "expected finite")
    refused(tmp_path / "m", name, word, dtype="bf16")
    refused(lightning(tmp_path / "m.ckpt", model, list(model.parameters())), name, word)

def test_a_critic_that_is_not_finite_is_refused(tmp_path):
    from navira.baselines import Critic
    critic = Critic.of(noisy(), 1)
    critic.backbone.output_layer.linear.bias[0] = math.nan
    critic.save(tmp_path)
    with pytest.raises(ValueError, match="critic.safetensors: backbone.output_layer.linear.bias holds NaN"): Critic.load(tmp_path)
