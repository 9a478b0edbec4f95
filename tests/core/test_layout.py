import torch
from hypothesis import given
from tests.strategies import layouts

from partavg.core.layout import Layout


@given(layouts())
def test_views_cover_every_column_once(layout: Layout) -> None:
    flat = torch.arange(layout.size)
    views = layout.views(flat)
    assert [tuple(view.shape) for view in views.values()] == list(layout.shapes)
    assert torch.equal(torch.cat([view.reshape(-1) for view in views.values()]), flat)


@given(layouts())
def test_flatten_and_views_are_inverse(layout: Layout) -> None:
    flat = torch.randn(layout.size)
    tensors = {name: view.clone() for name, view in layout.views(flat).items()}
    assert Layout.of(tensors) == layout
    assert torch.equal(layout.flatten(tensors, flat.dtype), flat)


def test_views_share_memory_and_keep_leading_axes() -> None:
    layout = Layout(("a", "b"), ((2, 3), ()))
    rows = torch.zeros(4, 7)
    views = layout.views(rows)
    assert views["a"].shape == (4, 2, 3)
    assert views["b"].shape == (4,)
    views["b"][2] = 5
    assert rows[2, 6] == 5
