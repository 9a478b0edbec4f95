"""Scores against slow twins in float64: the same number for any batching and any ranks."""

import math
from collections import namedtuple
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.together import together
from torch import Tensor, nn
from torch.nn import functional as F

import partavg
from partavg import evaluation
from partavg.backends.evaluating import made_by_all
from partavg.backends.processes import OneProcess
from partavg.data.samples import Samples
from partavg.evaluation import Counts, count, evaluate, scores_of, unchanged
from partavg.metrics import (
    MetricFailed,
    Unmeasurable,
    accuracy,
    binary_accuracy,
    f1,
    mse,
    perplexity,
    token_accuracy,
    top_k,
)
from partavg.scores.mean_loss import MeanLoss

CLASSES, TOKENS = 5, 3


def logits(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def labels(*shape: int, seed: int, ignored: bool = True) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    found = torch.randint(0, CLASSES, shape, generator=generator)
    return torch.where(torch.rand(shape, generator=generator) < 0.3 * ignored, -100, found)


def bits(*shape: int, seed: int) -> Tensor:
    return (logits(*shape, seed=seed + 1) > 0.4).double()


def judged(outputs: Tensor, targets: Tensor) -> list[tuple[list[float], int]]:
    """Each target that counts, with its outputs; classes are last."""
    pairs = zip(outputs.reshape(-1, CLASSES).tolist(), targets.flatten().tolist(), strict=True)
    return [(row, target) for row, target in pairs if target != -100]


def twin_top(outputs: Tensor, targets: Tensor, k: int) -> float | None:
    found = [t in sorted(range(CLASSES), key=lambda c: -row[c])[:k]
             for row, t in judged(outputs, targets)]  # fmt: skip
    return sum(found) / len(found) if found else None


def twin_perplexity(outputs: Tensor, targets: Tensor) -> float | None:
    found = [math.log(sum(map(math.exp, row))) - row[t] for row, t in judged(outputs, targets)]
    return math.exp(sum(found) / len(found)) if found else None


def twin_f1(outputs: Tensor, targets: Tensor, macro: bool) -> float | None:
    def one(pairs: list[tuple[float, float]]) -> tuple[int, int]:
        tp = sum(o > 0 and t == 1 for o, t in pairs)
        wrong = sum((o > 0) != (t == 1) for o, t in pairs)
        return 2 * tp, 2 * tp + wrong

    columns = [
        list(zip(outputs[:, c].tolist(), targets[:, c].tolist(), strict=True))
        for c in range(outputs.shape[1])
    ]
    groups = columns if macro else [[pair for column in columns for pair in column]]
    found = [top / bottom for top, bottom in map(one, groups) if bottom]
    return sum(found) / len(found) if found else None


def twin_error(outputs: Tensor, targets: Tensor, power: int) -> float:
    pairs = zip(outputs.flatten().tolist(), targets.flatten().tolist(), strict=True)
    found = [abs(o - t) ** power for o, t in pairs]
    return sum(found) / len(found)


Make = Callable[[int, int], tuple[Tensor, Tensor]]
tokens: Make = lambda n, s: (logits(n, TOKENS, CLASSES, seed=s), labels(n, TOKENS, seed=s))  # noqa: E731
several: Make = lambda n, s: (logits(n, 4, seed=s), bits(n, 4, seed=s))  # noqa: E731

CASES: dict[str, tuple[Any, Make, Callable[[Tensor, Tensor], float | None]]] = {
    "accuracy": (
        "accuracy",
        lambda n, s: (logits(n, CLASSES, seed=s), labels(n, seed=s)),
        partial(twin_top, k=1),
    ),
    "classes on axis 1": (
        accuracy,
        lambda n, s: (logits(n, CLASSES, TOKENS, seed=s), labels(n, TOKENS, seed=s)),
        lambda outputs, targets: twin_top(outputs.transpose(1, 2), targets, 1),
    ),
    "given axis": (
        partial(accuracy, axis=1),
        lambda n, s: (logits(n, CLASSES, CLASSES, seed=s), labels(n, CLASSES, seed=s)),
        lambda outputs, targets: twin_top(outputs.transpose(1, 2), targets, 1),
    ),
    "tokens": (token_accuracy, tokens, partial(twin_top, k=1)),
    "as many tokens as classes": (
        "token_accuracy",
        lambda n, s: (logits(n, CLASSES, CLASSES, seed=s), labels(n, CLASSES, seed=s)),
        partial(twin_top, k=1),
    ),
    "top 3": (partial(top_k, k=3), tokens, partial(twin_top, k=3)),
    "perplexity": (perplexity, tokens, twin_perplexity),
    "mse": (mse, several, partial(twin_error, power=2)),
    "mae": ("mae", several, partial(twin_error, power=1)),
    "one column": (
        mse,
        lambda n, s: (logits(n, 1, seed=s), logits(n, seed=s + 1)),
        partial(twin_error, power=2),
    ),
    "micro F1": ("f1", several, partial(twin_f1, macro=False)),
    "macro F1": (partial(f1, average="macro"), several, partial(twin_f1, macro=True)),
    "binary": (
        binary_accuracy,
        several,
        lambda outputs, targets: float(((outputs > 0) == (targets == 1)).double().mean()),
    ),
}


def zero(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss for those that are about something else."""
    return torch.zeros(())


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 4), st.integers(0, 9999))
def test_any_batching_and_any_ranks_give_the_twin(
    name: str, samples: int, batch: int, ranks: int, seed: int
) -> None:
    metric, make, twin = CASES[name]
    outputs, targets = make(samples, seed)
    scores = scores_of({"mine": metric})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "_BATCH", batch)
        shares = map(Samples, outputs.tensor_split(ranks), targets.tensor_split(ranks))
        loss = MeanLoss(zero)
        counts = [count(nn.Identity(), loss, share, unchanged, scores) for share in shares]
    total = Counts.total(counts)._replace(loss=(torch.ones(()), torch.ones(())))
    found = total.evaluation(scores).metrics.get("mine")
    expected = twin(outputs, targets)
    assert found == (None if expected is None else pytest.approx(expected, rel=1e-12))


each = partial(F.cross_entropy, reduction="none")
summed = partial(F.cross_entropy, reduction="sum")
LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": F.cross_entropy,
    "sum": summed,
    "each": each,
    "module": nn.CrossEntropyLoss(),
    "summing module": nn.CrossEntropyLoss(reduction="sum"),
    "own": lambda outputs, targets: F.cross_entropy(outputs, targets),
    "own sum": lambda outputs, targets: summed(outputs, targets),
    "own each": lambda outputs, targets: each(outputs, targets),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("batch", [3, 7, 500])
@pytest.mark.parametrize("shape", [(23,), (23, TOKENS)])
def test_the_mean_loss_is_over_targets_that_count(
    monkeypatch: pytest.MonkeyPatch, name: str, batch: int, shape: tuple[int, ...]
) -> None:
    monkeypatch.setattr(evaluation, "_BATCH", batch)
    outputs = logits(23, CLASSES, *shape[1:], seed=3)
    targets = labels(*shape, seed=3)
    targets[:7] = -100  # a whole batch
    found = evaluate(nn.Identity(), LOSSES[name], (outputs, targets)).loss
    flat = outputs.movedim(1, -1).reshape(-1, CLASSES)
    assert found == pytest.approx(float(F.cross_entropy(flat, targets.flatten())), rel=1e-12)


def test_the_mean_loss_of_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "_BATCH", 7)
    x, y = logits(20, 3, seed=0), logits(20, 3, seed=1)
    mean = float((x - y).square().mean())
    assert evaluate(nn.Identity(), F.mse_loss, (x, y)).loss == pytest.approx(mean)
    each = evaluate(nn.Identity(), nn.MSELoss(reduction="none"), (x, y)).loss
    assert each == pytest.approx(mean)
    summed = evaluate(nn.Identity(), nn.MSELoss(reduction="sum"), (x, y)).loss
    assert summed == pytest.approx(3 * mean), "by samples: what a sum is a mean of nobody knows"


def test_a_loss_that_is_zero_at_first_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "_BATCH", 5)
    x = torch.cat([torch.zeros(5), torch.ones(10)])

    def summed(outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.sum()

    assert evaluate(nn.Identity(), summed, (x, torch.zeros(15))).loss == pytest.approx(10 / 15)


def test_any_class_may_be_ignored() -> None:
    outputs, targets = logits(23, CLASSES, seed=3), labels(23, seed=3, ignored=False)
    kept = targets != 2
    for function in (accuracy, partial(top_k, k=2), perplexity):
        own = partial(function, ignore_index=2)
        found = evaluate(nn.Identity(), F.cross_entropy, (outputs, targets), metrics={"mine": own})
        some = evaluate(
            nn.Identity(),
            F.cross_entropy,
            (outputs[kept], targets[kept]),
            metrics={"mine": function},
        )
        assert found.metrics["mine"] == pytest.approx(some.metrics["mine"], rel=1e-12)


def test_a_loss_may_ignore_another_target() -> None:
    outputs, targets = logits(23, CLASSES, seed=3), labels(23, seed=3, ignored=False)
    for loss in (nn.CrossEntropyLoss(ignore_index=2), partial(F.cross_entropy, ignore_index=2)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(evaluation, "_BATCH", 4)
            found = evaluate(nn.Identity(), loss, (outputs, targets)).loss
        assert found == pytest.approx(float(loss(outputs, targets)))


@pytest.mark.parametrize(
    ("metric", "outputs", "targets", "reason"),
    [
        (accuracy, (4, 7, 7), "int 4 7", "axis 1 and axis 2 may both be the classes: give axis"),
        (accuracy, (4, 1), "int 4", "have one class only"),
        (accuracy, (4,), "int 4", "do not fit as classes"),
        (accuracy, (4, 3), "int 4 3", "do not fit as classes"),
        (accuracy, (4, 3), "float 4", "targets are float32, and no classes"),
        (partial(accuracy, axis=2), (4, 3), "int 4", "do not fit as classes along axis 2"),
        (partial(accuracy, axis=0), (4, 4), "int 4", "do not fit as classes along axis 0"),
        (accuracy, (4, 3), "big 4", "some targets are not what it counts"),
        (top_k, (4, 3), "int 4", "among the 5 largest of 3 outputs: use a smaller k"),
        (perplexity, (4, 3, 2), "int 4 2", "do not fit as classes along axis -1"),
        (mse, (4, 3), "float 4", "have different shapes"),
        (f1, (4, 3), "big 4 3", "some targets are not what it counts"),
        (partial(f1, average="macro"), (4,), "int 4", r"are not \[samples, labels\]"),
        (lambda outputs, targets: None, (4, 3), "int 4", "gave None for outputs"),
    ],
)
def test_what_cannot_be_measured_is_not_shown_and_refused_if_asked_for(
    metric: Any, outputs: tuple[int, ...], targets: str, reason: str
) -> None:
    kind, *sizes = targets.split()
    shape = tuple(map(int, sizes))
    made = {"int": torch.ones(shape).long(), "float": torch.ones(shape),
            "big": torch.full(shape, 9)}[kind]  # fmt: skip
    samples = torch.randn(outputs), made
    with pytest.raises(Unmeasurable, match=rf"metric 'mine' cannot be measured: .*{reason}"):
        evaluate(nn.Identity(), zero, samples, metrics={"mine": metric})
    if metric is accuracy:
        assert evaluate(nn.Identity(), zero, samples).accuracy is None


def test_the_trials_script() -> None:
    """What users saw: 0.232 for 1.0, 0.5 for 1.0, accuracy of counts, dying on tuples, sums."""
    tokens = torch.arange(14).view(2, 7) % 7
    sure = 9 * F.one_hot(tokens, 7).float()
    loss = lambda outputs, targets: F.cross_entropy(outputs.transpose(1, 2), targets)  # noqa: E731
    found = evaluate(nn.Identity(), loss, (sure, tokens), metrics=["token_accuracy"])
    assert found.metrics == {"token_accuracy": 1.0}
    half = torch.where(torch.arange(7) % 2 == 0, -100, tokens)
    assert evaluate(nn.Identity(), loss, (sure, half), metrics=[token_accuracy]).metrics == {
        "token_accuracy": 1.0
    }
    longer = 9 * F.one_hot(tokens, 9).float()
    assert evaluate(nn.Identity(), loss, (longer, tokens)).accuracy == 1.0, "T ≠ V"
    counts = torch.randint(0, 4, (12,))
    poisson = lambda outputs, targets: F.poisson_nll_loss(outputs.squeeze(1), targets.float())  # noqa: E731
    assert evaluate(nn.Identity(), poisson, (torch.randn(12, 1), counts)).metrics == {}


Named = namedtuple("Named", ["loss", "logits"])


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda x: {"logits": x, "hidden": x},
        lambda x: SimpleNamespace(logits=x),
        lambda x: Named(0, x),
        lambda x: (x, x),
        lambda x: {"scores": x},
    ],
)
def test_outputs_may_be_anything_that_the_loss_takes(wrapped: Callable[[Tensor], Any]) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Any:
            return wrapped(self.layer(x))

    def taken(outputs: Any) -> Tensor:
        if isinstance(outputs, dict):
            return outputs["hidden" if "hidden" in outputs else "scores"]
        return outputs[1] if isinstance(outputs, tuple) else outputs.logits

    def loss(outputs: Any, targets: Tensor) -> Tensor:
        return F.cross_entropy(taken(outputs), targets)

    x = torch.randn(40, 3)
    y = (x[:, 0] > 0).long()
    simulation = partavg.Simulation(
        Model(), loss, (x, y), partavg.iid(y, 4, seed=0), schedule=partavg.Schedule.partial(2),
        lr=0.1, batch=5, engine="looped",
    )  # fmt: skip
    for _ in simulation.train(4):
        pass
    own = {"own": lambda outputs, targets: accuracy(taken(outputs), targets)}
    found = simulation.evaluate((x, y), own)
    plain = wrapped(x)
    named = hasattr(plain, "logits") or (isinstance(plain, dict) and "logits" in plain)
    assert found.accuracy == (found.metrics["own"] if named else None)
    with torch.no_grad():
        outputs = taken(simulation.consensus()(x))
    assert found.metrics["own"] == float((outputs.argmax(1) == y).double().mean())
    assert found.loss == pytest.approx(float(F.cross_entropy(outputs, y)), rel=1e-6)


def test_inputs_may_be_several() -> None:
    class Sum(nn.Module):
        def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
            return F.one_hot(ids, CLASSES).double() * mask[:, None]

    ids, mask = torch.arange(1200) % CLASSES, torch.ones(1200).double()
    for inputs in ((ids, mask), {"mask": mask, "ids": ids}):
        assert evaluate(Sum(), F.cross_entropy, (inputs, ids)).accuracy == 1.0


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (lambda outputs, targets: 3.0, "gave 3.0: return a sum and a count"),
        (lambda outputs, targets: (1, 2, 3), "return a sum and a count"),
        (lambda outputs, targets: (1, -2), "a count of -2: return how many there are"),
        (lambda outputs, targets: (1, -len(targets) * torch.ones(())), "counted -"),
        (lambda outputs, targets: (outputs.sum(0), len(targets)), r"sum \[3\] and a count \[\]"),
        (lambda outputs, targets: (torch.tensor(1j), 1), "return real numbers"),
        (lambda outputs, targets: 1 / 0, "failed with ZeroDivisionError"),
        (lambda outputs, targets: ("much", 1), "failed with TypeError"),
    ],
)
def test_a_function_that_gives_something_else_is_named(function: Any, problem: str) -> None:
    samples = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    with pytest.raises(MetricFailed, match=f"metric 'mine' .*{problem}"):
        evaluate(nn.Identity(), F.cross_entropy, samples, metrics={"mine": function})


def test_nothing_to_evaluate_on_is_a_sentence() -> None:
    for samples in ((torch.randn(0, 3), torch.ones(0).long()),
                    (torch.randn(2, 3), torch.tensor([-100, -100]))):  # fmt: skip
        with pytest.raises(
            ValueError, match=r"there (is nothing to evaluate on|are no samples): give"
        ):
            evaluate(nn.Identity(), F.cross_entropy, samples)


def test_asking_for_metrics() -> None:
    samples = torch.eye(6), torch.arange(6)

    def named(metrics: Any) -> list[str]:
        return list(evaluate(nn.Identity(), F.cross_entropy, samples, metrics=metrics).metrics)

    assert named(()) == ["accuracy"]
    assert named(["top_k", accuracy]) == ["top_k", "accuracy"]
    assert named({"one": partial(top_k, k=1), "two": "top_k"}) == ["accuracy", "one", "two"]
    assert named([partavg.Metric("mine", sums=accuracy)]) == ["accuracy", "mine"]
    for wrong, problem in {
        "top_k": "metrics 'top_k' are no list: ",
        ("topk",): "metric 'topk' is not known: did you mean 'top_k'",
        ("top_k", top_k): "metric 'top_k' is asked for twice: give one of them another key",
        ("loss",): "metric 'loss' comes with the package: leave it out",
        (3,): "3 cannot be a metric",
        (len,): "cannot be called with",
        (partavg.Metric("seen", lambda at: 1.0),): "metric 'seen' is measured of a run",
        (lambda outputs, targets: (1, 1),): "cannot name a column",
    }.items():
        with pytest.raises(ValueError, match=problem):
            named(wrong)
    with pytest.raises(ValueError, match="metric 'step' would write 'step'"):
        named({"step": accuracy})


def test_samples_elsewhere_come_batch_by_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "_BATCH", 4)
    x, y = torch.randn(10, 2), torch.zeros(10)
    batches = list(evaluation._batches(torch.device("meta"), {"a": x, "b": x}, y))
    assert [len(targets) for _, targets in batches] == [4, 3, 3]
    assert all(t.is_meta and i["a"].is_meta and i["b"].is_meta for i, t in batches)


class Two(OneProcess):
    """This process is rank 0, and rank 1 made what is given."""

    def __init__(self, other: Any) -> None:
        super().__init__()
        self.other = other

    def each(self, value: Any) -> list[Any]:
        return [value, self.other]


def test_a_metric_that_fails_in_one_rank_fails_in_all() -> None:
    assert made_by_all(Two((4, None)), lambda: 3) == [3, 4]
    failed = MetricFailed("metric 'odd' failed with KeyError: 5; mend it, or leave it out")
    with pytest.raises(MetricFailed, match="rank 1: metric 'odd' failed with KeyError"):
        made_by_all(Two((None, failed)), lambda: 3)


def simulation(processes: Any) -> partavg.Simulation:
    x = logits(91, 5, seed=0)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    torch.manual_seed(0)
    return partavg.Simulation(
        nn.Linear(5, 3).double(), F.cross_entropy, (x, y), partavg.iid(y, 4, seed=0),
        schedule=partavg.Schedule.partial(2), lr=0.3, batch=5, engine="looped",
        processes=processes,
    )  # fmt: skip


def evaluated(processes: Any) -> list[Any]:
    made = simulation(processes)
    for _ in made.train(5):
        pass
    targets = torch.where(torch.arange(91) % 4 == 0, -100, made.samples.targets)
    asked = ["perplexity", partial(top_k, k=2)]
    samples = made.samples.inputs, targets
    return [made.evaluate(samples, asked), *made.evaluate_workers(samples, None, asked)]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_real_ranks_evaluate_as_one_process(tmp_path: Path, ranks: int) -> None:
    alone = evaluated(None)
    for found in together(ranks, tmp_path, evaluated):
        for ours, theirs in zip(found, alone, strict=True):
            assert ours.loss == pytest.approx(theirs.loss, rel=1e-12)
            assert dict(ours.metrics) == pytest.approx(dict(theirs.metrics), rel=1e-12)
            assert ours.metrics.keys() == {"accuracy", "perplexity", "top_k"}
