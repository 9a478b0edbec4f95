"""What `partavg theory` found, for people and as numbers."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

from rich import box
from rich.console import Console
from rich.table import Table

from partavg.comparison import caveat
from partavg.config import Config
from partavg.folder import Row
from partavg.theory import (
    Bound,
    Constants,
    Estimates,
    Spread,
    Theorem,
    Theorem1,
    largest_interval,
)

_FEW = 8  # parts that have a line each

_FORMULAS = {
    1: {
        "start": "(2/ηK) (F(u_1) − F_inf)",
        "noise": "(η/m) Σ_j L_j σ_j²",
        "drift": "η² (τ−1) Σ_j L_j² σ_j²",
    },
    2: {
        "start": "(4/ηK) (F(u_1) − F_inf)",
        "noise": "4η Σ_i p_i² Σ_j L_j σ_j²",
        "drift": "3η² (τ−1) Σ_j L_j² σ_j²",
        "heterogeneity": "6η² τ(τ−1) Σ_j L_j² κ_j²",
    },
}


@dataclass(frozen=True, slots=True)
class Findings:
    """Estimates, and what a theorem makes of them."""

    name: str
    config: Config
    estimates: Estimates
    theorem: Theorem
    lr: float
    interval: int
    begun: int
    """Steps taken before the constants were measured."""
    steps: int
    """Steps that follow."""

    @property
    def number(self) -> int:
        """Theorem 1 or 2."""
        return 1 if isinstance(self.theorem, Theorem1) else 2

    @property
    def constants(self) -> Constants:
        """With one L for all parts."""
        return self.estimates.constants()

    @property
    def bound(self) -> Bound:
        """Of the steps that follow."""
        settings = {"interval": self.interval, "steps": self.steps}
        return self.theorem.bound(self.constants, lr=self.lr, **settings)

    @property
    def longest(self) -> int:
        """The longest interval that the theorem allows at this learning rate."""
        return largest_interval(self.theorem, self.constants, self.lr)

    def show(self, console: Console) -> None:
        """Print it all."""
        when = f"after {self.begun} steps" if self.begun else "at the start"
        console.print(
            f"{self.name} {when}: {self.config.training.workers} workers, interval {self.interval} "
            f"in {len(self.estimates.variance)} parts, learning rate {self.lr:g}, "
            f"{self.steps} steps to go",
            highlight=False,
        )
        console.print(self._constants_table())
        console.print(self._parts_table())
        console.print(self._terms_table())
        for sentence in (*self.verdict(), *self.caveats()):
            console.print(sentence, highlight=False, soft_wrap=True)

    @property
    def holds(self) -> bool:
        """Whether the theorem covers the recipe, and its condition is satisfied."""
        return self.bound.holds and not self.not_covered()

    def verdict(self) -> list[str]:
        """What the theorem says, in plain sentences."""
        bound, longest, missing = self.bound, self.longest, self.not_covered()
        holds, allows = ("would hold", "would allow") if missing else ("holds", "allows")
        excess = f"{self.lr / bound.largest_lr:.2g} times too large: the bound is not guaranteed"
        judged = (
            f"{'it' if missing else f'Theorem {self.number}'} {holds} up to a learning rate of "
            f"{bound.largest_lr:.3g} at interval {self.interval}. The learning rate {self.lr:g} "
            f"is {'small enough' if bound.holds else excess}; with it, the theorem {allows} "
            f"{f'intervals up to {longest}' if longest else 'no interval at all'}."
        )
        if missing:
            judged = (
                f"Theorem {self.number} promises nothing here: its proof does not cover "
                f"{_listed(missing)}. Without that, {judged}"
            )
        share = bound.terms[bound.dominant] / bound.total
        now = sum(self.estimates.joint)
        return [
            judged,
            f"The largest term is {bound.dominant}, {100 * share:.0f} % of the bound "
            f"{bound.total:.3g} on the mean of ‖∇F(u_k)‖²; measured here, ‖∇F(u)‖² is {now:.3g}.",
        ]

    def not_covered(self) -> list[str]:
        """What the recipe does that the proofs do not allow for."""
        config, averaging = self.config, self.config.averaging
        schedule = config.lr_schedule
        changes = schedule.name != "constant" or bool(schedule.options.get("warmup"))
        found = {
            f"the solver {config.solver.name}": config.solver.name != "sgd",
            "momentum": self._momentum > 0,
            "a learning rate that changes": changes,
            "workers that are not active": config.participation.fraction < 1,
            "parts in a shuffled order, which can wait for longer than the interval": (
                averaging.shuffle and averaging.parts != 1
            ),
            "averages that arrive late": averaging.delay > 0,
            "averages that are taken over in part": bool(averaging.mix),
            "messages that are rounded": averaging.wire != "full",
            "columns that are drawn at random": averaging.partition == "fresh",
            "workers of unequal pace": config.pace.name != "even",
            "an interval that changes": config.adapt.name != "fixed",
        }
        return [what for what, applies in found.items() if applies]

    @property
    def _momentum(self) -> float:
        solver = self.config.solver
        local = solver if solver.name == "sgd" else solver.options.get("base")
        return float(local.options.get("momentum", 0.0)) if local else 0.0

    def caveats(self) -> list[str]:
        """What else must be said of the numbers."""
        found = ["These are estimates at one point; the theorems need bounds that hold on the way."]
        if len(self.constants.smoothness) > 1:
            found.append("Parts influence each other, so the bound takes L of the whole for each.")
        if momentum := self._momentum:
            found.append(
                f"With momentum {momentum:g}, the learning rate acts like "
                f"{self.lr / (1 - momentum):.3g}."
            )
        if "a learning rate that changes" in self.not_covered():
            found.append("Of the learning rates this is the largest to come.")
        if self.config.training.scale != 1:
            found.append(caveat([{"scale": self.config.training.scale}]).capitalize() + ".")
        return found

    def numbers(self) -> Row:
        """Everything, for other programs."""
        bound, estimates = self.bound, self.estimates
        parts = (estimates.part_smoothness, estimates.variance, estimates.dissimilarity)
        names = "smoothness_within", "variance", "dissimilarity"
        return {
            "recipe": self.name,
            "theorem": self.number,
            "step": self.begun,
            "steps": self.steps,
            "interval": self.interval,
            "lr": self.lr,
            "largest_lr": bound.largest_lr,
            "holds": self.holds,
            "not_covered": self.not_covered(),
            "largest_interval": self.longest,
            "terms": dict(bound.terms),
            "dominant": bound.dominant,
            "bound": bound.total,
            "gradient_norm_squared": sum(estimates.joint),
            "constants": asdict(self.constants),
            "loss": estimates.loss,
            "smoothness": estimates.smoothness._asdict(),
            "parts": [
                {name: value._asdict() for name, value in zip(names, part, strict=True)}
                for part in zip(*parts, strict=True)
            ],
        }

    def _constants_table(self) -> Table:
        estimates = self.estimates
        table = _table(
            "constant", "used", "quartiles", "over", title="Measured for the whole model"
        )
        rough = estimates.smoothness
        table.add_row("L, smoothness", _short(rough.largest), _quartiles(rough), "workers")
        noise = sum(spread.largest for spread in estimates.variance)
        table.add_row(
            "σ², noise of a mini-batch", _short(noise), _sums(estimates.variance), "workers"
        )
        if self.number == 2:
            kappa = sum(self.constants.dissimilarity)
            table.add_row(
                "κ², difference of workers (β² = 1)",
                _short(kappa),
                _sums(estimates.dissimilarity),
                "repeats",
            )
            table.add_row("β² that would do with κ² = 0", "–", _short(estimates.amplification), "")
        table.add_row("F(u) − F_inf, at most", _short(estimates.loss), "", "")
        return table

    def _parts_table(self) -> Table:
        """A line per part, or three lines about many parts."""
        estimates = self.estimates
        columns = [
            [spread.largest for spread in estimates.part_smoothness],
            [spread.largest for spread in estimates.variance],
            list(self.constants.dissimilarity),
        ][: 1 + self.number]
        headings = ["L_j within the part", "σ_j²", "κ_j²"][: 1 + self.number]
        table = _table("part", *headings, title="Measured for each part")
        if len(columns[0]) <= _FEW:
            for part, values in enumerate(zip(*columns, strict=True)):
                table.add_row(str(part), *map(_short, values))
        else:
            for name, of in (("smallest", min), ("median", median), ("largest", max)):
                table.add_row(name, *(_short(of(column)) for column in columns))
        return table

    def _terms_table(self) -> Table:
        bound = self.bound
        table = _table("term", "formula", "value", "share", title=f"Theorem {self.number}")
        for name, value in bound.terms.items():
            share = f"{100 * value / bound.total:.0f} %"
            table.add_row(name, _FORMULAS[self.number][name], _short(value), share)
        table.add_row("bound", "", _short(bound.total), "")
        return table


def _table(*headings: str, title: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold")
    for place, heading in enumerate(headings):
        left = place == 0 or heading in ("formula", "over")
        table.add_column(heading, justify="left" if left else "right", no_wrap=True)
    return table


def _listed(words: Sequence[str]) -> str:
    """Words one after another: a, b and c."""
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _short(value: float) -> str:
    return f"{value:.3g}"


def _quartiles(spread: Spread) -> str:
    return f"{_short(spread.low)} – {_short(spread.high)}"


def _sums(spreads: Sequence[Spread]) -> str:
    """The quartiles added up over the parts."""
    low, high = sum(each.low for each in spreads), sum(each.high for each in spreads)
    return f"{_short(low)} – {_short(high)}"
