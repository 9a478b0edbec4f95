"""Your own training loop on several processes: torchrun --nproc-per-node 4 examples/own_loop.py.

Everything here is plain PyTorch except the two lines with `partavg.attach`: each process trains its
own copy on its own samples, and after every step another eighth of the model is averaged. With a
folder for checkpoints, every process keeps its copy there after each epoch, and goes on from it.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import HashStore
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import partavg

EPOCHS = 5


def main(words: Sequence[str] = ()) -> None:
    """Train, and say how good the averaged model is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--interval", type=int, default=8, help="steps between averages of a part")
    parser.add_argument("--parts", type=int, help="as many as steps, unless given")
    parser.add_argument("--delay", type=int, default=0, help="steps until an average arrives")
    parser.add_argument("--wire", default="full", help="full, bf16, int8, int4 or top-k")
    parser.add_argument("--checkpoints", type=Path, help="a folder on this machine")
    arguments = parser.parse_args(words)
    if "RANK" in os.environ:  # started by torchrun
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)

    data = partavg.load_dataset("fashion_subset")
    inputs, test = (samples.inputs.flatten(1) / 255.0 for samples in (data.train, data.test))
    samples = TensorDataset(inputs, data.train.targets)
    mine: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(samples)
    loader = DataLoader(samples, batch_size=32, sampler=mine)

    model = nn.Sequential(
        nn.Linear(inputs.shape[1], 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)

    options = vars(arguments)
    folder = options.pop("checkpoints")
    with partavg.attach(model, optimizer, **options) as averager:
        kept = Checkpoints(folder, [model, optimizer, averager])
        for epoch in range(kept.load(), EPOCHS):
            mine.set_epoch(epoch)
            for x, y in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()  # … and the part that is due is averaged
            kept.save(epoch + 1)

    model.eval()  # now the same on all ranks
    accuracy = (model(test).argmax(1) == data.test.targets).float().mean()
    if dist.get_rank() == 0:
        sent = averager.bytes / 1e6
        print(f"{dist.get_world_size()} ranks, {averager.steps} steps, {sent:.1f} MB sent by each")
        print(f"accuracy of the averaged model: {accuracy:.1%}")
    dist.destroy_process_group()


class Checkpoints:
    """Every process keeps its own copy of things after each epoch, since copies differ."""

    def __init__(self, folder: Path | None, things: list[Any]) -> None:
        self._folder = folder and folder / os.environ.get("LOCAL_RANK", "0")
        self._things = things

    def load(self) -> int:
        """Go on from the last epoch that all processes have kept; how many there were."""
        if not self._folder:
            return 0
        known: list[set[int]] = [set()] * dist.get_world_size()
        dist.all_gather_object(known, {int(path.stem) for path in self._folder.glob("*.pt")})
        if last := max(set.intersection(*known), default=0):
            saved = torch.load(self._folder / f"{last}.pt", weights_only=True)
            for thing, state in zip(self._things, saved, strict=True):
                thing.load_state_dict(state)
            print(f"rank {dist.get_rank()} goes on after epoch {last}", flush=True)
        return last

    def save(self, epoch: int) -> None:
        """Keep them; a file has its name when it is whole."""
        if self._folder:
            self._folder.mkdir(parents=True, exist_ok=True)
            part = self._folder / f"{epoch}.part"
            torch.save([thing.state_dict() for thing in self._things], part)
            part.rename(self._folder / f"{epoch}.pt")


if __name__ == "__main__":
    main(sys.argv[1:])
