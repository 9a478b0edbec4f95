"""What each client is told in a round of messages, and what goes along."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from flwr.app import ArrayRecord

from partavg.core.workers import Workers
from partavg.flower import messages
from partavg.flower.messages import Order
from partavg.flower.progress import ServerProgress
from partavg.flower.protocol import Agreement, snapshot
from partavg.flower.roster import Member


class Handout(NamedTuple):
    """What goes along with an order."""

    bring: str
    """What it is, see `Order`."""
    parts: Sequence[int]
    """The parts that the client has once it carried out the order."""
    array: ArrayRecord | None


@dataclass(frozen=True, slots=True)
class Orders:
    """The orders of one round: all train and send alike, each gets what it lacks."""

    agreement: Agreement
    progress: ServerProgress
    mirror: Workers
    """Each part as it was last averaged."""
    catch_up: str
    turn: int
    until: int
    send: str
    due: int
    _packed: dict[str, ArrayRecord] = field(default_factory=dict)

    def order(self, client: int, member: Member) -> tuple[Order, Handout]:
        """The order of a client, as things stand: they may differ when it is asked again."""
        now, handout = self.progress, self._handout(client, member)
        order = Order(
            token=now.token,
            turn=self.turn,
            after=member.turn if handout.bring in ("sums", "noted") else -1,
            bring=handout.bring,
            about=now.about,
            part=now.part,
            active_fraction=now.active_fraction,
            start=now.step,
            until=self.until,
            send=self.send,
            due=self.due,
        )
        return order, handout

    def _handout(self, client: int, member: Member) -> Handout:
        now, agreement = self.progress, self.agreement
        every = range(len(agreement.plan.partition.parts))
        whole = self.catch_up == "whole" or now.about == "rest"
        last = [section.part for section in agreement.sections(now.about, now.part)]
        if client in now.models:
            return Handout("model", every, self._model(client))
        if member.turn < 0 or member.behind or (whole and not member.needs_only(last)):
            return Handout("whole", every, self._pack("whole"))
        if not member.owed:
            return Handout("nothing", (), None)
        contributed, leaves = all(member.owed.get(part) for part in last), self._leaves(client)
        if leaves:
            return Handout("noted", last, None) if contributed else Handout("nothing", (), None)
        if contributed:
            return Handout("sums", last, self._pack("sums"))
        return Handout("part", last, self._pack("part"))

    def _leaves(self, client: int) -> bool:
        """Whether a client gets no averages, because who comes next begins with them."""
        plan, step = self.agreement.plan, self.progress.step
        who, slots = plan.participation, plan.leaving(step)
        return who is not None and slots is not None and client in who(step)[slots]

    def _model(self, client: int) -> ArrayRecord:
        """Another client's model, and what solvers have in common."""
        model = self.progress.models[client]
        common = snapshot(self.mirror, self.agreement)[len(model) :]
        return messages.pack(torch.cat([model, common]))

    def _pack(self, bring: str) -> ArrayRecord:
        """What goes to several clients is packed once."""
        if bring not in self._packed:
            now = self.progress
            part = now.part if bring == "part" else None
            tensor = now.sums if bring == "sums" else snapshot(self.mirror, self.agreement, part)
            assert tensor is not None
            self._packed[bring] = messages.pack(tensor)
        return self._packed[bring]
