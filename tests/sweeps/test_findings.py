"""What a sweep says of what it found."""

from pathlib import Path

from tests.sweeps.test_search import Pretended, sweep

from partavg.cli.sweep_report import write_csv
from partavg.comparison import Result
from partavg.sweeps.findings import said, spent, tuned
from partavg.sweeps.runner import Sweeping
from partavg.sweeps.search import Listed


def sentences(out: Path, accuracy) -> str:
    planned = sweep(out)
    sweeping = Sweeping(planned, Listed(planned))
    sweeping.work(Pretended(accuracy))
    return " ".join(said(tuned(sweeping)))


def test_the_gap_at_one_setting_is_said_where_there_is_one(tmp_path: Path) -> None:
    apart = sentences(tmp_path / "a", lambda scheme, lr: lr if scheme == "partial" else 0.2)
    assert "would have been anything from −10.00 (at 0.1) to +20.00 (at 0.4)." in apart
    assert "would have been" not in sentences(tmp_path / "b", lambda scheme, lr: lr)


def test_settings_that_are_level_are_no_edge_and_are_told(tmp_path: Path) -> None:
    level = sentences(tmp_path / "a", lambda scheme, lr: 0.1 if scheme == "partial" else lr)
    assert "As good on validation samples: 2 more of partial. The first was taken" in level
    assert "At an edge: training.lr = 0.4 is the largest tried of periodic. Try" in level
    apart = sentences(tmp_path / "b", lambda scheme, lr: lr)
    assert "As good" not in apart
    assert apart.count("is the largest tried") == 2


def test_on_validation_samples_there_is_no_test_loss(tmp_path: Path) -> None:
    planned = sweep(tmp_path)
    sweeping = Sweeping(planned, Listed(planned))
    sweeping.work(Pretended(lambda scheme, lr: lr))
    for path in tmp_path.glob("tune/*/*/summary.json"):
        path.write_text(path.read_text().replace("accuracy", "test_loss"))
    found = tuned(sweeping)
    assert said(found)[0].startswith("Chosen on validation samples by loss, one seed: ")
    assert found[0].chosen.outcome.value == 0.1
    write_csv(tmp_path / "found.csv", found)
    assert "step,validation loss,chosen" in (tmp_path / "found.csv").read_text()


def test_privacy_is_of_one_run_and_a_sweep_has_many() -> None:
    private = Result("partial", ({"accuracy": 0.5, "epsilon": 1.0, "delta": 1e-5},))
    assert "Each ε is of one run" in spent([private])[0]
    assert spent([Result("partial", ({"accuracy": 0.5},))]) == []
