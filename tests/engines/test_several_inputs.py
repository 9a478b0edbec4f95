"""Inputs and targets of several tensors, and outputs of any kind, in every engine."""

from collections import OrderedDict
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from partavg.core.cuts import by_channel
from partavg.core.inputs import Inputs
from partavg.core.loop import Batch
from partavg.engines.choose import choose
from partavg.engines.looped import Looped
from partavg.engines.model import RowModel
from partavg.engines.vmapped import Vmapped
from partavg.theory import estimate

CPU = torch.device("cpu")
WORKERS, SAMPLES, LENGTH = 3, 4, 6


@dataclass
class Answer:
    """As Hugging Face's ModelOutput: attributes, not a tensor."""

    logits: Tensor
    length: Tensor


class Reader(nn.Module):
    """The mean of the words that a mask leaves."""

    def __init__(self, kind: str = "tensor") -> None:
        super().__init__()
        self.words = nn.Embedding(10, 5)
        self.head = nn.Linear(5, 3)
        self.kind = kind

    def forward(self, ids: Tensor, mask: Tensor) -> object:
        kept = mask[..., None].to(self.head.weight.dtype)
        length = kept.sum(1)
        logits = self.head((self.words(ids) * kept).sum(1) / length)
        found = {
            "tensor": logits,
            "tuple": (logits, length),
            "dict": {"logits": logits, "length": length},
            "object": Answer(logits, length),
        }
        return found[self.kind]


def loss(outputs: object, targets: Tensor) -> Tensor:
    if isinstance(outputs, tuple):
        outputs = outputs[0]
    elif isinstance(outputs, dict):
        outputs = outputs["logits"]
    elif isinstance(outputs, Answer):
        outputs = outputs.logits
    return F.cross_entropy(outputs, targets)


def words() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    ids = torch.randint(0, 10, (WORKERS, SAMPLES, LENGTH))
    mask = torch.arange(LENGTH) < torch.randint(1, LENGTH, (WORKERS, SAMPLES, 1))
    return ids, mask


def batch_of(inputs: Inputs) -> Batch:
    return Batch(inputs, torch.randint(0, 3, (WORKERS, SAMPLES)), torch.arange(WORKERS))


def gradients(engine, model: RowModel, batch: Batch) -> Tensor:
    params, buffers = (row.repeat(WORKERS, 1) for row in model.start())
    return torch.cat(
        [piece for found in engine(params, buffers, batch) for _, piece in found.pieces]
    )


@pytest.mark.parametrize("kind", ["tensor", "tuple", "dict", "object"])
@pytest.mark.parametrize("inputs", ["tuple", "dict", "mapping"])
def test_engines_agree_with_plain_autograd(kind: str, inputs: str) -> None:
    ids, mask = words()
    kinds = {"tuple": (ids, mask), "dict": {"mask": mask, "ids": ids}}
    kinds["mapping"] = OrderedDict(kinds["dict"])
    batch = batch_of(kinds[inputs])
    module = Reader(kind).double()
    model = RowModel(module, loss, CPU)
    expected = []
    for row in range(WORKERS):
        module.zero_grad()
        loss(module(ids[row], mask[row]), batch.targets[row]).backward()
        expected.append(torch.cat([p.grad.flatten() for p in module.parameters()]))
    for engine in (Looped(model), Vmapped(model, 2)):
        torch.testing.assert_close(gradients(engine, model, batch), torch.stack(expected))


def test_several_targets_go_to_the_loss_as_they_are() -> None:
    module = nn.Linear(2, 3).double()
    inputs = torch.randn(WORKERS, SAMPLES, 2).double()
    values, weights = torch.randn(2, WORKERS, SAMPLES, 3).double()

    def weighted(outputs: Tensor, targets: dict[str, Tensor]) -> Tensor:
        return (targets["weights"] * (outputs - targets["values"]) ** 2).mean()

    model = RowModel(module, weighted, CPU)
    batch = Batch(inputs, {"values": values, "weights": weights}, torch.arange(WORKERS))
    for engine in ("looped", "vmapped", "fused"):
        choice = choose(engine, 0, model, model.start(), batch)
        found = gradients(choice.build(model), model, batch)
        torch.testing.assert_close(found, gradients(Looped(model), model, batch))


def test_the_fused_engine_refuses_several_inputs_by_name() -> None:
    model, batch = RowModel(Reader(), loss, CPU), batch_of(words())
    with pytest.raises(ValueError, match=r"fused cannot run this model: .* several tensors"):
        choose("fused", 0, model, model.start(), batch)
    assert choose("vmapped", 0, model, model.start(), batch).name == "vmapped"
    assert choose("auto", 0, model, model.start(), batch).name in ("looped", "vmapped")


def test_the_fused_engine_refuses_an_optional_argument_that_is_used() -> None:
    class Scaled(nn.Linear):
        def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
            return super().forward(x if scale is None else x * scale)

    model = RowModel(Scaled(2, 3), F.cross_entropy, CPU)
    batch = batch_of(torch.randn(WORKERS, SAMPLES, 2))
    with pytest.raises(ValueError, match="argument scale: inputs of several"):
        choose("fused", 0, model, model.start(), batch)


def test_constants_of_the_theorems_are_estimated_from_several_inputs() -> None:
    ids, mask = (tensor.flatten(0, 1) for tensor in words())
    targets = torch.randint(0, 3, (len(ids),))
    split = list(torch.arange(len(ids)).chunk(WORKERS))
    module = Reader().double()
    partition = by_channel(RowModel(module, loss, CPU).params, 2)
    options = {"partition": partition, "batch": 2, "repeats": 1, "batches": 2, "roughness_of": 1}
    one = estimate(module, loss, ((ids, mask), targets), split, **options)
    other = estimate(module, loss, ({"ids": ids, "mask": mask}, targets), split, **options)
    assert one.loss == pytest.approx(other.loss)
    assert one.smoothness == pytest.approx(other.smoothness)
