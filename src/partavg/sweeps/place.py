"""The folder of a sweep: whose it is, and what `--force` gives away."""

from contextlib import suppress
from pathlib import Path
from shutil import rmtree

from partavg.folder import CONFIG, RunFolder
from partavg.sweeps.claim import claimed
from partavg.sweeps.plan import PLAN, Sweep

RESULTS, ENGINE, ENGINES = "sweep.csv", "engine.toml", "engines.json"
JOURNAL, HELPERS = "optuna.journal", "helpers.log"
_WRITTEN = (RESULTS, ENGINE, ENGINES, JOURNAL, HELPERS)


def check_free(sweep: Sweep, *, resume: bool, force: bool) -> None:
    """Raise a ValueError if a sweep here would overwrite, hide or mix what is not its own."""
    if not sweep.begun:
        _check_strangers(sweep.out)
        for scheme in sweep.schemes:
            for entry in sweep.tests(scheme):
                entry.folder.check_free(resume=False, force=False)
    elif not (resume or force):
        raise ValueError(
            f"{sweep.out} holds a sweep: use --resume to continue it, --force to begin again, or "
            f"another --out"
        )
    elif resume:
        sweep.check_same()
    else:
        sweep.stored()  # or a sentence that it is none of ours
        if claimed(sweep.out / "locks"):
            raise ValueError(
                f"a process is at work on the sweep in {sweep.out}, and --force would remove what "
                f"it trains: stop that first, help it with --resume, or use another --out"
            )


def check_no_sweep(out: Path) -> None:
    """Raise a ValueError if a comparison here would replace the report of a sweep."""
    if (out / PLAN).is_file():
        raise ValueError(f"{out} holds a sweep, with a report of its own: use another --out")


def clear(sweep: Sweep) -> None:
    """Remove the sweep that is here, and nothing else."""
    for scheme in sweep.stored()["schemes"]:
        tried, tests = sweep.out / "tune" / scheme, sweep.out / "test"
        for run in (*tried.glob("[0-9][0-9]*-*/"), *tests.glob(f"{scheme}-seed[0-9]*/")):
            rmtree(run, ignore_errors=True)
        with suppress(OSError):  # it is not there, or holds what is not ours
            tried.rmdir()
    rmtree(sweep.out / "locks", ignore_errors=True)
    for path in (*(sweep.out / name for name in _WRITTEN), sweep.path):
        path.unlink(missing_ok=True)


def tests_of(folder: Path) -> Path:
    """Where the tests of a sweep are, which are what is compared; another folder is itself."""
    tests = folder / "test"
    return tests if (folder / PLAN).is_file() and tests.is_dir() else folder


def _check_strangers(out: Path) -> None:
    """Where there is no sweep, files with the names of a sweep's are somebody else's."""
    for name in _WRITTEN:
        if (out / name).exists():
            raise ValueError(
                f"{out / name} would be overwritten, but {out} holds no sweep: use another --out, "
                f"or move it away"
            )
    for path in sorted(out.glob(f"*/{CONFIG}")):
        if RunFolder(path.parent).exists:
            raise ValueError(
                f"{out} holds other runs, as {path.parent.name}, and the report of a sweep would "
                f"replace theirs: use another --out"
            )
