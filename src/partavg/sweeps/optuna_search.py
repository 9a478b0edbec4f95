"""Settings that optuna suggests; it remembers them in a file, or in a database of the user's."""

from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from partavg.core.seeds import fold
from partavg.sentences import reason
from partavg.sweeps.place import JOURNAL
from partavg.sweeps.plan import Sweep
from partavg.sweeps.search import Trial, Tried
from partavg.sweeps.space import Axis, Point

SAMPLERS = {"tpe": "TPESampler", "gp": "GPSampler", "qmc": "QMCSampler", "random": "RandomSampler"}


def require() -> Any:
    """The package; a ValueError says how to get it."""
    try:
        import optuna
    except ImportError:
        raise ValueError(
            "a search by optuna needs the package optuna: pip install 'partavg[optuna]'"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


class OptunaSearch:
    """A study for each scheme; several processes may work on them."""

    def __init__(self, sweep: Sweep, storage: str | None = None) -> None:
        self._optuna, self.sweep = require(), sweep
        if sweep.sampler not in SAMPLERS:
            raise ValueError(f"sampler {sweep.sampler!r} is not known: use {', '.join(SAMPLERS)}")
        self._given = _opened(self._optuna, storage) if storage else None
        self._seed = sweep.first

    def open(self, scheme: str) -> list[Trial]:
        """Those that were not told: of others, of one that was killed; and those without a run."""
        running = self._optuna.trial.TrialState.RUNNING
        found = ((one, self._trial(scheme, one)) for one in self._asked(scheme))
        return [trial for one, trial in found if one.state == running or trial.outcome is None]

    def more(self, scheme: str) -> Trial | None:
        """What optuna suggests next, a function of what it was told."""
        study = self._study(scheme)
        number = len(self._asked(scheme))
        if number >= self.sweep.trials:
            return None
        sampler = getattr(self._optuna.samplers, SAMPLERS[self.sweep.sampler])
        study.sampler = sampler(seed=fold(self._seed, scheme, number) % 2**32)
        axes = {axis.key: self._distribution(axis) for axis in self.sweep.axes}
        return self._trial(scheme, study.ask(axes))

    def tell(self, scheme: str, trial: Trial) -> None:
        """Say what came of it."""
        known = trial.outcome
        if known is None:
            return
        state = self._optuna.trial.TrialState
        value, metric = known.value, known.metric
        sign = 1 if metric and metric.better == "higher" else -1  # studies maximize
        how = {"state": state.FAIL} if value is None else {"values": sign * value}
        self._study(scheme).tell(trial.number, skip_if_finished=True, **how)

    def over(self, scheme: str) -> bool:
        """Whether as many as wanted were told, and all their runs are there."""
        return self._told(scheme) >= self.sweep.trials and not self.open(scheme)

    def tried(self, scheme: str) -> list[Tried]:
        """Those that are finished."""
        trials = (self._trial(scheme, one) for one in self._asked(scheme))
        found = ((trial, trial.outcome) for trial in trials)
        return [Tried(trial, known) for trial, known in found if known]

    def work(self, scheme: str) -> float:
        """One for each, and for each seed."""
        return self.sweep.trials * self.sweep.tune_seeds

    def done(self, scheme: str) -> float:
        """Those that are there, also before they are told."""
        return float(sum(self._trial(scheme, one).done for one in self._asked(scheme)))

    def _asked(self, scheme: str) -> list[Any]:
        """Those with all their values: one that is asked for now, or was at a kill, lacks some."""
        keys = {axis.key for axis in self.sweep.axes}
        return [one for one in self._study(scheme).get_trials() if keys <= one.params.keys()]

    def _told(self, scheme: str) -> int:
        trials = self._study(scheme).get_trials(deepcopy=False)
        return sum(trial.state.is_finished() for trial in trials)

    @cached_property
    def _storage(self) -> Any:
        return self._given or _journal(self.sweep.out / JOURNAL)

    @lru_cache  # noqa: B019  a search lives as long as its process
    def _study(self, scheme: str) -> Any:
        own = self.sweep.stored().get("study", "")  # a database may hold sweeps of the same name
        try:
            return self._optuna.create_study(
                storage=self._storage,
                study_name=f"{self.sweep.name} {scheme} {own}".strip(),
                direction="maximize",
                load_if_exists=True,
            )
        except Exception as error:  # of a journal that is damaged, or of a database
            where = "the database" if self._given else self.sweep.out / JOURNAL
            raise ValueError(
                f"{where} cannot be read by Optuna ({reason(error)}): move it away, and --resume "
                f"asks again; runs that are there are not trained again"
            ) from None

    def _distribution(self, axis: Axis) -> Any:
        known = self._optuna.distributions
        if axis.ends is None:
            return known.CategoricalDistribution(tuple(range(len(axis.values))))
        return known.FloatDistribution(*axis.ends, log=axis.log)

    def _trial(self, scheme: str, asked: Any) -> Trial:
        point: Point = tuple(
            (axis.key, _value(axis, asked.params[axis.key])) for axis in self.sweep.axes
        )
        return Trial(asked.number, point, self.sweep.trial(scheme, asked.number, point))


def _value(axis: Axis, suggested: Any) -> Any:
    """A number with four digits, or one of the values listed."""
    return float(f"{suggested:.4g}") if axis.ends else axis.values[suggested]


def _opened(optuna: Any, storage: str) -> Any:
    """A database of the user's; a ValueError says why there is none."""
    try:
        return optuna.storages.get_storage(storage)
    except Exception as error:  # what its drivers raise has no type in common
        why = str(error).partition("\n")[0].rstrip(".")
        raise ValueError(
            f"storage {storage!r} cannot be opened ({why}): use an address like sqlite:///trials.db"
        ) from None


def _journal(path: Path) -> Any:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    path.parent.mkdir(parents=True, exist_ok=True)
    return JournalStorage(JournalFileBackend(str(path), lock_obj=JournalFileOpenLock(str(path))))
