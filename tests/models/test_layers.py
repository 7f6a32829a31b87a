"""The sizes of a network, and which of them are refused."""
import pytest
import torch

from navira.models.dit import MaskedLM
from navira.models.layers import attend, Config, Place

@pytest.mark.parametrize(
    "bad",
    [
        dict(vocab_size=0), dict(n_heads=5), dict(n_blocks=1.5), dict(dropout=1.0), dict(time_conditioning=True),
        dict(mask_id=50258), dict(quality_blocks=2)],
)
def test_config_is_checked(bad):
    with pytest.raises(ValueError, match=next(iter(bad))): Config(**bad)

@pytest.mark.parametrize(
    "bad", [dict(boxes=(3,)), dict(boxes=(3, 0)), dict(boxes="33"), dict(boxes=(3, 3), model_length=80)])
def test_boxes_are_checked(bad):
    with pytest.raises(ValueError, match=next(reversed(bad))):
        Config(**dict(vocab_size=10, model_length=81, hidden_dim=8, n_heads=2) | bad)

def test_places_are_rows_columns_and_boxes():
    "Two cells have one embedding in common for each unit that they share"
    place = Place((2, 3), 4)
    for k, unit in enumerate(place.units):
        with torch.no_grad(): unit.embedding.copy_((torch.arange(6.) * 10. ** k)[:, None].expand(6, 4))
    row, col = torch.arange(36) // 6, torch.arange(36) % 6
    assert torch.equal(place()[:, 0], row + 10. * col + 100. * (row // 2 * 2 + col // 3))

def test_a_network_of_grids_does_not_know_the_order_of_its_cells():
    """It knows a cell by its units alone: if two rows of a band that are alike change places, so
    do the outputs"""
    torch.manual_seed(0)
    config = Config(vocab_size=5, model_length=16, hidden_dim=16, cond_dim=4, n_blocks=2, n_heads=2, dropout=0.,
                    boxes=(2, 2))
    model = MaskedLM(config).double().eval()
    with torch.no_grad():
        for p in model.parameters(): p.copy_(.3 * torch.randn(p.shape))
        place = model.backbone.place.units
        place[0].embedding[1] = place[0].embedding[0]                        # rows 0 and 1 become alike
    x = torch.randint(0, 5, (3, 16))
    swapped = torch.cat([x[:, 4:8], x[:, :4], x[:, 8:]], 1)
    a, b = (model(v).logits(torch.ones(3, 16, dtype=torch.bool)).view(3, 16, 5)[..., :4] for v in (x, swapped))
    assert torch.allclose(torch.cat([a[:, 4:8], a[:, :4], a[:, 8:]], 1), b, atol=1e-12)
    with pytest.raises(ValueError, match="15 positions: expected 16 to 16"): model(x[:, :15])

def test_attention_written_out():
    """Where a CPU learns in bf16 it is the same attention, with the same gradients, up to the
    precision of bf16"""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 17, 8) for _ in range(3))
    def with_gradients(dtype):
        leaves = [a.to(dtype).requires_grad_() for a in (q, k, v)]
        out = attend(*leaves)
        out.float().square().sum().backward()
        return [out, *(a.grad for a in leaves)]
    for a, b in zip(with_gradients(torch.bfloat16), with_gradients(torch.float32)):
        assert (a.float() - b).norm() < .03 * b.norm()
    with torch.no_grad(): assert torch.equal(attend(q, k, v), torch.nn.functional.scaled_dot_product_attention(q, k, v))
