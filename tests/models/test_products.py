"""Float32 products of a CPU: oneDNN's give PyTorch's numbers up to rounding, and change nothing
else about a model."""
import copy

import pytest
import torch
from torch import nn

import navira
from navira.models.adapter import save_adapter, with_adapter
from navira.models.load import load, save
from navira.models.products import (
    HAS_ONEDNN, OneDNNLinear, OneDNNSequential, faster, products_of, set_products)
from helpers.checkpoints import HEAD, noisy, same
from helpers.sample_api import says

needs = pytest.mark.skipif(not HAS_ONEDNN, reason='this PyTorch has no oneDNN')

def outputs(model, grad=False):
    x = torch.randint(5, 10, (2, 12), generator=torch.Generator().manual_seed(0))
    x[:, 3:6] = model.mask_id
    with torch.set_grad_enabled(grad): return model(x).logits(x > 0), model(x).quality()

@pytest.fixture
def pair(tmp_path):
    "The same model with each kind of products."
    save(noisy(HEAD), tmp_path)
    return [load(tmp_path, products=name) for name in ('default', 'onednn')]

@pytest.fixture
def calls(monkeypatch):
    "How often oneDNN was called."
    seen, real = [], navira.models.products.onednn
    monkeypatch.setattr('navira.models.products.onednn',
                        lambda *args: seen.append(args[3:]) or real(*args))
    return seen

@needs
def test_both_give_the_same_numbers_from_the_same_parameters(pair, calls, tmp_path):
    a, b = pair
    assert same(a, b) and [products_of(m) for m in pair] == ['default', 'onednn']
    want = outputs(a)
    assert not calls
    for one, two in zip(want, outputs(b), strict=True): torch.testing.assert_close(one, two)
    assert ('gelu', 'tanh') in calls and () in calls
    save(b, tmp_path / 'again')
    assert same(load(tmp_path / 'again', products='default'), a)
    assert products_of(copy.deepcopy(b)) == 'onednn'
    assert products_of(set_products(b, 'default')) == 'default' and not isinstance(
        b.backbone.blocks[0].mlp, OneDNNSequential)

@needs
@pytest.mark.parametrize('how', ['gradients', 'float64', 'bfloat16', 'autocast'])
def test_what_onednn_cannot_do_pytorch_does(pair, calls, how):
    if how == 'autocast':
        with torch.autocast('cpu', torch.bfloat16): a, b = map(outputs, pair)
    else:
        kind = getattr(torch, how, torch.float32)
        a, b = (outputs(m.to(kind), how == 'gradients') for m in pair)
    for one, two in zip(a, b, strict=True): torch.testing.assert_close(one, two)
    # heads run in float32 at least
    assert len(calls) <= (2 if how in ('bfloat16', 'autocast') else 0)

@needs
def test_gradients_flow(pair):
    for model in pair: outputs(model, True)[0][:, 3].sum().backward()
    a, b = (m.backbone.blocks[0].mlp[0].weight.grad for m in pair)
    assert a.abs().sum()
    torch.testing.assert_close(a, b)

@needs
@pytest.mark.parametrize('kind', ['llada', 'bert', 'diffugpt'])
def test_models_of_the_transformers_library(kind, pytestconfig, tmp_path, calls):
    folder = pytestconfig.rootpath / 'tests' / 'golden' / kind
    model = with_adapter(navira.load(folder, dtype='float32', products='onednn'), 2).eval()
    with torch.no_grad():
        for n, p in model.named_parameters():
            if 'lora_' in n or n.startswith('quality.'): p.copy_(p.normal_(std=.1).bfloat16())
    save_adapter(model, tmp_path)
    default = navira.load(folder, head=tmp_path, dtype='float32', products='default')
    one = navira.load(folder, head=tmp_path, dtype='float32', products='onednn')
    want = outputs(default)
    assert not calls
    for m in (one, model):             # the adapter merged, and beside its layers
        for a, b in zip(want, outputs(m), strict=True): torch.testing.assert_close(a, b)
    assert calls

@needs
def test_an_adapter_within_a_sequence_is_not_passed_over():
    class Twice(OneDNNLinear):
        def forward(self, x): return 2 * super().forward(x)
    seq = set_products(nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)), 'onednn')
    x = torch.randn(3, 4)
    with torch.no_grad():
        plain = seq(x)
        seq[0].__class__ = Twice
        torch.testing.assert_close(seq(x), seq[2](seq[1](seq[0](x))))
        assert not torch.allclose(seq(x), plain)

def test_auto_measures_once_and_takes_the_faster(tmp_path, monkeypatch):
    save(noisy(HEAD), tmp_path)
    asked = []
    monkeypatch.setattr('navira.models.products.faster',
                        lambda *key: asked.append(key) or ('onednn' if HAS_ONEDNN else 'default'))
    assert products_of(load(tmp_path)) == ('onednn' if HAS_ONEDNN else 'default')
    assert asked == [(HEAD.hidden_dim, torch.get_num_threads())]
    assert products_of(load(tmp_path, dtype='bfloat16')) == 'default' and len(asked) == 1
    assert faster(64, 1) in ('default', 'onednn') and faster.cache_info().currsize

def test_another_name_is_refused():
    with says(KeyError, "products 'onedn'", 'onednn' if HAS_ONEDNN else 'default'):
        load(products='onedn')
