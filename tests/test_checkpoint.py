from pathlib import Path

import pytest
import torch

from partavg import checkpoint


def save(folder: Path, step: int) -> Path:
    return checkpoint.save(folder, step, {"step": step, "tensor": torch.full((3,), float(step))})


def test_the_newest_is_loaded_and_two_are_kept(tmp_path: Path) -> None:
    for step in (0, 5, 10, 15):
        save(tmp_path, step)
    assert sorted(path.name[:14] for path in tmp_path.iterdir()) == [
        "step-000000010",
        "step-000000015",
    ]
    loaded = checkpoint.load(tmp_path)
    assert loaded is not None
    assert loaded["step"] == 15
    assert loaded["tensor"].tolist() == [15.0] * 3
    assert checkpoint.latest_step(tmp_path) == 15


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "flipped":
        path.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    else:
        path.write_bytes(content[: len(content) // 2] if how == "cut" else b"")


@pytest.mark.parametrize("how", ["flipped", "cut", "emptied"])
def test_a_damaged_one_is_passed_over_with_a_warning(tmp_path: Path, how: str) -> None:
    save(tmp_path, 5)
    damage(save(tmp_path, 10), how)
    with pytest.warns(UserWarning, match=r"step-000000010.*is damaged.*: using that of step 5"):
        loaded = checkpoint.load(tmp_path)
    assert loaded is not None
    assert loaded["step"] == 5


def test_nothing_whole_is_nothing(tmp_path: Path) -> None:
    assert checkpoint.load(tmp_path) is None
    assert checkpoint.latest_step(tmp_path / "missing") is None
    for step in (1, 2):
        damage(save(tmp_path, step), "cut")
    with pytest.warns(UserWarning, match="damaged") as told:
        assert checkpoint.load(tmp_path) is None
    assert [str(one.message).rpartition(": ")[2] for one in told] == (
        ["there is none to go on from"] * 2
    )


def test_drafts_and_strangers_are_ignored(tmp_path: Path) -> None:
    save(tmp_path, 3)
    (tmp_path / "draft.tmp").write_bytes(b"half a checkp")
    (tmp_path / "step-000000009-abc.pt").write_bytes(b"not ours")
    loaded = checkpoint.load(tmp_path)
    assert loaded is not None
    assert loaded["step"] == 3


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux")
@pytest.mark.parametrize("size", [1, 10_000_000])
def test_a_full_disk_is_named_and_nothing_is_left_on_it(tmp_path: Path, size: int) -> None:
    save(tmp_path, 3)
    (tmp_path / "draft.tmp").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"could be written to .*No space left.*make room"):
        checkpoint.save(tmp_path, 4, {"step": 4, "rows": torch.zeros(size)})
    assert checkpoint.latest_step(tmp_path) == 3
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux")
@pytest.mark.parametrize("size", [1, 10_000_000])
def test_a_model_is_written_whole_or_stays_as_it_was(tmp_path: Path, size: int) -> None:
    path = tmp_path / "best.pt"
    checkpoint.save_model(path, {"weight": torch.ones(2)})
    (tmp_path / "best.pt.tmp").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"no model could be written to .*No space left.*make room"):
        checkpoint.save_model(path, {"weight": torch.zeros(size)})
    assert torch.load(path)["weight"].tolist() == [1, 1]
    assert len(list(tmp_path.iterdir())) == 1


def test_saving_the_same_step_again_replaces_it(tmp_path: Path) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    save(tmp_path, 2)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_run_that_went_back_keeps_what_it_saves(tmp_path: Path) -> None:
    """Damaged checkpoints of later steps do not crowd out the new one."""
    save(tmp_path, 3)
    for step in (18, 20):
        damage(save(tmp_path, step), "cut")
    assert save(tmp_path, 5).exists()
    loaded = checkpoint.load(tmp_path)
    assert loaded is not None
    assert loaded["step"] == 5
