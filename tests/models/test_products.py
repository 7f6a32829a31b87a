"Float32 products of a CPU: oneDNN's give PyTorch's numbers up to rounding, and nothing else."
import copy

import pytest
import torch

import navira
from navira.models.adapter import save_adapter, with_adapter
from navira.models.load import load, save
from navira.models.products import faster, HAS_ONEDNN, products_of, set_products
from helpers.checkpoints import HEAD, noisy, same

needs = pytest.mark.skipif(not HAS_ONEDNN, reason='this PyTorch has no oneDNN')

def outputs(model, grad=False):
    x = torch.randint(5, 10, (2, 12), generator=torch.Generator().manual_seed(0))
    x[:, 3:6] = model.mask_id
    with torch.set_grad_enabled(grad): return model(x).logits(x > 0), model(x).quality()

@pytest.fixture
def calls(monkeypatch):
    "How oneDNN was called."
    seen, real = [], navira.models.products.onednn
    monkeypatch.setattr('navira.models.products.onednn',
                        lambda *args: seen.append(args[3:]) or real(*args))
    return seen

@needs
@pytest.mark.parametrize('how', ['float32', 'gradients', 'float64', 'bfloat16', 'autocast'])
def test_both_give_the_same_numbers_from_the_same_parameters(calls, tmp_path, how):
    "What oneDNN cannot do, PyTorch does; heads run in float32 at least."
    dtype = dict(gradients='float32', autocast='float32').get(how, how)
    a, b = (set_products(noisy(HEAD).to(getattr(torch, dtype)), name)
            for name in ('default', 'onednn'))
    assert same(a, b) and products_of(a) == 'default' and products_of(copy.deepcopy(b)) == 'onednn'
    with torch.autocast('cpu', torch.bfloat16, enabled=how == 'autocast'):
        want = outputs(a, how == 'gradients')
        assert not calls
        for one, two in zip(want, outputs(b, how == 'gradients'), strict=True):
            torch.testing.assert_close(one, two)
    if how == 'float32': assert ('gelu', 'tanh') in calls and () in calls
    else: assert len(calls) <= 2 * (how in ('bfloat16', 'autocast'))
    save(b, tmp_path)
    assert same(load(tmp_path), a.float()) and products_of(set_products(b, 'default')) == 'default'

@needs
@pytest.mark.parametrize('kind', ['llada', 'bert', 'diffugpt'])
def test_models_of_the_transformers_library(kind, pytestconfig, tmp_path, calls):
    "With an adapter, beside its layers and merged."
    folder = pytestconfig.rootpath / 'tests' / 'golden' / kind
    def of(products, **how):
        return set_products(navira.load(folder, dtype='float32', **how), products)
    model = with_adapter(of('onednn'), 2).eval()
    with torch.no_grad():
        for n, p in model.named_parameters():
            if 'lora_' in n or n.startswith('quality.'): p.copy_(p.normal_(std=.1).bfloat16())
    save_adapter(model, tmp_path)
    want = outputs(of('default', head=tmp_path))
    assert not calls
    for m in (of('onednn', head=tmp_path), model):
        for a, b in zip(want, outputs(m), strict=True): torch.testing.assert_close(a, b)
    assert calls

def test_a_model_gets_the_faster_after_one_measurement(tmp_path, monkeypatch):
    save(noisy(HEAD), tmp_path)
    asked, taken = [], 'onednn' if HAS_ONEDNN else 'default'
    monkeypatch.setattr('navira.models.products.faster', lambda *key: asked.append(key) or taken)
    assert products_of(load(tmp_path)) == taken
    assert products_of(load(tmp_path, dtype='bfloat16')) == 'default'
    assert asked == [(HEAD.hidden_dim, torch.get_num_threads())]
    assert faster(64, 1) in ('default', 'onednn') and faster.cache_info().currsize
