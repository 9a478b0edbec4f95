"""Lightning: python examples/lightning_module.py, which starts a second process by itself.

Only the strategy is ours: each process trains its own copy on its own share of the data, after
every step another eighth of the model is averaged, and what is tested is the averaged model.
"""

import lightning
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import partavg
from partavg.integrations.lightning import PartialAveragingStrategy

EPOCHS = 5
Batch = tuple[Tensor, Tensor]


class Classifier(lightning.LightningModule):
    """A perceptron for small images, as anybody writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch: Batch) -> Tensor:
        """The loss of a batch."""
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def test_step(self, batch: Batch) -> None:
        """The accuracy, over all processes."""
        accuracy = (self.net(batch[0]).argmax(1) == batch[1]).float().mean()
        self.log("accuracy", accuracy, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """What takes the steps."""
        return torch.optim.AdamW(self.parameters(), lr=0.003)


def main() -> None:
    """Train, and say how good the averaged model is."""
    data = partavg.load_dataset("fashion_subset")
    train, test = (TensorDataset(s.inputs / 255.0, s.targets) for s in (data.train, data.test))
    trainer = lightning.Trainer(
        strategy=PartialAveragingStrategy(interval=8),
        accelerator="cpu",
        devices=2,
        max_epochs=EPOCHS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Classifier()
    trainer.fit(model, DataLoader(train, batch_size=32, shuffle=True))
    [found] = trainer.test(model, DataLoader(test, batch_size=100), verbose=False)
    if trainer.is_global_zero:
        ranks, accuracy = trainer.world_size, found["accuracy"]
        print(f"{ranks} ranks, accuracy of the averaged model: {accuracy:.1%}")


if __name__ == "__main__":
    main()
