"""Hugging Face's Trainer with the callback, against `attach` in a plain loop."""

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from shutil import copytree
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.integrations.frameworks import apart, copy, distance, mean_over_ranks, twin
from tests.ranks import Ranks
from torch import Tensor, nn
from torch.amp import GradScaler

import partavg

STEPS, BATCH = 6, 4


def tiny(rank: int, dropout: float = 0.0, dtype: torch.dtype = torch.float64) -> nn.Module:
    """A random language model, another one on each rank."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(rank)
    sizes = {"vocab_size": 11, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "attention_dropout": dropout}
    ids = {"bos_token_id": 0, "eos_token_id": 0}
    made: nn.Module = LlamaForCausalLM(LlamaConfig(**sizes, **heads, **ids)).to(dtype)
    return made


def texts(count: int = 64) -> list[dict[str, Tensor]]:
    """Of random tokens, some of which do not count: ranks have different numbers of them."""
    draw = torch.Generator().manual_seed(3)
    tokens = torch.randint(11, (count, 8), generator=draw)
    labels = tokens.where(torch.rand(count, 8, generator=draw) < 0.7, torch.tensor(-100))
    return [{"input_ids": t, "labels": y} for t, y in zip(tokens, labels, strict=True)]


class Collator:
    """Batches as always, and a list of them."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Tensor]] = []

    def __call__(self, samples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        self.seen.append({key: torch.stack([s[key] for s in samples]) for key in samples[0]})
        return dict(self.seen[-1])


def trainer(
    model: nn.Module, folder: Path, *more: Any, options: dict[str, Any], **arguments: Any
) -> Any:
    from transformers import Trainer, TrainingArguments

    from partavg.integrations.huggingface import PartialAveraging

    usual = {"learning_rate": 0.02, "max_steps": STEPS, "save_strategy": "no", "logging_steps": 1}
    quiet = {"report_to": [], "disable_tqdm": True, "use_cpu": True}
    return Trainer(
        model,
        TrainingArguments(
            str(folder), per_device_train_batch_size=BATCH, **{**usual, **quiet, **arguments}
        ),
        train_dataset=texts(),
        eval_dataset=texts(8),
        data_collator=Collator(),
        callbacks=[PartialAveraging(**options), *more],
    )


def both(
    rank: int, folder: Path, options: dict[str, Any], arguments: dict[str, Any]
) -> tuple[Any, ...]:
    """The Trainer's model and the twin's, and the tokens that this rank has seen."""
    half = arguments.get("bf16", False)
    dtype = torch.float32 if half else torch.float64
    run = trainer(tiny(rank, dtype=dtype), folder, options=options, **arguments)
    run.train()
    accumulate = arguments.get("gradient_accumulation_steps", 1)
    steps = arguments.get("max_steps", STEPS)
    batches = run.data_collator.seen[: steps * accumulate]
    model = tiny(rank, dtype=dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.0)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    cast = partial(torch.autocast, "cpu", torch.bfloat16) if half else nullcontext

    def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        # Tokens count alike in all batches of a step, so the mean is over those of all of them.
        place = next(k for k, other in enumerate(batches) if other is batch)
        first = place - place % accumulate
        tokens = [(b["labels"][:, 1:] != -100).sum() for b in batches[first : first + accumulate]]
        loss: Tensor = model(**batch, num_items_in_batch=sum(tokens)).loss
        return accumulate * loss  # the twin divides by it

    other = twin(
        model, optimizer, batches, loss_of, options,
        accumulate=accumulate, clip=1.0, rates=rates, context=cast,
    )  # fmt: skip
    found = copy(run.model)
    tokens = torch.cat([batch["input_ids"] for batch in batches])
    return distance(found, other), apart(found), tokens, run.state.log_history


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({"interval": 4}, {}),
    "accumulated": ({"interval": 2}, {"gradient_accumulation_steps": 2, "max_steps": 3}),
    "bf16": ({"interval": 4}, {"bf16": True}),
    "diloco": ({"interval": 4, "delay": 1, "solver": partavg.diloco()}, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_trainer_does_what_attach_does(case: str, ranks: Ranks, tmp_path: Path) -> None:
    found = ranks(both, tmp_path, *CASES[case])
    for difference, from_mean, *_ in found:
        assert difference < (1e-6 if case == "bf16" else 1e-9)
        assert from_mean < 1e-12
    seen = [{tuple(text.tolist()) for text in tokens} for _, _, tokens, _ in found]
    assert not seen[0] & seen[1], "each rank has its own share"
    logs = found[0][-1]
    messages = [row["partavg/messages"] for row in logs if "loss" in row]
    assert messages == sorted(messages)
    assert messages[-1] >= len(messages), "each logs what was sent so far"


def checkpoint(rank: int, folder: Path) -> tuple[float, ...]:
    """How far the checkpoint of step 3 is from the mean of the ranks, and its loss from that."""
    from transformers import AutoModelForCausalLM, TrainerCallback

    own: dict[int, dict[str, Tensor]] = {}

    class Watch(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:
            own[state.global_step] = copy(model)

    every = {"save_strategy": "steps", "save_steps": 3, "eval_strategy": "steps", "eval_steps": 3}
    run = trainer(tiny(rank), folder, Watch(), options={"interval": 4}, **every)
    run.train()
    mean = mean_over_ranks(own[3])
    saved = AutoModelForCausalLM.from_pretrained(folder / "checkpoint-3", dtype="float64")
    losses = {row["step"]: row["eval_loss"] for row in run.state.log_history if "eval_loss" in row}
    batch = {key: torch.stack([text[key] for text in texts(8)]) for key in ("input_ids", "labels")}
    saved.eval()
    expected = saved(**batch).loss.item()
    return apart(own[3]), distance(copy(saved), mean), abs(losses[3] - expected)


def test_checkpoints_and_evaluation_are_of_the_averaged_model(ranks: Ranks, tmp_path: Path) -> None:
    for from_mean, saved, loss in ranks(checkpoint, tmp_path):
        assert from_mean > 1e-4, "ranks were apart"
        assert saved < 1e-12
        assert loss < 1e-6


def resumed(rank: int, folder: Path, options: dict[str, Any]) -> float:
    """How far a run that was resumed ends from one that was not; both draw random numbers."""
    every = {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 2}
    whole = trainer(tiny(rank, dropout=0.3), folder / "whole", options=options, **every)
    whole.train()
    if rank == 0:
        copytree(folder / "whole" / "checkpoint-4", folder / "part" / "checkpoint-4")
    dist.barrier()
    again = trainer(tiny(7 + rank, dropout=0.3), folder / "part", options=options, **every)
    again.train(resume_from_checkpoint=True)
    return distance(copy(whole.model), copy(again.model))


@pytest.mark.parametrize(
    "options",
    [{"interval": 4}, {"interval": 4, "delay": 2, "wire": "int8", "solver": partavg.diloco()}],
    ids=["plain", "with memory"],
)
def test_training_goes_on_exactly_where_it_was_saved(
    options: dict[str, Any], ranks: Ranks, tmp_path: Path
) -> None:
    assert ranks(resumed, tmp_path, options) == [0] * len(ranks)


def best(rank: int, folder: Path) -> tuple[float, float, int]:
    """How far the model is from the best checkpoint at the end, and that from the last."""
    from transformers import AutoModelForCausalLM

    every = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2}
    choice = {"load_best_model_at_end": True, "metric_for_best_model": "loss"}
    # At such a rate the loss grows with every step.
    run = trainer(
        tiny(rank),
        folder,
        options={"interval": 4, "delay": 2},
        learning_rate=3.0,
        **every,
        **choice,
    )
    run.train()
    saved, last = (
        AutoModelForCausalLM.from_pretrained(folder / f"checkpoint-{step}", dtype="float64")
        for step in (run.state.best_global_step, STEPS)
    )
    found = copy(run.model)
    return distance(found, copy(saved)), distance(found, copy(last)), run.state.best_global_step


def test_the_best_model_is_loaded_at_the_end(ranks: Ranks, tmp_path: Path) -> None:
    for from_best, from_last, step in ranks(best, tmp_path):
        assert from_best == 0
        assert step < STEPS
        assert from_last > 0.01


def trained_twice(rank: int, folder: Path) -> tuple[float, list[bool]]:
    """Ranks after a second training, with a model of its own; whether DDP was left out."""
    from torch.nn.parallel import DistributedDataParallel
    from transformers import Trainer

    run = trainer(tiny(rank), folder, options={"interval": 4})
    plain = Trainer(tiny(rank), run.args, train_dataset=texts())
    run.model_init = lambda: tiny(rank)
    run.train()
    run.train()
    plain.train()
    wrapped = [isinstance(each.model_wrapped, DistributedDataParallel) for each in (run, plain)]
    return apart(copy(run.model)), wrapped


def test_only_the_trainer_with_the_callback_trains_apart(ranks: Ranks, tmp_path: Path) -> None:
    for from_mean, wrapped in ranks(trained_twice, tmp_path):
        assert from_mean < 1e-12
        assert wrapped == [False, True]


def scaled(rank: int, folder: Path) -> tuple[int, int, float]:
    """Steps, skipped ones, and ranks that are apart, after steps that a GradScaler takes."""
    run = trainer(tiny(rank, dtype=torch.float32), folder, options={"interval": 4})
    run.accelerator.scaler = GradScaler("cpu", init_scale=2.0**127)  # as for fp16, on a GPU
    run.train()
    [averaging] = [each for each in run.callback_handler.callbacks if hasattr(each, "averager")]
    return averaging.averager.steps, averaging.averager.skipped, apart(copy(run.model))


def test_steps_that_a_scaler_skips_are_counted(ranks: Ranks, tmp_path: Path) -> None:
    for steps, skipped, from_mean in ranks(scaled, tmp_path):
        assert steps == STEPS
        assert 0 < skipped < STEPS
        assert from_mean == 0


def failing(rank: int, folder: Path) -> None:
    """A training in which the second rank has no fourth batch."""
    run = trainer(tiny(rank), folder, options={"interval": 4}, logging_strategy="no")

    def lose(model: nn.Module, *_: Any) -> None:
        if rank == 1 and run.state.global_step == 3:
            raise OSError("the disk is gone")

    run.model.register_forward_pre_hook(lose)
    run.train()


def test_a_rank_that_fails_tells_the_others_why(ranks: Ranks, tmp_path: Path) -> None:
    (_, first), (_, second) = ranks.answers(failing, tmp_path)
    assert second.startswith("OSError: the disk is gone")
    assert first.startswith("RankLost: rank 1")
    assert "the disk is gone" in first.splitlines()[0]


def added_late(rank: int, folder: Path) -> None:
    from transformers import Trainer

    from partavg.integrations.huggingface import PartialAveraging

    run = trainer(tiny(rank), folder, options={"interval": 4})
    late = Trainer(tiny(rank), run.args, train_dataset=texts())
    late.add_callback(PartialAveraging(interval=4))
    late.train()


def unknown(rank: int) -> None:
    from partavg.integrations.huggingface import PartialAveraging

    PartialAveraging(interval=4, intervall=5)


def sharded(rank: int) -> None:
    from partavg.integrations.huggingface import _check

    _check(SimpleNamespace(is_deepspeed_enabled=False, is_fsdp_enabled=True))


def test_what_cannot_be_is_one_sentence(ranks: Ranks, tmp_path: Path) -> None:
    for function, sentence, arguments in (
        (added_late, "ValueError: PartialAveraging was added to a Trainer that", (tmp_path,)),
        (unknown, "ValueError: option 'intervall' is not known: use adapt,", ()),
        (sharded, "ValueError: FSDP shards one model over all ranks", ()),
    ):
        for done, answer in ranks.answers(function, *arguments):
            assert not done
            assert answer.startswith(sentence)
