"""The app that `partavg flower new` writes, and the report of a federated run."""

import importlib.util
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from flwr.common.config import flatten_dict
from tests import tasks
from tests.flower.federation import federation, server
from tests.flower.grid import FakeGrid
from tests.limits import seconds
from tests.processes import Command

from partavg.evaluation import unchanged
from partavg.flower.new import write_app
from partavg.flower.run import FederatedRun
from partavg.flower.settings import Settings
from partavg.flower.transport import Transport


def partavg(*arguments: str, cwd: Path) -> tuple[int | None, str]:
    """How a command ends, and what it says of errors."""
    command = Command(arguments, cwd)
    err = command.communicate()[1]
    return command.returncode, err


def test_the_app_trains_as_it_is(tmp_path: Path) -> None:
    write_app(tmp_path / "My App")
    config = flatten_dict(
        tomllib.loads((tmp_path / "My App" / "pyproject.toml").read_text())["tool"]["flwr"]["app"][
            "config"
        ]
    )
    assert config["flower.job"] == "my-app"
    config |= {"flower.folder": str(tmp_path / "run"), "training.steps": 60}
    spec = importlib.util.spec_from_file_location("app", tmp_path / "My App" / "app.py")
    assert spec
    assert spec.loader
    app = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(app)
    nodes = {i: {"partition-id": i, "state-dir": str(tmp_path / f"node{i}")} for i in range(3)}
    grid = FakeGrid(app.client, config, nodes)
    settings = Settings.read(config)
    agreement = settings.agreement(app.model, app.F.cross_entropy, torch.device("cpu"))
    rows = list(FederatedRun(settings, agreement, Transport(grid), None, unchanged))
    assert rows[-1]["accuracy"] > 0.5
    part = ["exchange"] * 4
    assert [row["stage"] for row in rows] == [
        *part, "evaluation", *part, "evaluation", *part, "end", "evaluation"
    ]  # fmt: skip


def test_the_command_writes_it_once(tmp_path: Path) -> None:
    assert partavg("flower", "new", "fashion", cwd=tmp_path) == (0, "")
    assert (tmp_path / "fashion" / "app.py").exists()
    again = partavg("flower", "new", "fashion", cwd=tmp_path)
    assert again == (2, "partavg: fashion/app.py is there already: use a new folder\n")


def test_without_flower_a_sentence_says_how_to_install_it(tmp_path: Path) -> None:
    code = "import sys; sys.modules['flwr'] = None; from partavg.cli import main; main()"
    command = [sys.executable, "-c", code, "flower", "new", "fashion"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=seconds())
    assert done.returncode == 2
    assert done.stderr == (
        "partavg: partavg.flower needs Flower, which is not installed: "
        "pip install 'partavg[flower]'\n"
    )


def test_a_federated_run_next_to_a_simulated_one(tmp_path: Path) -> None:
    for _ in tasks.run(tmp_path / "simulated"):
        pass
    grid = federation(tmp_path, {})
    grid.fault = lambda client, message: (
        "late" if client == 1 and message.metadata.group_id == "2" else None
    )
    for _ in server(grid):
        pass
    assert partavg("report", "simulated", "run", "--out", "both.html", cwd=tmp_path) == (0, "")
    page = (tmp_path / "both.html").read_text()
    assert "Clients of run" in page
    assert ">client 1</th><td>20</td>" in page
    assert "Discrepancy of the part that is due" in page
    assert "Seconds per exchange" in page
    assert "clients of Flower train together" in page
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert [entry["step"] for entry in summary["clients"]["1"]["away"]] == [2]
    for name in ("config.toml", "environment.json", "model.pt"):
        assert (tmp_path / "run" / name).exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_federated_run_in_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tests.test_scalars import scalars

    rows = list(server(federation(tmp_path, {"metrics.tensorboard": True})))
    found = scalars(tmp_path / "run" / "tensorboard", unique=False)
    assert found["discrepancy_due"][4] == pytest.approx(
        next(row["discrepancy_due"] for row in rows if row["step"] == 4)
    )
    assert {"test_loss", "seconds", "bytes"} <= found.keys()


def test_a_report_of_nothing_is_refused(tmp_path: Path) -> None:
    code, err = partavg("report", "nowhere", cwd=tmp_path)
    assert code == 2
    assert "nowhere holds no run: name run folders" in err
    assert "Traceback" not in err


NODE = ("flower", "node", "127.0.0.1:1", "--client", "0", "--state", "s")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (NODE, "give --ca FILE, or --insecure for tries on one machine"),
        ((*NODE, "--insecure", "--key", "none"), "name the private key of the SuperNode"),
        (("flower", "simulate", "nowhere"), "name the folder of an app, as partavg flower new"),
        (
            ("flower", "simulate", "app", "--set", "training.step=9"),
            "did you mean 'training.steps'",
        ),
        (("flower", "simulate", "app", "--set", "training.steps=x"), "training.steps = "),
        (("flower", "simulate", "app"), "holds a finished run: use another flower.folder"),
    ],
)
def test_commands_that_cannot_be_run(tmp_path: Path, words: tuple[str, ...], sentence: str) -> None:
    write_app(tmp_path / "app")
    run = tmp_path / "runs" / "app"
    run.mkdir(parents=True)
    for name, text in {
        "config.toml": "",
        "environment.json": '{"started": 1}',
        "summary.json": "{}",
    }.items():
        (run / name).write_text(text)
    code, err = partavg(*words, cwd=tmp_path)
    assert code == 2
    assert sentence in err
    assert "Traceback" not in err
