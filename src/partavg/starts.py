"""What simulations that are compared begin with, and the engine that computes them all."""

import warnings

from partavg.backends.description import Sections
from partavg.backends.simulate import Simulation
from partavg.comparison import StartedRun
from partavg.engines.choice import EngineName

Engines = dict[str, tuple[EngineName, int]]
"""The name and the chunk of each kind of simulation's engine."""


class Starts:
    """What the simulations of a comparison begin with: alike for a seed, other for another one."""

    def __init__(self, engines: Engines | None = None) -> None:
        self._known: dict[str, dict[str, Sections]] = {}
        self._engines = {} if engines is None else engines

    def check(self, entry: StartedRun, made: object) -> None:
        """Raise a ValueError for what is no simulation, or one that was trained with another seed.

        Schemes that begin with other models are compared all the same, with a warning.
        """
        if not isinstance(made, Simulation):
            raise ValueError(
                f"the function gave {type(made).__name__} for scheme {entry.scheme!r} and seed "
                f"{entry.seed}, and not a partavg.Simulation: return one"
            )
        name, chunk = self._engines.setdefault(_kind(made), made.engine[:2])
        made.use(made.engine._replace(name=name, chunk=chunk, reason="as the first"))
        own = made.settings
        seeds = self._known.setdefault(entry.scheme, {})
        for seed, other in seeds.items():
            if other == own and seed != str(entry.seed):
                raise ValueError(
                    f"seeds {seed} and {entry.seed} give the same simulation: hand the seed on, at "
                    f"least to Simulation(seed=seed)"
                )
        seeds[str(entry.seed)] = own
        first = next(iter(self._known.values())).get(str(entry.seed), own)
        for section, what in (("model", "models"), ("split", "splits"), ("data", "data")):
            if own[section] != first[section]:
                warnings.warn(
                    f"the schemes begin with different {what} for seed {entry.seed}, so they "
                    f"differ in more than the scheme: use torch.manual_seed(seed) before the model "
                    f"is made",
                    stacklevel=4,
                )
                return


def _kind(made: Simulation) -> str:
    """What simulations must have in common to be computed by one engine."""
    model = made.settings["model"]
    return f"{model['name']} {model['parameters']} {model['dtype']} {made.engine.draws}"
