"""A client: one row that is kept between messages."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from flwr.app import ArrayRecord, RecordDict
from torch import Tensor

from partavg.core.abilities import step_weight
from partavg.core.loop import Batch, Engine, train
from partavg.core.partition import Partition
from partavg.core.plan import Plan
from partavg.core.schedule import Schedule
from partavg.core.workers import Workers, upgrade_
from partavg.flower import messages
from partavg.flower.identity import Signer
from partavg.flower.memory import Memory
from partavg.flower.messages import Hello, Order, Question, Reply
from partavg.flower.protocol import (
    Agreement,
    decode_,
    do_without_,
    encode,
    restore_,
    whole_model,
)

_NEVER = 1 << 62  # steps


@dataclass(frozen=True, slots=True)
class Client:
    """Carries out orders, each once, on the row that its memory keeps."""

    index: int
    samples: int
    agreement: Agreement
    engine: Engine
    batches: Callable[[int], Batch]
    lr: Callable[[int], float]
    memory: Callable[[str], Memory]
    """Of each start of a job, by its token."""
    node: int
    """The number by which Flower knows the node."""
    signer: Signer | None = None
    shares_loss: bool = False

    def introduce(self, content: RecordDict) -> RecordDict:
        """What the server must know to let it join."""
        question = messages.read(content, messages.ORDER, Question)
        key = self.signer.public if self.signer else ""
        hello = Hello(self.index, self.samples, self.agreement.digest(), key)
        return self._signed(messages.write(messages.REPLY, hello), **asdict(question))

    def carry_out(self, content: RecordDict) -> RecordDict:
        """Carry out the order in a message; one carried out before is only answered again.

        The row is kept before the answer leaves: whatever the server has heard is never lost.
        """
        order = messages.read(content, messages.ORDER, Order)
        brought = self._brought(content, order)
        reply = Reply(order.turn, self.index, self.samples)
        memory = self.memory(order.token)
        with memory.lock():
            saved = memory.load()
            workers = self.agreement.start()
            if saved:
                workers.load_(saved["workers"])
                upgrade_(workers, self.agreement.plan.partition.parts)
            if not saved or saved["turn"] != order.turn:
                if not self._follows(order, saved):
                    return self._answer(replace(reply, lost=True), order)
                self._take_(workers, order, brought)
                saved = {
                    "turn": order.turn,
                    "loss": self._train_(workers, order),
                    "workers": workers.state(),
                }
                memory.save(order.turn, saved)
            if self.shares_loss:
                reply = replace(reply, loss=saved["loss"])
            return self._answer(reply, order, self._sent(workers, order))

    def _answer(self, reply: Reply, order: Order, array: ArrayRecord | None = None) -> RecordDict:
        return self._signed(messages.write(messages.REPLY, reply, array), token=order.token)

    def _signed(self, content: RecordDict, **about: str) -> RecordDict:
        """The same with the node's signature, if it has a key."""
        if self.signer:
            self.signer.sign_(content, messages.REPLY, {"node": self.node, **about})
        return content

    def _brought(self, content: RecordDict, order: Order) -> Tensor:
        """The numbers that come along with an order."""
        length, model = self.agreement.brought_length(order), self.agreement.model
        return messages.unpack(content, length, model.dtype) if length else torch.empty(0)

    def _follows(self, order: Order, saved: dict[str, Any] | None) -> bool:
        """Whether the row is what the order builds on."""
        if order.bring in ("whole", "model"):
            return True
        if saved is None or saved["turn"] > order.turn:
            return False
        return order.after in (-1, saved["turn"])

    def _take_(self, workers: Workers, order: Order, brought: Tensor) -> None:
        agreement = self.agreement
        brought = brought.to(workers.params.device)
        if order.bring == "sums":
            sections = agreement.sections(order.about, order.part)
            decode_(workers, agreement, sections, brought, order.active_fraction)
        elif order.bring == "noted":
            sections = agreement.sections(order.about, order.part)
            do_without_(workers, agreement, sections, order.active_fraction)
        elif order.bring == "part":
            restore_(workers, agreement, brought, order.part)
        elif order.bring in ("whole", "model"):
            restore_(workers, agreement, brought)
        if order.bring == "model":
            self._set_clock_(workers, order.start)

    def _set_clock_(self, workers: Workers, step: int) -> None:
        """Count from the last averaging of each part, though another client took the steps."""
        schedule, weigh = self.agreement.plan.schedule, step_weight(self.agreement.solver)
        for part in range(schedule.parts):
            clock, began = slice(part, part + 1), step
            while began > 0 and part not in schedule(began):
                began -= 1
            for taken in range(began + 1, step + 1):
                workers.steps[:, clock] += 1
                age = workers.taken.new_full((1, 1), taken)
                weight = weigh(workers.steps[:, clock], age) if weigh else 1
                workers.lr_sum[:, clock] += self.lr(taken) * weight

    def _train_(self, workers: Workers, order: Order) -> float:
        """Take the local steps; the mean loss."""
        workers.step = order.start
        known, shared = self.agreement.plan.partition, self.agreement.param_spans
        alone = Plan(
            Schedule(_NEVER),
            Partition(known.size, (shared,), known.local),
            ((),),
            workers.params.new_ones(1),
        )
        records = train(
            workers,
            self.engine,
            self.batches,
            plan=alone,
            solver=self.agreement.solver,
            lr=self.lr,
            until=order.until,
        )
        losses = [record.losses for record in records]
        return float(torch.cat(losses).mean()) if losses else float("nan")

    def _sent(self, workers: Workers, order: Order) -> ArrayRecord | None:
        """The numbers that an order asks for."""
        if order.send == "nothing":
            return None
        if order.send == "model":
            return messages.pack(whole_model(workers, self.agreement))
        sections = self.agreement.sections(order.send, order.due)
        return messages.pack(encode(workers, self.agreement, sections))
