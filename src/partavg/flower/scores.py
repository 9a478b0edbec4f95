"""What clients say of models on their own test samples: checked, then added up exactly."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
from flwr.app import ConfigRecord, RecordDict
from torch import Tensor

from partavg.config import LocalAccuracy
from partavg.evaluation import Counts, Evaluation
from partavg.flower import messages
from partavg.metrics.metric import Row
from partavg.metrics.table import of_clients, of_local
from partavg.scores.score import Score
from partavg.sentences import cleaned

AVERAGE, LOCAL = "average", "local"
"""The models: the parts as last averaged with what is the client's own, and its local model."""

_LOSS = "loss"
_TWO = ("sum", "count")
MOST_BYTES = 1 << 20
"""What a message with scores may have."""
_LONGEST = 10_000  # labels, of a score that counts each of them
_MOST = 1e30  # what a sum may be for each thing counted, so that no sum of sums is infinite

Layout = tuple[tuple[str, int], ...]
"""What was measured: names, and how many numbers each is; -1 for one that is no list."""


@dataclass(frozen=True, slots=True)
class Scores:
    """What one client says."""

    samples: int
    of: Mapping[str, Counts]
    """AVERAGE, and LOCAL where that is wanted."""
    layout: Layout


def written(found: Mapping[str, Counts], samples: int, wanted: Sequence[Score]) -> ConfigRecord:
    """Sums and counts as they travel; a score that need not be measurable may be missing."""
    record: dict[str, Any] = {"samples": samples}
    for model, counts in found.items():
        pairs = {_LOSS: counts.loss}
        for score in wanted:
            pair = counts.scores.get(score.key)
            if pair and not (score.value(*pair) is None and bool(pair[1].isnan().any())):
                pairs[f"score.{score.key}"] = pair
        for name, pair in pairs.items():
            assert pair
            for what, tensor in zip(_TWO, pair, strict=True):
                if tensor.ndim > 1 or tensor.numel() > _LONGEST:
                    raise ValueError(
                        f"{name} has sums of the shape {list(tensor.shape)}, and clients send a "
                        f"number or a list of up to {_LONGEST}"
                    )
                record[f"{model}.{name}.{what}"] = tensor.tolist()
    return ConfigRecord(record)


def read(content: RecordDict, wanted: Sequence[Score], most: int) -> Scores:
    """The scores of a message, if all that it says can be true; else a ValueError says why not.

    No client can count more than `most`.
    """
    record = content.get(messages.SCORES)
    if not isinstance(record, ConfigRecord):
        raise ValueError("the message holds no scores")
    samples = record.get("samples")
    if type(samples) is not int or not 1 <= samples <= most:
        raise ValueError(
            f"it counts {str(samples)[:40]} test samples, which is not between 1 and "
            f"flower.max_samples = {most}"
        )
    known = {_LOSS: Score(_LOSS, lambda *_: None)}
    known |= {f"score.{score.key}": score for score in wanted}
    names = {f"{model}.{name}" for model in (AVERAGE, LOCAL) for name in known}
    if extra := set(record) - {"samples", *(f"{n}.{w}" for n in names for w in _TWO)}:
        raise ValueError(f"it holds scores that nobody asked for, as {str(min(extra))[:40]!r}")
    found: dict[str, dict[str, tuple[Tensor, Tensor]]] = {}
    layout = []
    for model in (AVERAGE, LOCAL):
        for name, score in known.items():
            key = f"{model}.{name}"
            if any(f"{key}.{what}" in record for what in _TWO):
                pair = _pair(record, key, score, most)
                found.setdefault(model, {})[name] = pair
                layout.append((key, len(pair[0]) if pair[0].ndim else -1))
    if any(_LOSS not in found.get(model, {}) for model in {AVERAGE, *found}):
        raise ValueError("its scores hold no loss")
    if any(pairs[_LOSS][0].ndim for pairs in found.values()):
        raise ValueError("its loss is a list, and not one sum")
    counts = {
        model: Counts(pairs[_LOSS], {s.key: pairs.get(f"score.{s.key}") for s in wanted})
        for model, pairs in found.items()
    }
    if any(counted.loss and not float(counted.loss[1]) for counted in counts.values()):
        raise ValueError("none of its test samples has a target that counts")
    return Scores(samples, counts, tuple(layout))


def _pair(record: ConfigRecord, key: str, score: Score, most: int) -> tuple[Tensor, Tensor]:
    total, count = (_numbers(record.get(f"{key}.{what}"), f"{key}.{what}") for what in _TWO)
    if total.shape != count.shape:
        raise ValueError(f"{key} has {total.numel()} sums and {count.numel()} counts")
    if bool(((count < 0) | (count > most)).any()):
        raise ValueError(
            f"{key} counts {float(count.max()):g}, which is not between 0 and "
            f"flower.max_samples = {most}"
        )
    low, high = (max(-_MOST, min(_MOST, end)) for end in score.within)
    if bool(((total < low * count) | (total > high * count)).any()):
        raise ValueError(f"{key} has a sum that its count does not allow")
    return total, count


def _numbers(value: Any, key: str) -> Tensor:
    """A number or a list of some, all finite."""
    listed = value if isinstance(value, list) else [value]
    right = all(type(number) in (int, float) and isfinite(number) for number in listed)
    if not right or not 0 < len(listed) <= _LONGEST:
        raise ValueError(f"{key} is no finite number, nor a list of up to {_LONGEST}")
    return torch.tensor(value, dtype=torch.float64)


def of_another_kind(found: Mapping[int, Scores]) -> dict[int, str]:
    """The clients that measured something else than most did, and a sentence for each."""
    if not found:
        return {}
    usual, _ = Counter(scores.layout for scores in found.values()).most_common(1)[0]
    return {
        client: "its scores are not those that most clients have"
        for client, scores in found.items()
        if scores.layout != usual
    }


def unusable(found: Mapping[int, Scores], wanted: Sequence[Score]) -> dict[int, str]:
    """The clients of whose sums a metric makes no number, and a sentence for each."""
    why = {}
    for client, scores in found.items():
        try:
            for counts in scores.of.values():
                counts.evaluation(wanted)
        except Exception as error:  # a metric of one's own may raise anything
            said = cleaned(f"{type(error).__name__}: {error}")
            why[client] = f"no number can be made of its sums ({said})"
    return why


def evaluations(
    found: Mapping[int, Scores], wanted: Sequence[Score], model: str = AVERAGE
) -> dict[int, Evaluation]:
    """Each client's loss and metrics."""
    return {
        client: scores.of[model].evaluation(wanted)
        for client, scores in found.items()
        if model in scores.of
    }


def measured(
    found: Mapping[int, Scores],
    wanted: Sequence[Score],
    local: Sequence[LocalAccuracy],
    *,
    together: bool,
) -> Row:
    """What a row says: of all test samples `together`, as if they were in one place, and of each.

    All is added in the order of the clients, so that no number depends on who was quickest.
    """
    if not found:
        return {}
    row: Row = {}
    if together:
        union = Counts.total(scores.of[AVERAGE] for scores in found.values()).evaluation(wanted)
        row = {"test_loss": union.loss, **union.metrics}
    row |= of_clients(evaluations(found, wanted).values())
    known = evaluations(found, wanted, LOCAL).values()
    row |= of_local([each.accuracy for each in known if each.accuracy is not None], local)
    return {key: value for key, value in row.items() if _finite(value)}


def _finite(value: Any) -> bool:
    return all(map(isfinite, value)) if isinstance(value, list) else isfinite(value)
