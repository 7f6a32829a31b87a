"""The sizes of a network, and which of them are refused; grids; attention."""
import pytest
import torch

from navira.models.dit import MaskedLM
from navira.models.layers import attend, Config, Place

GRID = dict(vocab_size=10, model_length=81, hidden_dim=8, n_heads=2)

@pytest.mark.parametrize(
    'bad',
    [
        dict(vocab_size=0),
        dict(n_heads=5),
        dict(mask_id=50258),
        dict(p_uniform=float('nan')),
        GRID | dict(boxes=(3, 3), model_length=80),
    ],
)
def test_sizes_that_cannot_be(bad):
    with pytest.raises(ValueError, match="hidden_dim|" + list(bad)[-1]):
        Config(**bad)

def test_places_are_rows_columns_and_boxes():
    "Two cells have one embedding in common for each unit that they share."
    place = Place((2, 3), 4)
    for k, unit in enumerate(place.units):
        values = torch.arange(6.) * 10. ** k
        with torch.no_grad(): unit.embedding.copy_(values[:, None].expand(6, 4))
    row, col = torch.arange(36) // 6, torch.arange(36) % 6
    assert torch.equal(place()[:, 0], row + 10. * col + 100. * (row // 2 * 2 + col // 3))

@torch.no_grad()
def test_a_network_of_grids_does_not_know_the_order_of_its_cells():
    "It knows a cell by its units alone: if two like rows change places, so do the outputs."
    torch.manual_seed(0)
    sizes = dict(vocab_size=5, model_length=16, hidden_dim=16, cond_dim=4, n_blocks=2, n_heads=2)
    model = MaskedLM(Config(**sizes, boxes=(2, 2))).double().eval()
    for p in model.parameters(): p.copy_(.3 * torch.randn(p.shape))
    rows = model.backbone.place.units[0].embedding
    rows[1] = rows[0]
    x, every = torch.randint(0, 5, (3, 16)), torch.ones(3, 16, dtype=torch.bool)
    def swapped(v): return torch.cat([v[:, 4:8], v[:, :4], v[:, 8:]], 1)
    a, b = (model(v).logits(every).view(3, 16, 5)[..., :4] for v in (x, swapped(x)))
    assert torch.allclose(swapped(a), b, atol=1e-12)
    with pytest.raises(ValueError, match='15 positions: expected 16 to 16'): model(x[:, :15])

def test_attention_written_out():
    "Where a CPU learns in bf16 it is the same attention, with the same gradients, up to rounding."
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 17, 8) for _ in range(3))
    def with_gradients(dtype):
        leaves = [a.to(dtype).requires_grad_() for a in (q, k, v)]
        out = attend(*leaves)
        out.float().square().sum().backward()
        return [out, *(a.grad for a in leaves)]
    for a, b in zip(with_gradients(torch.bfloat16), with_gradients(torch.float32)):
        assert (a.float() - b).norm() < .03 * b.norm()
