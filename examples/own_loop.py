"""Your own training loop on several processes: torchrun --nproc-per-node 4 examples/own_loop.py.

Everything here is plain PyTorch except the two lines with `partavg.attach`: each process trains its
own copy on its own samples, and after every step another eighth of the model is averaged.
"""

import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import HashStore
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import partavg

EPOCHS = 5


def main() -> None:
    """Train, and say how good the averaged model is."""
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

    with partavg.attach(model, optimizer, interval=8) as averager:
        for epoch in range(EPOCHS):
            mine.set_epoch(epoch)
            for x, y in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()  # … and the part that is due is averaged

    model.eval()  # now the same on all ranks
    accuracy = (model(test).argmax(1) == data.test.targets).float().mean()
    if dist.get_rank() == 0:
        sent = averager.bytes / 1e6
        print(f"{dist.get_world_size()} ranks, {averager.steps} steps, {sent:.1f} MB sent by each")
        print(f"accuracy of the averaged model: {accuracy:.1%}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
