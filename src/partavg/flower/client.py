"""A client: one row that is kept between messages."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from partavg.core.abilities import step_weight
from partavg.core.loop import Engine, train
from partavg.core.partition import Partition
from partavg.core.plan import Plan
from partavg.core.schedule import Schedule
from partavg.core.workers import Workers, upgrade_
from partavg.flower import messages, own_loop, scores
from partavg.flower.averages import Averages
from partavg.flower.examiner import Examiner
from partavg.flower.feed import Feed
from partavg.flower.identity import Signer
from partavg.flower.memory import Memory
from partavg.flower.messages import Hello, Order, Question, Reply
from partavg.flower.own_loop import OwnLoop
from partavg.flower.private import PrivateClient
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
    agreement: Agreement
    engine: Engine
    feed: Feed
    lr: Callable[[int], float]
    memory: Callable[[str], Memory]
    """Of each start of a job, by its token."""
    node: int
    """The number by which Flower knows the node."""
    signer: Signer | None = None
    shares_loss: bool = False
    examiner: Callable[[], Examiner | None] | None = None
    """Where the client may have test samples, and lets others know how models do on them."""
    own_loop: OwnLoop | None = None
    """An app's own training loop."""
    seed: int = 0

    def introduce(self, content: RecordDict) -> RecordDict:
        """What the server must know to let it join."""
        question = messages.read(content, messages.ORDER, Question)
        key = self.signer.public if self.signer else ""
        examiner = self.examiner() if self.examiner else None
        tests = examiner.samples.size if examiner else 0
        hello = Hello(self.index, self._samples, self.agreement.digest(), key, tests)
        return self._signed(messages.write(messages.REPLY, hello), **asdict(question))

    def carry_out(self, content: RecordDict) -> RecordDict:
        """Carry out the order in a message; one carried out before is only answered again.

        The row is kept before the answer leaves: whatever the server has heard is never lost.
        """
        order = messages.read(content, messages.ORDER, Order)
        brought = self._brought(content, order)
        reply = Reply(order.turn, self.index, self._samples)
        memory = self.memory(order.token)
        with memory.lock():
            saved = memory.load()
            workers = self.agreement.start()
            if saved:
                workers.load_(saved["workers"])
                upgrade_(workers, self.agreement.plan.partition.parts)
            if order.bring == "averages":
                look = Averages.brought(workers, self.agreement, brought)
                return self._answered(reply, order, workers, look)
            if not saved or saved["turn"] != order.turn:
                if not self._follows(order, saved):
                    return self._answer(replace(reply, lost=True), order)
                self._take_(workers, order, brought)
                saved = self._carried_out(workers, order, saved or {})
                memory.save(order.turn, saved)
            if self.shares_loss:
                reply = replace(reply, loss=saved["loss"])
            averages, said = _averages(saved, workers), saved.get("said")
            return self._answered(reply, order, workers, averages, said)

    def _carried_out(
        self, workers: Workers, order: Order, before: dict[str, Any]
    ) -> dict[str, Any]:
        """Train as an order says; all that is kept of it, and of what was kept before."""
        saved: dict[str, Any] = {"turn": order.turn, "last": order.last}
        if self.examiner:
            averages = self._renewed(_averages(before, workers), workers, order)
            saved |= {"averages": [averages.params, averages.buffers]} if averages else {}
        self.feed.place.update(before.get("place", {}))
        own = before.get("own", {})
        saved["loss"] = self._train_(workers, order, own)
        if self._private and order.send == "part":
            said = self._private.message(workers, order.due, order.until, order.clip)
            saved["said"] = said  # once: it is the same if it is asked for again
        saved["workers"] = workers.state()
        beside = {"place": dict(self.feed.place), "own": own}
        return saved | {name: kept for name, kept in beside.items() if kept}

    def _answered(
        self,
        reply: Reply,
        order: Order,
        workers: Workers,
        averages: Averages | None,
        said: Tensor | None = None,
    ) -> RecordDict:
        """A reply and what goes along."""
        if order.send != "scores":
            return self._answer(reply, order, self._sent(workers, order, said))
        examiner = self.examiner() if self.examiner else None
        if not examiner:
            raise ValueError(f"client {self.index} has no test samples")
        if self._private and (self.agreement.plan.partition.local or len(workers.buffers[0])):
            raise ValueError(
                "with privacy clients measure what was released, and not with what is their own"
            )
        if not averages:
            return self._answer(replace(reply, lost=True), order)
        models = {scores.AVERAGE: averages.module(workers, self.agreement)}
        if examiner.local and not self._private:
            row = workers.params[0], workers.buffers[0]
            models[scores.LOCAL] = self.agreement.model.module(*row)
        return self._answer(reply, order, found=examiner.examined(models))

    def _answer(
        self,
        reply: Reply,
        order: Order,
        array: ArrayRecord | None = None,
        found: ConfigRecord | None = None,
    ) -> RecordDict:
        content = messages.write(messages.REPLY, reply, array)
        if found:
            content[messages.SCORES] = found
        return self._signed(content, token=order.token)

    def _signed(self, content: RecordDict, **about: str) -> RecordDict:
        """The same with the node's signature, if it has a key."""
        if self.signer:
            self.signer.sign_(content, messages.REPLY, {"node": self.node, **about})
        return content

    def _renewed(
        self, averages: Averages | None, workers: Workers, order: Order
    ) -> Averages | None:
        """The same with what came along.

        Another client's model stands in until each part comes round: the server knows what is
        lacking.
        """
        agreement = self.agreement
        if order.bring in ("whole", "model"):
            return Averages.of(workers)
        if averages and order.bring in ("sums", "part"):
            about = order.about if order.bring == "sums" else "part"
            for part, buffers in agreement.sections(about, order.part):
                averages.take_(workers, agreement.plan.partition.parts[part], buffers)
        return averages

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
        if self._private:
            parts = [section.part for section in agreement.sections(order.about, order.part)]
            parts = parts if order.bring in ("sums", "part") else []
            self._private.note_released_(workers, order.bring, parts)
            self._private.begin_cycle_(workers, order.start)

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

    def _train_(self, workers: Workers, order: Order, own: dict[str, Any]) -> float:
        """Take the local steps; the mean loss. What is the app's `own` is kept between messages."""
        if self.own_loop:
            return own_loop.train_(
                self.own_loop, workers, self.agreement, order, self.feed, self.lr, own, self.seed
            )
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
            self.feed,
            plan=alone,
            solver=self.agreement.solver,
            lr=self.lr,
            until=order.until,
        )
        losses = [record.losses for record in records]
        return float(torch.cat(losses).mean()) if losses else float("nan")

    @property
    def _private(self) -> PrivateClient | None:
        mean = self.agreement.plan.private
        return None if mean is None else PrivateClient(self.agreement, mean)

    @property
    def _samples(self) -> int:
        """How many samples there are, as the server hears of it: of a private run it does not."""
        return 1 if self._private else self.feed.samples

    def _sent(self, workers: Workers, order: Order, said: Tensor | None) -> ArrayRecord | None:
        """The numbers that an order asks for, or what was `said` of a part in a private run."""
        if order.send in ("nothing", "scores"):
            return None
        if said is not None and order.send == "part":
            return messages.pack(said)
        if self._private:
            raise ValueError(
                f"the server asks for {order.send!r}, and with privacy only clipped changes of a "
                f"part leave a client"
            )
        if order.send == "model":
            return messages.pack(whole_model(workers, self.agreement))
        sections = self.agreement.sections(order.send, order.due)
        return messages.pack(encode(workers, self.agreement, sections))


def _averages(saved: dict[str, Any], workers: Workers) -> Averages | None:
    """Each part as a client last heard of it."""
    kept = saved.get("averages")
    return Averages(*(row.to(workers.params.device) for row in kept)) if kept else None
