"""A client: one row that is kept between messages."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from partavg.backends.flower.terms import Terms, decode_, encode, restore_
from partavg.backends.flower.wire import Order, Reply
from partavg.core.loop import Batch, Engine, train
from partavg.core.partition import Partition, Span
from partavg.core.plan import Plan
from partavg.core.schedule import Schedule
from partavg.core.workers import Workers

_NEVER = 1 << 62  # steps


class Memory(Protocol):
    """Where a client keeps its row between messages."""

    def lock(self) -> AbstractContextManager[Any]:
        """Keep other processes out."""
        ...

    def load(self) -> dict[str, Any] | None:
        """What was kept; None at first."""
        ...

    def save(self, turn: int, state: dict[str, Any]) -> None:
        """Keep it, whole or not at all, before returning."""
        ...


@dataclass(frozen=True, slots=True)
class Client:
    """Carries out orders, each once, on the row that its memory keeps."""

    index: int
    samples: int
    terms: Terms
    engine: Engine
    batches: Callable[[int], Batch]
    lr: Callable[[int], float]
    memory: Memory
    shares_loss: bool = False

    def act(self, order: Order, brought: Tensor) -> tuple[Reply, Tensor | None]:
        """Carry out an order; one carried out before is only answered again.

        The row is kept before the answer leaves: whatever the server has heard is never lost.
        """
        with self.memory.lock():
            saved = self.memory.load()
            if saved and saved["token"] != order.token:
                saved = None  # of a job that was begun anew
            workers = self.terms.begin()
            if saved:
                workers.load_(saved["workers"])
            reply = Reply(order.turn, self.index, self.samples)
            if not saved or saved["turn"] != order.turn:
                if not self._follows(order, saved):
                    return replace(reply, lost=True), None
                self._take_(workers, order, brought)
                saved = {
                    "token": order.token,
                    "turn": order.turn,
                    "loss": self._train_(workers, order),
                    "workers": workers.state(),
                }
                self.memory.save(order.turn, saved)
            if self.shares_loss:
                reply = replace(reply, loss=saved["loss"])
            return reply, self._message(workers, order)

    def length(self, order: Order) -> int:
        """How many numbers come along with an order."""
        if order.bring == "sums":
            return self.terms.length(order.about, order.part)
        if order.bring == "nothing":
            return 0
        return self.terms.common_length(order.part if order.bring == "part" else None)

    def _follows(self, order: Order, saved: dict[str, Any] | None) -> bool:
        """Whether the row is what the order builds on."""
        if order.bring in ("whole", "model"):
            return True
        if saved is None or saved["turn"] > order.turn:
            return False
        return order.after in (-1, saved["turn"])

    def _take_(self, workers: Workers, order: Order, brought: Tensor) -> None:
        terms = self.terms
        brought = brought.to(workers.params.device)
        if order.bring == "sums":
            decode_(terms, workers, terms.pieces(order.about, order.part), brought, order.share)
        elif order.bring == "part":
            restore_(terms, workers, brought, order.part)
        elif order.bring in ("whole", "model"):
            restore_(terms, workers, brought)
        if order.bring == "model":
            self._set_clock_(workers, order.start)

    def _set_clock_(self, workers: Workers, step: int) -> None:
        """Count from the last averaging of each part, though another client took the steps."""
        schedule = self.terms.plan.schedule
        waiting = set(range(schedule.parts))
        while waiting and step > 0:
            waiting -= set(schedule(step))
            for part in waiting:
                workers.steps[:, part] += 1
                workers.lr_sum[:, part] += self.lr(step)
            step -= 1

    def _train_(self, workers: Workers, order: Order) -> float:
        """Take the local steps; the mean loss."""
        workers.step = order.start
        columns = workers.params.shape[1]
        alone = Plan(
            Schedule(_NEVER),
            Partition(columns, ((Span(0, columns),),)),
            ((),),
            workers.params.new_ones(1),
        )
        records = train(
            workers,
            self.engine,
            self.batches,
            plan=alone,
            solver=self.terms.solver,
            lr=self.lr,
            until=order.until,
        )
        losses = [record.losses for record in records]
        return float(torch.cat(losses).mean()) if losses else float("nan")

    def _message(self, workers: Workers, order: Order) -> Tensor | None:
        terms = self.terms
        if order.send == "nothing":
            return None
        if order.send == "model":
            buffers = [workers.buffers[0, a:b] for a, b in terms.buffer_spans]
            return torch.cat([workers.params[0], *buffers])
        return encode(terms, workers, terms.pieces(order.send, order.due))
