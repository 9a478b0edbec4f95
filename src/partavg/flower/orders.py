"""What each client is told in a round of messages, and what goes along."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from flwr.app import ArrayRecord
from torch import Tensor

from partavg.core.abilities import abilities
from partavg.core.workers import Workers
from partavg.flower import messages
from partavg.flower.messages import Order
from partavg.flower.progress import ServerProgress
from partavg.flower.protocol import Agreement, snapshot, whole_model
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
    active: Collection[int] = ()
    """The clients that train now."""
    last: bool = False
    _packed: dict[str, ArrayRecord] = field(default_factory=dict)

    def order(self, client: int, member: Member) -> tuple[Order, Handout]:
        """The order of a client, as things stand: they may differ when it is asked again."""
        now = self.progress
        choose = self._to_examine if self.send == "scores" else self._handout
        goodbye = self.last and self.send == "nothing"
        handout = Handout("nothing", (), None) if goodbye else choose(client, member)
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
            last=self.last,
            clip=self._clip(),
        )
        return order, handout

    def _clip(self) -> float:
        private = self.agreement.plan.private
        return private.current_clip(self.progress.private) if private else 0.0

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

    def _to_examine(self, client: int, member: Member) -> Handout:
        """What a client needs to look at the averages: no more than what is due to it, if it can.

        One that rests or leaves keeps its own model, and so does one that lacks more than is due:
        the averages are for it to look at.
        """
        due = self._handout(client, member)
        stays = client in self.active and not self._leaves(client)
        trains = stays and not abilities(self.agreement.solver).keeps_apart
        usual = due.bring in ("nothing", "sums", "part")
        if trains and usual and set(member.lacks) <= set(due.parts):
            return due
        return Handout("averages", (), self._pack("averages"))

    def _model(self, client: int) -> ArrayRecord:
        """Another client's model, and what solvers have in common."""
        model = self.progress.models[client]
        common = snapshot(self.mirror, self.agreement)[len(model) :]
        return messages.pack(torch.cat([model, common]))

    def _pack(self, bring: str) -> ArrayRecord:
        """What goes to several clients is packed once."""
        if bring not in self._packed:
            self._packed[bring] = messages.pack(self._brought(bring))
        return self._packed[bring]

    def _brought(self, bring: str) -> Tensor:
        now = self.progress
        if bring == "sums":
            assert now.sums is not None
            return now.sums
        if bring == "averages":
            return whole_model(self.mirror, self.agreement)
        return snapshot(self.mirror, self.agreement, now.part if bring == "part" else None)
