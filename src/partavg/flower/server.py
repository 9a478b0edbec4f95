"""The server: one exchange per part that is due."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from partavg.core.abilities import abilities
from partavg.core.reduce import accumulating
from partavg.core.workers import upgrade_
from partavg.flower.aggregation import aggregated, aggregated_model
from partavg.flower.orders import Orders
from partavg.flower.plausible import Implausible, Plausible, model_pieces, pieces
from partavg.flower.private import PrivateServer
from partavg.flower.progress import ServerProgress, Stage
from partavg.flower.protocol import Agreement, decode_, parameters, set_model_
from partavg.flower.roster import Roster
from partavg.flower.rounds import Round, Rounds
from partavg.flower.rules import Rules
from partavg.flower.scores import AVERAGE, Scores, evaluations, of_another_kind, unusable
from partavg.flower.transport import Transport
from partavg.flower.weights import weights_of
from partavg.privacy.ledger import Ledger

log = logging.getLogger("flwr")

Sent = Literal["part", "rest", "model", "nothing", "scores"]


class Exchange(NamedTuple):
    """What one round of messages did."""

    stage: Stage
    step: int
    part: int
    clients: tuple[int, ...]
    """Who took part."""
    away: dict[int, str]
    """Who should have, and why they did not."""
    seconds: float
    loss: float | None
    """Weighted mean of the clients' mini-batch losses, where all of them share it."""
    discrepancy: float | None
    """Of the part, just before it was averaged: (1/m) Σ_i ‖u_j − x_ij‖²."""
    capped: tuple[int, ...] = ()
    """Who claims so many samples that it counted less."""
    samples: Mapping[int, int] = {}
    """The new counts of those whose data grew."""
    scores: Mapping[int, Scores] = {}
    """What clients measured on their own test samples."""
    late: tuple[int, ...] = ()
    """Who was not waited for."""


class Server:
    """Averages parts of the clients' models; iterate over it to train.

    It holds one worker that takes no steps: each part as it was last averaged, and what solvers
    have in common. Between two records the caller may evaluate, stop, or save `state`; what was
    averaged must be saved before going on, or a server that is killed could lose it.
    """

    def __init__(
        self,
        transport: Transport,
        agreement: Agreement,
        rules: Rules,
        *,
        steps: int,
        token: str,
        ledger: Ledger | None = None,
    ) -> None:
        self._agreement, self._rules, self._budget = agreement, rules, steps
        self._rounds = Rounds(transport, agreement, rules, token)
        self._capped = set[int]()
        self.mirror = agreement.start()
        self.progress = ServerProgress(token, "exchange" if self._local_steps <= steps else "end")
        self._private: PrivateServer | None = None
        if ledger and agreement.plan.private:
            self._private = PrivateServer(agreement, agreement.plan.private, ledger)
            self.progress.drawn = self._private.drawn(rules.clients)

    @property
    def _steps(self) -> int:
        """The last step."""
        return self._budget if self.progress.ends is None else self.progress.ends

    def stop(self) -> None:
        """End with what was averaged by now, and the models that clients have."""
        if self.progress.stage in ("exchange", "evaluation", "redistribution"):
            self.progress.ends, self.progress.stage = self.progress.step, "end"

    @property
    def roster(self) -> Roster:
        """The clients."""
        return self._rounds.roster

    def state(self) -> dict[str, Any]:
        """All of it, to save."""
        return {
            "progress": self.progress.state(),
            "mirror": self.mirror.state(),
            "roster": self.roster.state(),
        }

    def load(self, saved: dict[str, Any]) -> None:
        """Go on from what `state` gave."""
        self.progress = ServerProgress.load(saved["progress"])
        self.mirror.load_(saved["mirror"])
        upgrade_(self.mirror, self._agreement.plan.partition.parts)
        self._rounds.resume(Roster.load(saved["roster"]), self.progress.token)

    def __iter__(self) -> Iterator[Exchange]:
        """Train to the end."""
        stages = {
            "exchange": self._exchange,
            "evaluation": self._evaluate,
            "redistribution": self._redistribute,
            "dismissal": self._dismiss,
            "end": self._end,
        }
        if self.progress.stage in stages:
            self._rounds.gather()
        while self.progress.stage in stages:
            yield stages[self.progress.stage]()
        self._say_goodbye()

    def _say_goodbye(self) -> None:
        """Tell clients that do not know it that the run is over: what they keep may go then.

        Nobody waits once more for one that was silent until its deadline.
        """
        waiting = [
            client
            for client, member in self.roster.items()
            if member.turn >= 0 and not member.over and not member.missed
        ]
        if waiting:
            self._round(sorted(waiting), self._steps, "nothing", self.progress.part, required=False)

    def _exchange(self) -> Exchange:
        """Let the active clients train until a part is due, and average it."""
        now = self.progress
        until = now.step + self._local_steps
        (due,) = self._agreement.plan.schedule(until)
        if self._private and not self._private.allows(due, until):
            now.spent = True
            return self._end()
        active = self._active(until)
        found = self._round(active, until, "part", due, enough=self._rules.enough(len(active)))
        weights = self._average("part", due, found, until)
        discrepancy = None if self._private else self._discrepancy(found, weights, due)
        every = self._rules.evaluate_every
        examined = every > 0 and until // every > now.step // every and until < self._steps
        now.step, now.models = until, {}
        now.stage = "evaluation" if examined and self._examining() else self._after_exchange()
        return _record("exchange", until, due, found, weights, discrepancy)

    def _after_exchange(self) -> Stage:
        step, who = self.progress.step, self._agreement.plan.participation
        if step + self._local_steps > self._steps:
            return "end"
        return "redistribution" if who and who.changes(step + 1) else "exchange"

    def _evaluate(self) -> Exchange:
        """Let all clients that have test samples measure the averages on them."""
        now = self.progress
        found = self._round(self._examining(), now.step, "scores", now.part, required=False)
        for wrong in (of_another_kind, partial(unusable, wanted=self._rules.scores)):
            for client, reason in wrong(found.scores).items():
                self._rounds.leave_out(found, client, now.step, reason)
        for client, seen in evaluations(found.scores, self._rules.scores, AVERAGE).items():
            member = self.roster[client]
            member.tests = found.scores[client].samples
            accuracy = {} if seen.accuracy is None else {"accuracy": seen.accuracy}
            member.scored = {"step": now.step, "loss": seen.loss, **accuracy}
        now.stage = "done" if now.step == self._steps else self._after_exchange()
        return _record("evaluation", now.step, now.part, found)

    def _examining(self) -> list[int]:
        """The clients that measure models."""
        return sorted(client for client, member in self.roster.items() if member.tests)

    def _redistribute(self) -> Exchange:
        """Collect from the clients active so far what those active from now on start from."""
        now, who = self.progress, self._agreement.plan.participation
        assert who
        if self._private:
            return self._draw(self._private)
        slots = who.changing(now.step + 1)
        old, new = self._active(now.step)[slots], self._active(now.step + 1)[slots]
        due, listens = now.part, who.redistribution == "listen"
        if who.redistribution == "none":
            found = self._round(
                [c for c in old if c not in new], now.step, "nothing", due, required=False
            )
        elif who.redistribution == "average":
            rest: Sent = "rest" if self._agreement.sections("rest", due) else "nothing"
            found = self._round(old, now.step, rest, due)
            if rest == "rest":
                self._average("rest", due, found, now.step)
        elif listens:  # those who come begin with the server's row
            told = old if abilities(self._agreement.solver).per_client else []
            found = self._round(told, now.step, "nothing", due, required=False)
        else:
            found = self._round(old, now.step, "model", due)
            self._leave_out(self._judge_of_models(), found, now.step)
            pairs = zip(old, new, strict=True)
            now.models = {n: found.arrays[o] for o, n in pairs if o in found.arrays}
        for client in set(new) - (set() if listens else set(old)):
            if client in self.roster:
                self.roster[client].begins(whole=who.redistribution != "none")
        dismissed = now.about == "rest" and abilities(self._agreement.solver).per_client
        now.stage = "dismissal" if dismissed else "exchange"
        return _record("redistribution", now.step, due, found)

    def _draw(self, private: PrivateServer) -> Exchange:
        """Draw who takes part in the next cycle; all of them begin with what was released."""
        now = self.progress
        now.drawn = private.drawn(self._rules.clients)
        now.turn, now.stage = now.turn + 1, "exchange"
        for client in now.drawn or ():
            if client in self.roster:
                self.roster[client].begins(whole=True)
        return _record("redistribution", now.step, now.part, Round())

    def _dismiss(self) -> Exchange:
        """Tell clients that pause the last sums: what they keep for themselves depends on them."""
        now = self.progress
        new = self._active(now.step + 1)
        leaving = [client for client in self._active(now.step) if client not in new]
        found = self._round(leaving, now.step, "nothing", now.part, required=False)
        now.stage = "exchange"
        return _record("dismissal", now.step, now.part, found)

    def _end(self) -> Exchange:
        """Take the steps that are left and average the whole models: u_K.

        Of a private run it is what was released, and nobody is asked for more.
        """
        now = self.progress
        if self._private:
            now.ends = now.step if now.step < self._steps else now.ends
            now.turn, now.stage = now.turn + 1, self._after_end()
            return _record("end", now.step, now.part, Round())
        found = self._round(self._active(max(1, self._steps)), self._steps, "model", now.part)
        judge = self._judge_of_models()
        self._leave_out(judge, found, self._steps)
        weights = self._weights(found)
        just_averaged = now.part if now.step == self._steps else None
        model = aggregated_model(
            found.arrays, weights, self._agreement, self.mirror, self._steps, but=just_averaged
        )
        self._check(judge, model, found, self._steps)
        set_model_(self.mirror, self._agreement, model)
        for member in self.roster.values():
            for part in range(len(self._agreement.plan.partition.parts)):
                if part != just_averaged:
                    member.outdated(part)
        now.step, now.models = self._steps, {}
        now.stage = self._after_end()
        return _record("end", now.step, now.part, found, weights)

    def _after_end(self) -> Stage:
        return "evaluation" if self._rules.evaluate_every and self._examining() else "done"

    def _round(
        self,
        clients: Sequence[int],
        until: int,
        send: Sent,
        due: int,
        *,
        required: bool = True,
        enough: int | None = None,
    ) -> Round:
        """One round of messages: hand out what clients lack, take back what they send."""
        now = self.progress
        orders = Orders(
            self._agreement,
            now,
            self.mirror,
            self._rules.catch_up,
            turn=now.turn + 1,
            until=until,
            send=send,
            due=due,
            active=self._active(max(1, now.step)),
            last=now.stage in ("end", "evaluation", "done") and until == self._steps,
        )
        need = min(self._rules.min_clients, len(clients)) if required else 0
        found = self._rounds.ask(clients, orders, need=need, enough=enough)
        now.turn = orders.turn
        return found

    def _average(self, about: str, part: int, found: Round, step: int) -> dict[int, float]:
        """Make one message of those about a part or the rest, and note who is to hear of it.

        Nothing is changed before it is known to hold; how much each client counted comes back.
        """
        now, agreement = self.progress, self._agreement
        sections = agreement.sections(about, part)
        if self._private:
            sums = self._private.released(found.arrays, part, step, self.mirror, now.private)
            self._take(about, part, sums, found, self._private.fraction)
            return {}
        judge = Plausible(
            pieces(agreement, self.mirror, sections), now.changes, self._rules.max_change
        )
        self._leave_out(judge, found, step)
        weights = self._weights(found)
        sums = aggregated(found.arrays, weights, agreement, self.mirror, sections, step)
        self._check(judge, sums, found, step)
        if about == "part":
            judge.remember_(sums)
        self._take(about, part, sums, found, len(found.replies) / self._rules.clients)
        return weights

    def _take(self, about: str, part: int, sums: Tensor, found: Round, fraction: float) -> None:
        """Take over what became of messages, and note who is to hear of it."""
        now, sections = self.progress, self._agreement.sections(about, part)
        now.about, now.part, now.sums = about, part, sums
        now.active_fraction = fraction
        decode_(self.mirror, self._agreement, sections, now.sums, now.active_fraction)
        for client, member in self.roster.items():
            for section in sections:
                member.averaged(section.part, contributed=client in found.arrays)

    def _judge_of_models(self) -> Plausible:
        made = model_pieces(self._agreement, self.mirror)
        return Plausible(made, {}, self._rules.max_change)

    def _leave_out(self, judge: Plausible, found: Round, step: int) -> None:
        """Go on without messages that are too far out, while enough clients are left."""
        outliers = judge.outliers(found.arrays)
        need = min(self._rules.min_clients, len(found.replies) + len(found.away))
        if outliers and len(found.replies) - len(outliers) < need:
            said = "; ".join(f"client {c}: {why}" for c, why in sorted(outliers.items()))
            raise self._stopped(f"too few clients are left without those far out ({said})", step)
        for client, reason in outliers.items():
            self._rounds.leave_out(found, client, step, reason)

    def _check(self, judge: Plausible, total: Tensor, found: Round, step: int) -> None:
        try:
            judge.check(total, found.arrays)
        except Implausible as error:
            raise self._stopped(str(error), step) from None

    def _stopped(self, why: str, step: int) -> Implausible:
        return Implausible(
            f"at step {step} {why}: nothing of it is saved; take those clients out, or give a "
            f"larger flower.max_change, then start again with flower.resume = true"
        )

    def _weights(self, found: Round) -> dict[int, float]:
        """p_i of those who answered."""
        rules = self._rules
        samples = {client: reply.samples for client, reply in found.replies.items()}
        weights, found.capped = weights_of(samples, rules.weights, rules.max_weight)
        for client in set(found.capped) - self._capped:
            log.warning(
                "client %d counts %g times the median from now on, flower.max_weight, and not by "
                "its %d samples", client, rules.max_weight, samples[client],
            )  # fmt: skip
        self._capped.update(found.capped)
        return weights

    def _discrepancy(self, found: Round, weights: Mapping[int, float], due: int) -> float | None:
        """How far the clients are apart in a part, as far as messages tell."""
        agreement = self._agreement
        if not agreement.sends_parameters:
            return None
        (section,) = agreement.sections("part", due)
        kind = accumulating(agreement.model.dtype)
        rows = {c: parameters(a, agreement, section).to(kind) for c, a in found.arrays.items()}
        center = sum((weights[c] * row for c, row in rows.items()), torch.zeros(()))
        squares = [float((row - center).square().sum()) for row in rows.values()]
        return sum(squares) / len(squares)

    def _active(self, step: int) -> list[int]:
        if self.progress.drawn is not None:
            return self.progress.drawn
        who = self._agreement.plan.participation
        return [int(c) for c in who(step)] if who else list(range(self._rules.clients))

    @property
    def _local_steps(self) -> int:
        schedule = self._agreement.plan.schedule
        return schedule.interval // schedule.parts


def _record(
    stage: Stage,
    step: int,
    part: int,
    found: Round,
    weights: Mapping[int, float] | None = None,
    discrepancy: float | None = None,
) -> Exchange:
    losses = {c: reply.loss for c, reply in found.replies.items()}
    shared = weights and all(loss == loss for loss in losses.values())
    loss = sum(weights[c] * loss for c, loss in losses.items()) if weights and shared else None
    clients = tuple(found.replies)
    return Exchange(
        stage, step, part, clients, found.away, found.seconds, loss, discrepancy,
        tuple(found.capped), found.samples, found.scores, tuple(found.late),
    )  # fmt: skip
