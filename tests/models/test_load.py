"""One function, `load`, for a folder, a file, a run, a name on the Hub, or the embedded model."""
import collections, json, os, pickle, shutil, subprocess, sys, types, zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models

from navira.models.layers import Config
from navira.models.dit import MaskedLM, n_params
from navira.models.checkpoints import read_pickle
from navira.models.load import load, save
from navira.sampling import sample
from helpers.checkpoints import (  # noqa: F401
    HEAD, N, REBUILD, TINY, X, bare, by_hand, lightning, no_grad, noisy, plain_forward, refused, same,
    small_tokenizer, words)

# --- MDLM's layouts ---------------------------------------------------------------------------------------------------

def hub_folder(folder, model, prefix=True, **more):
    "As the repositories of MDLM have it."
    folder.mkdir(parents=True)
    keep = "vocab_size model_length hidden_dim cond_dim n_blocks n_heads dropout time_conditioning".split()
    config = {k: getattr(model.config, k) for k in keep} | dict(
        model_type="mdlm", return_dict=False, architectures=["MDLM"], auto_map={"AutoModelForMaskedLM": "x--y.z"},
        torch_dtype="float32")
    (folder / "config.json").write_text(json.dumps(config | more))
    state = {k if prefix else k.removeprefix("backbone."): v.contiguous() for k, v in model.state_dict().items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    return folder

# --- the full size ----------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def owt(tmp_path_factory):
    "Random weights of the published size, without a head, in bf16: 339 MB."
    g = torch.Generator().manual_seed(0)
    with torch.device("meta"): state = MaskedLM(Config()).state_dict()
    state = {
        k: (v if k.endswith("inv_freq") else torch.empty(v.shape, dtype=torch.bfloat16).normal_(0, 0.05, generator=g))
        for k, v in state.items()}
    state["backbone.rotary_emb.inv_freq"] = 10000 ** (-torch.arange(0, 64, 2) / 64)
    folder = tmp_path_factory.mktemp("owt")
    yield folder, state
    shutil.rmtree(folder)

FULL_TEXT = torch.tensor([[5, 50257, 50256, 50257, 0, 11, 50257, 77]])

def full_size_is_right(model, state):
    assert n_params(model) == 169_627_218 and (model.length, model.mask_id, model.quality) == (1024, 50257, None)
    assert torch.equal(model.backbone.blocks[11].mlp[2].weight, state["backbone.blocks.11.mlp.2.weight"].float())
    return model(FULL_TEXT).logits(FULL_TEXT == 50257)

# --- foreign objects --------------------------------------------------------------------------------------------------

@pytest.fixture
def foreign():
    "Modules that exist while the file is written and are gone when it is read."
    made = {}
    hidden = {
        k: sys.modules.pop(k) for k in list(sys.modules)
        if k.split(".")[0] in ("omegaconf", "transformers", "tokenizers", "lightning")}
    def module(name):
        parts = name.split(".")
        for i in range(1, len(parts) + 1):
            sys.modules.setdefault(".".join(parts[:i]), types.ModuleType(".".join(parts[:i])))
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
    Dict = make(
        "omegaconf.dictconfig.DictConfig", dict, __setstate__=lambda self, s: self.__dict__.update(s),
        __getstate__=lambda self: {"_metadata": Meta(), "_content": {"length": 1024}})
    List = make("omegaconf.listconfig.ListConfig", list)
    Slots = make(
        "transformers.tokenization_utils.AddedToken", __slots__=("content", "__weakref__"),
        __getstate__=lambda self: (None, {"content": self.content}))
    New = make(
        "tokenizers.Tokenizer", __getnewargs__=lambda self: (b"bytes",), __new__=lambda cls, *a: object.__new__(cls),
        __getstate__=lambda self: b'{"version": "1.0"}', __setstate__=lambda self, s: None)
    Reduced = make("transformers.models.gpt2.tokenization_gpt2_fast.GPT2TokenizerFast")
    Reduced.__reduce__ = lambda self: (Reduced, (), {"_tokenizer": New(), "pad": slots}, iter([1, 2]), iter([("a", 1)]))
    Reduced.append = Reduced.extend = Reduced.__setitem__ = lambda self, *a: None
    slots = Slots(); slots.content = "[PAD]"
    counts = collections.defaultdict(list); counts["a"].append(Dict(a=1))
    Attr = make("lightning.fabric.utilities.data.AttributeDict", dict)
    return {
        "hyper_parameters": {"config": Dict(lr=1e-4, steps=List([1, 2, "x"])), "tokenizer": Reduced()},
        "hparams_type": Attr, "flags": counts,
        "callbacks": {"ModelCheckpoint": {"path": Path("a/b"), "best": torch.tensor(1.0)}}, "seen": {Slots: 1},
        "sets": {1, 2}, "octets": bytearray(b"xyz"), "more": b"\xff", "size": torch.Size([2])}

# --- malice -----------------------------------------------------------------------------------------------------------

class Calls:
    "Pickles as `function(*args)`."

    def __init__(self, function, *args, state=None):
        self.how = (function, args) if state is None else (function, args, state)
    def __reduce__(self): return self.how

def attacks(marker):
    touch = f"touch {marker}"
    code = f"open({str(marker)!r}, 'w').write('x')"
    return {
        "os.system": Calls(os.system, touch), "builtins.eval": Calls(eval, code), "builtins.exec": Calls(exec, code),
        "builtins.getattr": Calls(getattr, Path("x"), "unlink"),
        "subprocess.Popen": Calls(subprocess.Popen, ["touch", str(marker)]),
        "builtins.open": Calls(open, str(marker), "w"), "builtins.__import__": Calls(__import__, "antigravity"),
        "shutil.copy": Calls(shutil.copy, __file__, str(marker)), "torch.load": Calls(torch.load, str(marker)),
        "pickle.loads": Calls(pickle.loads, pickle.dumps(Calls(os.system, touch))),
        "torch.hub": Calls(torch.hub.load, "x/y", "z"), "torch.save": Calls(torch.save, {}, str(marker)),
        "functools.partial": Calls(__import__("functools").partial, os.system, touch)}

# --- small files that would take for ever, or all memory --------------------------------------------------------------

# (x, x) sixty times over: 2**60 at a walk
NEST = b"N" + b"2\x86" * 60

TEXT = lambda s: b"X" + len(s).to_bytes(4, "little") + s

# a list of 20000, kept as memo 1
SHARED = b"(" + b"K\x01" * 20_000 + b"lq\x01"

STATE = lambda shape: (
    b"}" + TEXT(b"state_dict") + b"}(" + TEXT(b"vocab_embed.embedding") + REBUILD % (b"K\x00", shape, b"K\x00K\x00")
    + TEXT(b"sigma_map.mlp.0.bias") + REBUILD % (b"K\x00", b"K\x08", b"K\x01") + TEXT(b"rotary_emb.inv_freq")
    + REBUILD % (b"K\x00", b"K\x04", b"K\x01") + b"us.")

SMALL = {
    "str": b"c__builtin__\nstr\n" + NEST + b"\x85R.", "repr of a key": b"}" + NEST + b"Ns.",
    "set": b"\x80\x04\x8f(" + NEST + b"\x90.", "set called": b"c__builtin__\nset\n]" + NEST + b"a\x85R.",
    "frozen": b"\x80\x04(" + NEST + b"\x91.", "frozen called": b"c__builtin__\nfrozenset\n]" + NEST + b"a\x85R.",
    "size": b"ctorch\nSize\n" + NEST + b"\x85Rq\x00}h\x00Ns.", "id": NEST + b"Q.",
    "id of a storage": b"(" + TEXT(b"storage") + NEST + TEXT(b"0") + NEST + b"tQ.",
    "frozen in frozen": b"\x80\x04}" + 2 * (b"(N\x91q\x00" + b"0(h\x00(h\x00\x91\x91q\x00" * 40 + b"Ns") + b".",
    "memo": b"Nr" + (4 * 10**8).to_bytes(4, "little") + b"0.", "memo in text": b"Np4000000000\n0.",
    "bytearray": b"\x80\x05\x96" + (10**12).to_bytes(8, "little") + b".",
    "bytes": b"\x80\x04\x8e" + (10**12).to_bytes(8, "little") + b".",
    "frame": b"\x80\x04\x95" + (10**15).to_bytes(8, "little") + b"N.",
    "text": b"\x80\x04\x8d" + (10**12).to_bytes(8, "little") + b".",
    "bytes called": b"c__builtin__\nbytes\n" + N(10**12) + b"\x85R.",
    "list called": b"c__builtin__\nlist\n" + TEXT(b"x" * 99) + b"\x85R.",
    "copies": SHARED + b"(" + b"c__builtin__\nset\nh\x01\x85R" * 2000 + b"l.",
    "pairs": b"(" + TEXT(b"ab") * 5000 + b"lq\x01(" + b"ccollections\nOrderedDict\nh\x01\x85R" * 2000 + b"l.",
    "arguments": b"(" + b"N" * 5000 + b"tq\x01" + b"comegaconf\nx\nq\x02" + b"h\x02h\x01R0" * 10_000 + b"N.",
    "states": b"(" + b"".join(b"M" + k.to_bytes(2, "little") + b"N" for k in range(20_000)) + b"dq\x01comegaconf\nx\n)R"
    + b"h\x01b" * 100_000 + b".", "dimensions": REBUILD % (b"K\x00", b"K\x01" * 1000, b"K\x01" * 1000) + b".",
    "names": b"".join(b"comegaconf\nx%d\n0" % i for i in range(10_001)) + b"N.",
    "long name": b"comegaconf\n" + b"x" * 100_000 + b"\n.", "numbers": b"}("
    + b"".join(b"\x8a\x0a" + (k * (2**61 - 1)).to_bytes(10, "little") + b"N" for k in range(2**10, 2**10 + 20_000))
    + b"u.", "a window of one number": STATE(N(2**20) + N(2**20)), "sizes of 1e12": STATE(N(10**12) + N(10**12)),
    "sizes of 1e18": STATE(N(10**18) + N(10**18)), "sizes of -1": STATE(N(-1) + N(-1)),
    "sizes of 0": STATE(N(0) + N(4)), "one size": STATE(N(4))}

CONFIGS = {
    f"{k}={v!r}": {k: v} for k in ("vocab_size", "hidden_dim", "cond_dim", "n_blocks", "n_heads", "model_length")
    for v in (10**12, 10**18, 1e12, -1)} | {"mask_id=True": {"mask_id": True}, "vocab_size='11'": {"vocab_size": "11"}}

LIMITED = """
import json, os, resource, sys
from navira.models.load import load
pages = int(open("/proc/self/statm").read().split()[0]) if os.path.exists("/proc/self/statm") else 0
if pages:                                                                # half a gigabyte more
    resource.setrlimit(resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGE_SIZE") + 2**29,) * 2)
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
        (place / name / "config.json").write_text(
            json.dumps(dict(model_type="mdlm", vocab_size=11, hidden_dim=16, n_blocks=2, n_heads=2) | bad))
        save_file({"x": torch.ones(1)}, place / name / "model.safetensors")
    (place / "deep").mkdir(); (place / "deep" / "config.json").write_text("[" * 100_000)
    (place / "large").mkdir(); (place / "large" / "config.json").write_text(" " * 2**20 + "{}")
    for name in ("pipe.ckpt", "pipe.safetensors", "pipe of a config/config.json"):
        (place / name).parent.mkdir(exist_ok=True); os.mkfifo(place / name)
    r = subprocess.run(
        [sys.executable, "-c", LIMITED, str(place)], capture_output=True, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=240)
    return {name: said for name, said in map(json.loads, r.stdout.splitlines())}

def marked_at(i):
    "Eleven tokens, the mask one of them."
    return words(*"abcdefghij"[:i], "<|mask|>", *"abcdefghij"[i:])

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
    assert sorted(p.name for p in (tmp_path / "a" / "b").iterdir()) == [
        "config.json", "model.safetensors", "tokenizer.json"]

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
    monkeypatch.setattr("navira.models.checkpoints.save_file", torn)
    with pytest.raises(RuntimeError): save(one, tmp_path / "m")
    assert same(load(tmp_path / "m"), two) and not [p for p in (tmp_path / "m").iterdir() if p.name.startswith(".")]

def test_what_a_killed_save_leaves_is_removed_and_nothing_else(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""]); dead.wait()
    ours, running = (tmp_path / f".navira-{pid}-0123456789abcdef.tmp" for pid in (dead.pid, os.getppid()))
    kept = {
        running.name, ".mine.tmp", ".model.safetensors.tmp", ".navira-x-0123456789abcdef.tmp",
        f".navira-{dead.pid}-0.tmp", f"navira-{dead.pid}-0123456789abcdef.tmp"}
    for name in {ours.name, *kept}: (tmp_path / name).write_bytes(b"half")
    model = noisy()
    save(model, tmp_path)
    assert same(load(tmp_path), model) and {p.name for p in tmp_path.iterdir()} == kept | {
        "config.json", "model.safetensors"}

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
    assert asked[0] == ("kuleshov-group/mdlm-owt", ("config.json",)) and not any(
        p.endswith(".py") for _, ps in asked for p in ps)

def test_hub_id_brings_the_gpt2_tokenizer(tmp_path, monkeypatch):
    "MDLM's repositories have none: GPT-2's is fetched and gets the mask as id 50257."
    config = replace(TINY, vocab_size=50258, mask_id=50257)
    folders = {
        "kuleshov-group/mdlm-no_flashattn-fp32-owt": hub_folder(tmp_path / "hf", noisy(config)),
        "openai-community/gpt2": tmp_path / "gpt2"}
    (tmp_path / "gpt2").mkdir()
    Tokenizer(models.WordLevel({f"w{i}": i for i in range(50257)}, unk_token="w0")).save(
        str(tmp_path / "gpt2" / "tokenizer.json"))
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda repo, **kw: str(folders[repo]))
    model = load("kuleshov-group/mdlm-no_flashattn-fp32-owt")
    assert model.mask_id == 50257 == model.tokenizer.token_to_id("<|mask|>")

def test_foreign_hub_model_is_refused_before_its_weights(tmp_path, monkeypatch):
    folder, asked = hub_folder(tmp_path / "hf", noisy(TINY), model_type="mamba"), []
    monkeypatch.setattr("huggingface_hub.snapshot_download",
                        lambda repo, allow_patterns, revision=None: asked.append(allow_patterns) or str(folder))
    with pytest.raises(ValueError, match="'mamba'.*llada.*mdlm"): load("state-spaces/mamba-130m")
    assert asked == [["config.json"]]

def test_a_hub_model_of_another_family(tmp_path, monkeypatch, pytestconfig):
    "Its configuration first, then weights and tokenizer, of the revision asked for; code is not fetched."
    asked = []
    def download(repo, allow_patterns, revision=None):
        asked.append((repo, revision, allow_patterns))
        return str(pytestconfig.rootpath / "tests" / "golden" / "llada")
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert load("GSAI-ML/LLaDA-8B-Base", revision="abc").mask_id == 277
    assert [a[:2] for a in asked] == [("GSAI-ML/LLaDA-8B-Base", "abc")] * 2
    assert asked[0][2] == ["config.json"] and "*.safetensors" in asked[1][2]
    assert not [p for p in asked[1][2] if p.endswith((".py", ".bin", ".pt", ".pkl"))]

def test_hub_offline(monkeypatch):
    def unreachable(*a, **kw): raise ConnectionError("no route")
    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    with pytest.raises(FileNotFoundError) as e: load("kuleshov-group/mdlm-own")
    for w in ("kuleshov-group/mdlm-own", "ConnectionError", "'kuleshov-group/mdlm-owt'", "navira.load()"):
        assert w in str(e.value)

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
    refused(
        lightning(tmp_path / "a.ckpt", noisy(TINY), list(noisy(TINY).parameters())[cut]), "ema.shadow_params",
        "in the order and the shapes of the backbone")

def test_bare_state_dict_and_bin(tmp_path):
    model = noisy(TINY)
    torch.save(model.backbone.state_dict(), tmp_path / "bare.pt")
    assert same(load(tmp_path / "bare.pt"), model)
    folder = hub_folder(tmp_path / "hf", model)
    (folder / "model.safetensors").unlink(); torch.save(model.state_dict(), folder / "pytorch_model.bin")
    assert same(load(folder), model)

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

def test_foreign_objects_open_without_their_packages(tmp_path, foreign):
    raw, average = noisy(TINY, 1), noisy(TINY, 2)
    path = lightning(tmp_path / "mdlm.ckpt", raw, list(average.parameters()), **foreign_objects(foreign))
    foreign.gone()
    assert same(load(path), average)
    # nothing was imported to open it
    assert not {"omegaconf", "transformers", "lightning"} & set(sys.modules)
    d = read_pickle(path)
    assert d["sets"] == {1, 2} and d["global_step"] == 7 and d["callbacks"]["ModelCheckpoint"]["best"].read() == 1
    assert type(d["hyper_parameters"]["config"]).__module__.startswith("navira")

def test_numpy_and_optimiser_state(tmp_path):
    import numpy as np
    model = noisy(TINY)
    opt = torch.optim.AdamW(model.parameters())
    for p in model.parameters(): p.grad = torch.ones_like(p)
    opt.step()
    more = dict(
        optimizer_states=[opt.state_dict()], rng=np.random.get_state(), value=np.float64(3.0), type=torch.float32,
        device=torch.device("cpu"))
    assert same(load(lightning(tmp_path / "a.ckpt", model, list(model.parameters()), **more)), model)

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

@pytest.mark.parametrize("code,words", [
    (b"cposix\nsystem\n(X\x05\x00\x00\x00touchtR.", "posix.system"),                        # GLOBAL and REDUCE
    (b"(X\x05\x00\x00\x00touchios\nsystem\n.", "os.system"),                                # INST
    (b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x01x\x85R.", "os.system"),                  # STACK_GLOBAL
    (b"\x80\x04\x8c\x0eomegaconf.base\x8c\x03a.b\x93\x8c\x02os\x8c\x06system\x93b.", "os.system"),
    # EXT1, the extension registry
    (b"\x80\x02\x82\x01.", ""),
    (b"c__builtin__\ngetattr\n(comegaconf\nX\nX\x0c\x00\x00\x00__subclasses__tR.", "builtins.getattr"),
    (b"ccopyreg\n__newobj__\n(comegaconf\nX\ntR.", "copyreg.__newobj__"),
    (b"cnavira.models.load\nload\n(tR.", "navira.models.load.load"),
    # a persistent id that is no storage
    (b"(X\x04\x00\x00\x00evilX\x01\x00\x00\x000tQ.", ""),
    (b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x0a\x00\x00\x00../../../xK\x01tQ.", "persistent id"),
    # BUILD on a tensor
    (REBUILD % (b"K\x00", b"K\x02", b"K\x01") + b"}X\x06\x00\x00\x00memberX\x01\x00\x00\x00xsb.", "changes a tensor"),
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

def test_compressed_members_and_legacy_format(tmp_path):
    model = noisy(TINY)
    with zipfile.ZipFile(tmp_path / "bomb.ckpt", "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr("a/data.pkl", b"}.")
        z.writestr("a/data/0", bytes(10_000_000))
    refused(tmp_path / "bomb.ckpt", "torch.save")
    torch.save(
        {"state_dict": model.state_dict(), "x": Calls(os.system, f"touch {tmp_path / 'owned'}")}, tmp_path / "old.ckpt",
        _use_new_zipfile_serialization=False)
    refused(tmp_path / "old.ckpt", "not a zip archive")
    (tmp_path / "plain.ckpt").write_bytes(pickle.dumps(Calls(os.system, f"touch {tmp_path / 'owned'}")))
    refused(tmp_path / "plain.ckpt", "not a zip archive")
    assert not (tmp_path / "owned").exists()

@pytest.mark.parametrize("name", SMALL)
def test_a_small_file_takes_little_time_and_memory(verdicts, name):
    said = verdicts.get(f"{name}.ckpt")
    assert (
        said and said.startswith("ValueError: ") and f"{name}.ckpt: " in said and "MemoryError" not in said
        and len(said) < 1000), said

@pytest.mark.parametrize(
    "name,words",
    [
        ("copies", "again and again"), ("pairs", "again and again"), ("arguments", "again and again"),
        ("states", "again and again"), ("names", "10000 names"), ("long name", "100009 letters"),
        ("dimensions", "1000 dimensions"), ("id", "persistent id"), ("bytearray", "no checkpoint needs"),
        ("a window of one number", "share their numbers"), ("sizes of 1e12", "larger than the file"),
        ("sizes of 1e18", "larger than the file"), ("sizes of 0", "none of them 0"),
        ("one size", "expected 2 dimensions")],
)
def test_what_is_wrong_with_a_small_file_is_said(verdicts, name, words):
    assert words in verdicts[f"{name}.ckpt"], verdicts[f"{name}.ckpt"]

@pytest.mark.parametrize("name", CONFIGS)
def test_sizes_that_no_network_has(verdicts, name):
    assert (
        verdicts[name].startswith("ValueError") and "config.json: " in verdicts[name]
        and f"{name}: expected" in verdicts[name]), verdicts[name]

@pytest.mark.parametrize(
    "name,words",
    [
        ("pipe.ckpt", "a pipe or a device; expected a file"),
        ("pipe.safetensors", "a pipe or a device; expected a file"),
        ("pipe of a config", "a pipe or a device; expected a file"), ("deep", "not a readable JSON file"),
        ("large", "expected at most 1048576")],
)
def test_what_is_no_file_of_that_kind(verdicts, name, words):
    assert verdicts[name] and words in verdicts[name], verdicts[name]

def test_members_that_claim_more_than_the_file(tmp_path):
    path = by_hand(tmp_path / "evil.ckpt", b"N.")
    data = bytearray(path.read_bytes())
    # of the last entry of the directory: its sizes
    at = data.rindex(b"PK\x01\x02") + 20
    data[at:at + 8] = (2**31).to_bytes(4, "little") * 2
    path.write_bytes(data)
    refused(path, "not laid out as torch.save does")

def test_what_few_checkpoints_hold_still_opens(tmp_path):
    "Shared tuples, big numbers, frozen sets and classes as values are no attack."
    pair, model = (1, 2), noisy(TINY)
    more = dict(
        pairs=[pair] * 1000, nest=((pair, pair), {pair: 1}), big=2**127, frozen=frozenset([1]), types=[int, dict, list],
        ordered=collections.OrderedDict(a=1), octets=b"x" * 100_000, deep=[[[[(((1,),),)]]]], number=complex(1, 2))
    path = lightning(tmp_path / "m.ckpt", model, list(model.parameters()), **more)
    assert same(load(path), model)
    d = read_pickle(path)
    assert (
        d["pairs"] == more["pairs"] and d["nest"][0] == (pair, pair) and list(d["nest"][1]) == [pair]
        and d["ordered"] == {"a": 1} and d["octets"] == more["octets"] and d["deep"] == more["deep"])

# --- damage and mistakes ----------------------------------------------------------------------------------------------

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
    refused(
        kept("less.safetensors", {k: v for k, v in state.items() if "blocks.1.norm2" not in k}),
        "missing: backbone.blocks.1.norm2.weight")
    refused(
        kept("shape.safetensors", state | {"backbone.blocks.0.attn_out.weight": torch.ones(16, 8)}),
        "wrong shape: backbone.blocks.0.attn_out.weight [16, 8] instead of [16, 16]")

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
    refit(model_type="mamba"); says("'mamba'", "mdlm")
    refit(vocab_size="11"); says("vocab_size='11'")
    (tmp_path / "m" / "config.json").write_text("{"); says("config.json", "JSON")
    (tmp_path / "m" / "config.json").write_text("[]"); says("config.json", "JSON object")
    refit(); (tmp_path / "m" / "tokenizer.json").write_text("{}"); says("tokenizer.json")
    (tmp_path / "m" / "tokenizer.json").unlink()
    (tmp_path / "m" / "model.safetensors").unlink()
    says("model.safetensors", error=FileNotFoundError)
    (tmp_path / "m" / "config.json").unlink(); says("config.json", error=FileNotFoundError)

def test_tokenizer_larger_than_the_model(tmp_path):
    save(noisy(), tmp_path / "m")
    Tokenizer(models.WordLevel({str(i): i for i in range(20)}, unk_token="0")).save(
        str(tmp_path / "m" / "tokenizer.json"))
    with pytest.raises(ValueError, match="20 tokens, but the model has 11"): load(tmp_path / "m")

@pytest.mark.parametrize(
    "tok,said",
    [
        (lambda: marked_at(7), "<|mask|> is token 7, and the model's mask is token 10, here 'j'"),
        (lambda: words(*"abcdefghijk"), "<|mask|> is not in it, and the model's mask is token 10, here 'k'"),
        (lambda: words(*"abcde"), "<|mask|> is not in it"),
        (lambda: words(*"abcdefghi", **{"<|mask|>": 10, "z": 99}), "has a token 99, but the model has 11")],
)
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
    for model in (load(tmp_path / "m"), load(tmp_path / "m", tokenizer=tok)):
        assert model.tokenizer.encode("b <|mask|> c").ids == [1, 10, 2]

def test_a_tokenizer_that_is_given_is_not_changed(tmp_path):
    save(noisy(), tmp_path / "m")
    tok = small_tokenizer()
    model = load(tmp_path / "m", tokenizer=tok)
    assert model.tokenizer.token_to_id("<|mask|>") == 10 and tok.token_to_id("<|mask|>") is None
    # of the transformers library
    assert load(tmp_path / "m", tokenizer=types.SimpleNamespace(backend_tokenizer=tok)).tokenizer.encode(
        "c<|mask|>").ids == [2, 10]

@pytest.mark.parametrize("given", ["tokenizer.json", 5, len])
def test_what_is_no_tokenizer(tmp_path, given):
    save(noisy(), tmp_path / "m")
    with pytest.raises(ValueError, match=f"tokenizer: {type(given).__name__}; expected a tokenizers.Tokenizer"):
        load(tmp_path / "m", tokenizer=given)

@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 10_000,
        b'{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}',
        b'{"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 1099511627776}, "unk_token": "a"}}'],
)
def test_a_damaged_tokenizer_is_named(tmp_path, content):
    save(noisy(), tmp_path / "m")
    (tmp_path / "m" / "tokenizer.json").write_bytes(content)
    with pytest.raises(ValueError, match="tokenizer.json: not a readable tokenizer"): load(tmp_path / "m")

CUT = dict(direction="Right", max_length=4, strategy="LongestFirst", stride=0)
FILLED = dict(strategy=dict(Fixed=40), direction="Right", pad_to_multiple_of=None,
              pad_id=0, pad_type_id=0, pad_token="a")

def edited(tmp_path, **said):
    "The embedded model, its tokenizer.json changed."
    save(load(), tmp_path / "m")
    file = tmp_path / "m" / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | said))
    return tmp_path / "m"

@pytest.mark.parametrize("said", [dict(truncation=CUT), dict(truncation=CUT | dict(stride=4)), dict(padding=FILLED)])
@pytest.mark.parametrize("given", [False, True])
def test_a_tokenizer_neither_cuts_nor_fills_up_a_prompt(tmp_path, said, given):
    text, folder = "It was a dark and stormy night", edited(tmp_path, **said)
    model = load(tokenizer=Tokenizer.from_file(str(folder / "tokenizer.json"))) if given else load(folder)
    assert model.tokenizer.encode(text).ids == load().tokenizer.encode(text).ids

def test_a_tokenizer_that_panics_is_named(tmp_path):
    pieces = [dict(SpecialToken=dict(id="[CLS]", type_id=0)), dict(Sequence=dict(id="A", type_id=0))]
    template = dict(type="TemplateProcessing", single=pieces, pair=[*pieces, pieces[1]], special_tokens={})
    with pytest.raises(ValueError, match="tokenizer.json: not a readable tokenizer: no entry"):
        load(edited(tmp_path, post_processor=template))

def test_a_word_that_a_tokenizer_cannot_read_is_one_sentence(tmp_path):
    model = load(edited(tmp_path, model=dict(type="WordLevel", vocab=load().tokenizer.get_vocab(), unk_token="?!")))
    with pytest.raises(ValueError, match=r"prompt: the tokenizer cannot read it: .*Missing \[UNK\]"):
        sample(model, "mdlm", 4, prompt="zqxjkv")

def test_missing_sources(tmp_path, monkeypatch):
    save(noisy(), tmp_path / "model")
    refused(tmp_path / "modle", "did you mean", "model", error=FileNotFoundError)
    refused(tmp_path / "nothing.ckpt", "expected", error=FileNotFoundError)
    refused("nowhere", "kuleshov-group/mdlm-owt", error=FileNotFoundError)
    monkeypatch.chdir(tmp_path)
    refused("model/best.ckpt", "not found", error=FileNotFoundError)
    monkeypatch.setattr("navira.models.sources.WEIGHTS", tmp_path / "weights")
    with pytest.raises(FileNotFoundError, match="embedded model"): load()

# --- names that people type -------------------------------------------------------------------------------------------

def test_embedded_is_a_name(monkeypatch, tmp_path):
    save(noisy(), tmp_path / "weights")
    monkeypatch.setattr("navira.models.sources.WEIGHTS", tmp_path / "weights")
    assert same(load("embedded"), load()) and same(load("embedded"), noisy())
    refused("embeded", "'embedded'", error=FileNotFoundError)

def test_a_training_run_finds_its_model(tmp_path):
    (tmp_path / "run").mkdir(); (tmp_path / "run" / "run.json").write_text("{}")
    refused(tmp_path / "run", "no model/config.json yet", "the run ends", error=FileNotFoundError)
    save(noisy(), tmp_path / "run" / "model")
    assert same(load(tmp_path / "run"), noisy())
    # a model of its own comes first
    save(noisy(seed=5), tmp_path / "run")
    assert same(load(tmp_path / "run"), noisy(seed=5))
    refused(tmp_path, "no config.json", error=FileNotFoundError)

@pytest.mark.parametrize("source", [3, b"x", ["a"], object()])
def test_what_is_no_source(source):
    with pytest.raises(ValueError, match=f"source={type(source).__name__}: expected a folder, a file"): load(source)

# --- GIDD's folders ---------------------------------------------------------------------------------------------------

GIDD = replace(TINY, p_uniform=.1, dropout=0.)

def gidd_folder(folder, model, **more):
    "As its authors' script writes it: their names, no prefix, the tables of the rotation, a mask called [MASK]."
    folder.mkdir(parents=True)
    c = model.config
    said = dict(
        model_type="dit", architectures=["DIT"], auto_map={"AutoModelForMaskedLM": "modeling_dit.DIT"},
        vocab_size=c.vocab_size, max_seq_len=c.model_length, hidden_size=c.hidden_dim, timestep_cond_dim=c.cond_dim,
        num_hidden_layers=c.n_blocks, num_attention_heads=c.n_heads, attention_dropout=c.dropout, p_uniform=c.p_uniform,
        t_eps=1e-4, torch_dtype="float32", transformers_version="4.49.0")
    (folder / "config.json").write_text(json.dumps({k: v for k, v in (said | more).items() if v != "absent"}))
    state = {k.removeprefix("backbone."): v.contiguous() for k, v in model.state_dict().items() if "inv_freq" not in k}
    table = torch.ones(1, c.model_length, 3, 1, c.hidden_dim // c.n_heads)
    save_file(state | {f"rotary_emb.{k}_cached": table.clone() for k in ("cos", "sin")}, folder / "model.safetensors")
    tok = small_tokenizer(); tok.add_special_tokens(["[MASK]"])
    tok.save(str(folder / "tokenizer.json"))
    return folder

def test_a_folder_of_gidd(tmp_path):
    "Weights, sizes, mask and share of random tokens are its own; saved by us and loaded again, it is the same."
    import navira
    model = noisy(GIDD)
    first = load(gidd_folder(tmp_path / "hub", model))
    save(first, tmp_path / "ours")
    second = load(tmp_path / "ours")
    for lm in (first, second):
        assert lm.config == GIDD and lm.mask_id == 10 and lm.length == 12 and same(lm, model)
        assert lm.tokenizer.encode("a <|mask|> c").ids == [0, 10, 2]
        assert torch.equal(lm(X).logits(X == 10), model(X).logits(X == 10))
    assert (navira.sample(first, "backbone", 4, length=8, n=2, seed=0, progress=False).tokens < 10).all()

@pytest.mark.parametrize("more, words", [
    (dict(timestep_cond_dim="absent"), ("no timestep_cond_dim", "GIDD")), (dict(p_uniform="absent"), ("no p_uniform",)),
    (dict(t_eps=.01), ("t_eps=0.01", "expected 0.0001")), (dict(p_uniform=1.), ("p_uniform=1.0", "expected 0 <=")),
    (dict(num_hidden_layers=3), ("not the weights of this configuration", "missing")),
    (dict(vocab_size=128), ("mask is token 127",)), (dict(num_attention_heads=3), ("hidden_dim=16",))])
def test_what_is_no_folder_of_gidd(tmp_path, more, words):
    folder = gidd_folder(tmp_path / "hub", noisy(GIDD), **more)
    with pytest.raises(ValueError) as e: load(folder)
    assert all(w in str(e.value) for w in words), str(e.value)
