"""A loop with accelerate: torchrun --nproc-per-node 2 examples/accelerate_loop.py.

`PartialAveraging` takes the place of accelerate's LocalSGD: each process trains its own copy on its
own share of the data, and after every step another eighth of the model is averaged.
"""

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import partavg
from partavg.integrations.accelerate import PartialAveraging

EPOCHS = 5


def main() -> None:
    """Train, and say how good the averaged model is."""
    data = partavg.load_dataset("fashion_subset")
    samples = TensorDataset(data.train.inputs.flatten(1) / 255.0, data.train.targets)
    model: nn.Module = nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, optimizer, loader = accelerator.prepare(
        model,
        torch.optim.AdamW(model.parameters(), lr=0.003),
        DataLoader(samples, batch_size=16, shuffle=True),
    )

    with PartialAveraging(accelerator, model, interval=8, optimizer=optimizer):
        for _ in range(EPOCHS):
            for x, y in loader:
                with accelerator.accumulate(model):
                    accelerator.backward(F.cross_entropy(model(x), y))
                    optimizer.step()  # … and the part that is due is averaged
                    optimizer.zero_grad()

    model.eval()  # now the same on all ranks
    inputs = data.test.inputs.flatten(1) / 255.0
    accuracy = (model(inputs).argmax(1) == data.test.targets).float().mean()
    accelerator.print(
        f"{accelerator.num_processes} ranks, accuracy of the averaged model: {accuracy:.1%}"
    )


if __name__ == "__main__":
    main()
