"""`navira info`: every policy with its hyper-parameters, on 80 columns."""
import pytest

from helpers.cli import foreign, navira, net, refused, run, said  # noqa: F401

MISTAKES = {
    "unknown sweep to estimate": (["info", "--bench", "--sweep", "smal"], "did you mean 'small'?"),
    "foreign checkpoint": (["info", "{bad}/foreign.ckpt"], "not a zip archive"),
    "neither policy nor model": (["info", "navira-onepas"], "the policy 'navira-onepass'?"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistake(case, foreign, capsys, monkeypatch):
    refused(MISTAKES[case], foreign, capsys, monkeypatch)


def test_info_fits_80_columns(run, monkeypatch):
    "with every policy, hyper-parameter and choice in it, whole"
    from navira.cli.app import out
    from navira.registry import parameters, policies

    monkeypatch.setattr(out, "_width", 80)
    said = run("info")
    lines = [l.split() for l in said.splitlines()]
    assert max(map(len, said.splitlines())) <= 80 and "…" not in said
    assert all(name in {l[0] for l in lines if l} for name in policies())
    words = {w for l in lines for w in l}
    assert (
        all(any(w.startswith(f"{k}=") for w in words) for f in policies().values() for k in parameters(f))
        and "score=logit|probability|drawn|both" in words
    )


def test_info_on_one_policy(run):
    said = " ".join(run("info", "navira-onepass").split())
    assert (
        "score logit one of logit, probability, drawn, both; 'drawn': new tokens by the probability" in said
        and "the mean of the two, as logits" in said
        and "Parameters" not in said
        and said.count("the mean of the two") == 1
    )
    assert (
        "tau_min 0.05" in (said := " ".join(run("info", "navira-piecewise").split()))
        and "at u = p2" in said
        and "remask probability" in said
    )  # a scheduled one's comments stand in two places


def test_info():
    r = navira("info")
    assert r.returncode == 0 and "navira-piecewise" in r.stdout and "quality head" in r.stdout


@pytest.mark.parametrize("kind, facts", [
    ("llada", ["network LlamaForCausalLM", "mask 277 ", "(aligned)", "length 64 tokens", "ends 276 "]),
    ("dream", ["network Qwen2ForCausalLM", "(shifted)"]), ("bert", ["BertForMaskedLM", "(aligned)", "ends 2 "])])
def test_info_on_a_model_of_the_transformers_library(kind, facts, pytestconfig, capsys):
    "Its parts add up to its network, and its head is there if it has one"
    from navira.cli.info import _one_model
    from navira.models.dit import n_params
    from navira.models.load import load
    from navira.models.transformers import LinearQuality

    folder = pytestconfig.rootpath / "tests" / "golden" / kind
    code, printed = said(capsys, "info", str(folder))
    words = " ".join(printed.out.split())
    assert code in (0, None) and "quality head none" in words and not [f for f in facts if f not in words], printed
    runs, other = words.split("not with this model: prism, ")
    assert runs.index("llada-low-confidence") < runs.index("backbone") and "needs a quality head" in other
    model = load(folder)
    sizes = [int(words.split(f"{part} ")[1].split()[0].replace(",", "")) for part in ("body", "vocabulary")]
    assert sum(sizes) == n_params(model.net) and min(sizes) > 0
    model.quality = LinearQuality(model.config.hidden_size)
    _one_model("it", model)
    assert f"quality head {model.config.hidden_size + 1} parameters" in " ".join(capsys.readouterr().out.split())
