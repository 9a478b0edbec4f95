"""A task small enough to run in a second."""

import json
from pathlib import Path

import torch

from partavg import checkpoint
from partavg.backends.processes import Processes
from partavg.client_files import ClientFiles
from partavg.config import Config
from partavg.data.dataset import Dataset, Samples
from partavg.folder import RunFolder
from partavg.recipe import Recipe
from partavg.recipe_run import Run

TINY = {
    "split": {"name": "dirichlet", "alpha": 1.0, "minimum": 1},
    "model": {"hidden": [6], "batch_norm": True, "dropout": 0.1},
    "training": {"workers": 4, "batch": 5, "steps": 12, "lr": 0.1},
    "solver": {"momentum": 0.9, "weight_decay": 1e-3, "decay": "kernels"},
    "averaging": {"interval": 4},
    "metrics": {"evaluate_every": 5, "discrepancy_every": 1},
    "checkpoints": {"every": 3},
    "engine": {"name": "vmapped"},
}


# Sections that change it.
EVERYBODY = {}
PERMUTED = {"participation": {"fraction": 0.5, "every": 3}}
AVERAGED = {"participation": {"fraction": 0.75, "every": 4, "redistribution": "average"}}
KEPT = {"participation": {"fraction": 0.5, "every": 2, "redistribution": "none"}}
NOVA = {"name": "fednova", "momentum": None, "weight_decay": None, "decay": None}
CLIENTS = {**PERMUTED, "solver": {"name": "scaffold", "momentum": None, "weight_decay": None,
                                  "decay": None, "base": {"momentum": 0.5}}}  # fmt: skip
PERSONAL = {
    **PERMUTED,
    "averaging": {"local": ["2.*", "5.weight"]},
    "solver": {"name": "adam", "momentum": None, "decay": None},
}
LATE = {
    "averaging": {"delay": 2, "shuffle": True},
    "pace": {"name": "drawn", "least": 2, "most": 4},
}
POST_LOCAL = {"adapt": {"name": "post_local", "until": 5}}
SHRINKING = {"adapt": {"name": "adacomm", "block": 3}}
LAYERED = {"adapt": {"name": "fedlama"}, "averaging": {"partition": "layer", "interval": 2}}


def recipe(**sections: dict) -> Recipe:
    """TINY with some keys changed, as a recipe."""
    table = {name: dict(values) for name, values in TINY.items()}
    for name, values in sections.items():
        table.setdefault(name, {}).update(values)
        table[name] = {key: value for key, value in table[name].items() if value is not None}
    return Recipe("tiny", table, {})


def config(**sections: dict) -> Config:
    """TINY with some keys changed."""
    return recipe(**sections).config()


def data() -> Dataset:
    """Three classes of points, made up."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(150) % 3
    inputs = torch.randn(150, 5, generator=generator) + 2 * torch.eye(5)[targets]
    return Dataset(
        Samples(inputs[:120], targets[:120]), Samples(inputs[120:], targets[120:]), classes=3
    )


def run(
    folder: Path,
    *,
    resume: bool = False,
    force: bool = False,
    processes: Processes | None = None,
    **sections: dict,
) -> Run:
    """A run of TINY, not yet started."""
    where = RunFolder(folder)
    return Run(config(**sections), data(), where, resume=resume, force=force, processes=processes)


def finish(run: Run) -> dict[str, bytes]:
    """Train to the end; everything that must be the same for the same run."""
    for _ in run:
        pass
    return outcome(run.folder.path)


def outcome(folder: Path) -> dict[str, bytes]:
    """The same of a run that is at its end."""
    state = torch.load(folder / "model.pt", weights_only=True)
    saved = checkpoint.load(folder / "checkpoints")
    assert saved is not None
    tensors = {**state, **{k: v for k, v in saved["workers"].items() if torch.is_tensor(v)}}
    tensors |= saved["workers"]["memory"]
    banks = ClientFiles(folder / "checkpoints").load(saved["workers"]["bank"], saved["beside"])
    for name, bank in banks.items():
        tensors |= {f"bank.{name}.{what}": tensor for what, tensor in bank.items()}
    summary = json.loads((folder / "summary.json").read_text())
    summary.pop("seconds")
    return {
        "metrics": (folder / "metrics.jsonl").read_bytes(),
        "config": (folder / "config.toml").read_bytes(),
        "summary": json.dumps(summary).encode(),
        **{name: tensor.numpy().tobytes() for name, tensor in tensors.items()},
    }
