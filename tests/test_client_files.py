"""What clients keep is saved as far as it changed, and found again whole."""

from pathlib import Path

import pytest
import torch
from tests import tasks
from torch import Tensor

from partavg import checkpoint
from partavg.client_files import Banks, ClientFiles
from partavg.core.bank import Bank


def save(files: ClientFiles, folder: Path, step: int, bank: Bank) -> int:
    """Save a bank beside a checkpoint; how many rows were written."""
    banks = {"control": bank.state(whole=files.begin_anew)}
    left, beside = files.save(banks)
    checkpoint.save(folder, step, {"bank": left, "beside": beside})
    bank.saved_()
    return len(banks["control"]["clients"])


def load(files: ClientFiles, folder: Path) -> Tensor:
    """All rows, as they were saved last."""
    saved = checkpoint.load(folder)
    assert saved is not None
    found: Banks = files.load(saved["bank"], saved["beside"])
    bank = Bank(torch.zeros(1, 3), 50)
    bank.load_(found["control"])
    return bank.whole()


def put_(bank: Bank, clients: list[int], value: float) -> None:
    bank.put_(torch.tensor(clients), torch.full((len(clients), 3), value))


def beside(folder: Path) -> list[Path]:
    return sorted(folder.glob("clients-*.pt"))


def test_only_rows_that_changed_are_written(tmp_path: Path) -> None:
    files, bank = ClientFiles(tmp_path), Bank(torch.zeros(1, 3), 50)
    assert save(files, tmp_path, 0, bank) == 0
    assert beside(tmp_path) == []
    put_(bank, list(range(40)), 1.0)
    assert save(files, tmp_path, 1, bank) == 40
    put_(bank, [3, 45], 2.0)
    assert save(files, tmp_path, 2, bank) == 2
    assert save(files, tmp_path, 3, bank) == 0
    assert len(beside(tmp_path)) == 2
    again = ClientFiles(tmp_path)
    assert torch.equal(load(again, tmp_path), bank.whole())
    put_(bank, [3], 4.0)
    assert save(again, tmp_path, 4, bank) == 1
    bank.fill_(slice(0, 1), torch.tensor([9.0]))
    assert save(again, tmp_path, 5, bank) == 41
    assert torch.equal(load(ClientFiles(tmp_path), tmp_path), bank.whole())


def test_files_are_written_anew_before_they_are_many_times_as_large(tmp_path: Path) -> None:
    files, bank = ClientFiles(tmp_path), Bank(torch.zeros(1, 3), 50)
    for step in range(1, 40):
        put_(bank, [step % 7, 10 + step % 3], float(step))
        save(files, tmp_path, step, bank)
        assert torch.equal(load(ClientFiles(tmp_path), tmp_path), bank.whole())
        rows = [len(torch.load(path)["control"]["clients"]) for path in beside(tmp_path)]
        assert sum(rows) <= 4 * 2 * len(bank.known), "those of the checkpoint before are there, too"


def test_a_checkpoint_is_whole_with_the_files_that_it_needs(tmp_path: Path) -> None:
    files, bank = ClientFiles(tmp_path), Bank(torch.zeros(1, 3), 50)
    put_(bank, list(range(20)), 1.0)
    save(files, tmp_path, 1, bank)
    before, (first,) = bank.whole(), beside(tmp_path)
    put_(bank, [0], 2.0)
    save(files, tmp_path, 2, bank)
    (second,) = set(beside(tmp_path)) - {first}
    second.write_bytes(second.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="is damaged .*: using that of step 1"):
        assert torch.equal(load(ClientFiles(tmp_path), tmp_path), before)
    first.unlink()
    with pytest.warns(UserWarning, match="there is none to go on from"):
        assert checkpoint.load(tmp_path) is None
    checkpoint.keep(tmp_path, 0)
    assert list(tmp_path.iterdir()) == []


def test_a_run_with_few_active_clients_writes_little(tmp_path: Path) -> None:
    run = tasks.run(tmp_path / "run", **tasks.CLIENTS, checkpoints={"every": 1})
    written: dict[Path, float] = {}
    for _ in run:
        now = {path: path.stat().st_mtime_ns for path in beside(tmp_path / "run" / "checkpoints")}
        assert all(now[path] == time for path, time in written.items() if path in now)
        written |= now
    assert len(written) > 1


def test_a_state_is_whole_unless_asked_for_less() -> None:
    bank = Bank(torch.zeros(1, 3), 50)
    put_(bank, [4, 2], 1.0)
    bank.saved_()
    put_(bank, [4], 2.0)
    assert bank.state()["clients"].tolist() == [2, 4]
    assert bank.state(whole=False)["clients"].tolist() == [4]
