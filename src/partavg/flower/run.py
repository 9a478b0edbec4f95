"""A federated run in its folder: the same files as a simulated one."""

import logging
import secrets
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

from torch import Tensor, nn

from partavg import checkpoint
from partavg.config_toml import flat_keys
from partavg.evaluation import Transform, evaluate
from partavg.flower.progress import ServerProgress
from partavg.flower.protocol import Agreement
from partavg.flower.resuming import changed, check_startable, claim, record, write_settings
from partavg.flower.scores import measured
from partavg.flower.server import Exchange, Server
from partavg.flower.settings import Settings
from partavg.flower.transport import Transport
from partavg.folder import RunFolder, write_json
from partavg.metrics.metric import Row
from partavg.metrics.table import SINGLED_OUT, summarize
from partavg.privacy.ledger import LEDGER, Ledger
from partavg.session import Stop
from partavg.sinks import chosen, sinks_of
from partavg.sinks.jsonl import JsonLines
from partavg.sinks.sink import Feed, RunInfo, SinkLike

log = logging.getLogger("flwr")

_ONE_BY_ONE = {"clients", "away", "late", "sent", "received", *SINGLED_OUT}
"""What a row of a private run does not say: anything about single clients,"""
_WHO = _ONE_BY_ONE | {"bytes", "messages", "seconds"}
"""and where clients are drawn nothing that depends on who took part."""


class FederatedRun:
    """Trains with the clients that a Transport reaches; iterate over it.

    Everything that was averaged is on disk before any client hears of it.
    """

    def __init__(
        self,
        settings: Settings,
        agreement: Agreement,
        transport: Transport,
        test: tuple[Tensor, Tensor] | None,
        seen: Transform,
        *,
        sinks: Sequence[SinkLike] = (),
        stop: Stop | None = None,
    ) -> None:
        self._settings, self._agreement, self._test, self._seen = settings, agreement, test, seen
        self._sinks = [*chosen(settings.config.metrics), *sinks_of(sinks)]
        self._stop = stop
        self._asked = settings.asked
        self.folder = RunFolder(settings.folder)
        self._ledger = ledger_of(settings, self.folder.path)
        self.server = Server(
            transport,
            agreement,
            settings.rules(tests=test is not None),
            steps=settings.steps,
            token=secrets.token_hex(8),
            ledger=self._ledger,
        )
        self._metrics = JsonLines(self.folder.metrics_path, synced=lambda step: True)
        self._seconds = 0.0
        self._said_untested = False
        if self._asked and self._test:
            self._check_measurable()
        if not self.folder.exists:
            self._check_free()
        self._lock = claim(self.folder)
        try:
            self._start()
        except BaseException:
            self._lock.release()
            raise

    def __iter__(self) -> Iterator[Row]:
        """Train to the end; yield the metrics of each exchange."""
        try:
            yield from self._rows()
        finally:
            self._lock.release(force=True)

    def _rows(self) -> Iterator[Row]:
        log.info("partavg: run folder %s", self.folder.path)
        began, before = monotonic() - self._seconds, self.server.progress.step
        with Feed([self._metrics, *self._sinks], self._about()) as feed:
            for exchange in self.server:
                self._check_tested()
                row = self._row(exchange, before)
                before = exchange.step
                self._seconds = monotonic() - began
                feed.take(row)
                if self._asked_to_stop(row):
                    self.server.stop()
                self._save()
                log.info("partavg: %s", self._said(row))
                yield row
            feed.end(self._finish())

    def _asked_to_stop(self, row: Row) -> bool:
        """Asked where training may end: not while models change hands."""
        return bool(self._stop and row["stage"] in ("exchange", "evaluation") and self._stop(row))

    def _about(self) -> RunInfo:
        settings, step = self._settings, self.server.progress.step
        keys = flat_keys(settings.dump())
        return RunInfo(
            settings.flower.job, settings.steps, step, keys, self.folder.path, self._asked
        )

    def model(self) -> nn.Module:
        """The parts as they were last averaged; at the end u_K."""
        mirror = self.server.mirror
        return self._agreement.model.module(mirror.params[0], mirror.buffers[0])

    def _start(self) -> None:
        """Begin a run folder, or go on in one."""
        folder = self.folder
        check_startable(folder, resume=self._settings.flower.resume)
        saved = checkpoint.load(folder.checkpoints) if folder.exists else None
        if saved is None:
            self._begin()
        else:
            self._go_on(saved)

    def _begin(self) -> None:
        folder = self.folder
        folder.write_environment(
            {
                "seed": self._settings.config.training.seed,
                "engine": "looped (each client trains its own row)",
                "flwr": version("flwr"),
            }
        )
        folder.write_metrics(self._asked)
        write_settings(folder, self._settings)
        if self._ledger:
            self._ledger.begin()
        self._save()

    def _go_on(self, saved: dict[str, Any]) -> None:
        folder, settings = self.folder, self._settings
        progress = ServerProgress.load(saved["server"]["progress"])
        change = changed(folder, settings, progress)
        if saved["digest"] != self._agreement.digest():
            raise ValueError(
                f"{folder.path} was started with another model, partition or solver: resume with "
                f"the same app and settings"
            )
        folder.check_metrics(saved["metrics_length"])
        for row in folder.rows(saved["metrics_length"]):
            self._asked_to_stop(row)  # it may remember what it saw
        if self._ledger:
            self._ledger.resume(saved.get("ledger"))
        self.server.load(saved["server"])
        self._metrics.length, self._seconds = saved["metrics_length"], saved["seconds"]
        record(folder, settings, change, progress.step)
        for key, (old, new) in change.items():
            log.info("partavg: %s was %r, and is %r from now on", key, old, new)
        log.info("partavg: resuming after step %d", progress.step)

    def _check_free(self) -> None:
        """Raise a ValueError if files of others would be overwritten."""
        try:
            self.folder.check_free(resume=False, force=False)
        except ValueError as error:
            raise ValueError(str(error).replace("--out", "flower.folder")) from None

    def _check_measurable(self) -> None:
        """Raise a ValueError for metrics that cannot be measured: now, not in an hour."""
        assert self._test
        inputs, targets = self._test
        few = inputs[:4], targets[:4]
        criterion = self._agreement.model.criterion
        evaluate(self.model(), criterion, few, self._seen, metrics=self._asked)

    def _check_tested(self) -> None:
        """Say so, once, if nobody has test samples; raise a ValueError if they were asked for."""
        tests = any(member.tests for member in self.server.roster.values())
        unasked = tests and self._ledger and not self._settings.config.metrics.clients_every
        if self._test is not None or self._said_untested or (tests and not unasked):
            return
        self._said_untested = True
        if unasked:
            log.warning(
                "partavg: only clients have test samples, which privacy does not protect, and so "
                "there will be no accuracy: set metrics.clients_every if they may measure"
            )
            return
        if self._asked:
            raise ValueError(
                f"metrics.extra = {self._asked[0].key!r} is measured on test samples, and neither "
                f"the server nor a client gives some: give test to server_app or to client_app, "
                f"or leave it out"
            )
        log.warning(
            "partavg: neither the server nor a client has test samples, so there will be no "
            "accuracy: give test to server_app or to client_app"
        )

    def _save(self) -> None:
        checkpoint.save(
            self.folder.checkpoints,
            self.server.progress.turn,
            {
                "server": self.server.state(),
                "digest": self._agreement.digest(),
                "metrics_length": self._metrics.length,
                "seconds": self._seconds,
                **({"ledger": self._ledger.mark} if self._ledger else {}),
            },
        )

    def _row(self, exchange: Exchange, before: int) -> Row:
        members = self.server.roster
        row: Row = {
            "step": exchange.step,
            "stage": exchange.stage,
            "part": exchange.part,
            "lr": self._settings.rate(max(1, exchange.step)),
            "bytes": _mean([member.sent for member in members.values()]),
            "messages": max((member.messages for member in members.values()), default=0),
            "seconds": round(exchange.seconds, 4),
            "clients": list(exchange.clients),
            "away": {str(client): reason for client, reason in exchange.away.items()},
            "sent": {str(client): member.sent for client, member in members.items()},
            "received": {str(client): member.received for client, member in members.items()},
        }
        if self._ledger and (spent := self._ledger.epsilon()) is not None:
            row |= {self._epsilon: spent, "delta": self._ledger.delta}
        if exchange.samples and not self._ledger:
            row["samples"] = {str(client): count for client, count in exchange.samples.items()}
        if exchange.late:
            row["late"] = list(exchange.late)
        if exchange.capped:
            row["capped"] = list(exchange.capped)
        if exchange.loss is not None:
            row["loss"] = exchange.loss
        if exchange.discrepancy is not None:
            row["discrepancy_due"] = exchange.discrepancy
        every = self._settings.config.metrics.evaluate_every
        wanted = every > 0 and exchange.step // every > before // every
        if exchange.stage == "end" or (wanted and exchange.stage == "exchange"):
            row |= self._evaluated()
        local = self._settings.config.metrics.local_accuracy
        scores = self._settings.scores
        row |= measured(exchange.scores, scores, local, together=self._test is None)
        if self._ledger is None:
            return row
        hidden = _ONE_BY_ONE if self.server.progress.drawn is None else _WHO
        return {key: value for key, value in row.items() if key not in hidden}

    def _said(self, row: Row) -> str:
        """An exchange in a few words."""
        parts = [f"step {row['step']}/{self._settings.steps}"]
        if "clients" in row:
            here, all_of_them = len(row["clients"]), self._settings.config.training.workers
            parts.append(f"{here} of {all_of_them} clients")
        if "seconds" in row:
            parts.append(f"{row['seconds']:.1f} s")
        for key, called in (("epsilon", "ε"), ("epsilon_local", "local ε")):
            if key in row:
                parts.append(f"{called} {row[key]:.2f} at δ = {row['delta']:g}")
        for key, called in (("accuracy", "accuracy"), ("clients_accuracy", "clients' accuracy")):
            if key in row:
                parts.append(f"{called} {100 * row[key]:.2f} %")
        return ", ".join(parts)

    def _evaluated(self) -> Row:
        if self._test is None or self._agreement.plan.partition.local:
            return {}  # with local parameters the server has nobody's model
        criterion = self._agreement.model.criterion
        found = evaluate(self.model(), criterion, self._test, self._seen, metrics=self._asked)
        return {"test_loss": found.loss, **found.metrics}

    def _finish(self) -> Row:
        """Save the averaged model and the summary, which marks the end."""
        checkpoint.save_model(self.folder.model_path, self.model().state_dict())
        rows = list(self.folder.rows())
        times = [r["seconds"] for r in rows if r["stage"] == "exchange" and "seconds" in r]
        members, early = self.server.roster, self.server.progress.ends
        ended: Row = {"seconds": round(self._seconds, 3)}
        untested = sum(not member.tests for member in members.values())
        if 0 < untested < len(members) and self._ledger is None:
            ended["clients_left_out"] = untested
        summary: dict[str, Any] = {
            "steps": rows[-1]["step"],
            "scale": 1.0,
            **({} if early is None else {"stopped_at": early}),
            **summarize(rows, ended, self._asked),
            "seconds_per_exchange": round(median(times), 4) if times else None,
            **self._spent(),
            "clients": {
                str(client): {
                    **({} if self._ledger else {"samples": member.samples}),
                    "sent": member.sent,
                    "received": member.received,
                    "late": member.late,
                    "absences": member.absences,
                    "tests": member.tests,
                    "scored": member.scored,
                    "seen": member.seen,
                    "away": [{"step": step, "why": why} for step, why in member.away],
                }
                for client, member in sorted(members.items())
            },
        }
        if self._ledger:
            del summary["clients"]
        write_json(self.folder.summary_path, summary)
        log.info("partavg: done; %s", self.folder.summary_path)
        return summary

    def _spent(self) -> Row:
        """What a private run has spent, and whether it ended by that."""
        found = self._ledger.epsilon() if self._ledger else None
        if self._ledger is None or found is None:
            return {}
        why = {"stopped_by": "max_epsilon"} if self.server.progress.spent else {}
        return {self._epsilon: found, "delta": self._ledger.delta, **why}

    @property
    def _epsilon(self) -> str:
        spending = self._settings.spending
        return spending.key if spending else ""


def ledger_of(settings: Settings, folder: Path) -> Ledger | None:
    """The ledger of a private run."""
    spending = settings.spending
    if spending is None:
        return None
    return Ledger(folder / LEDGER, spending.accountant, spending.privacy.max_epsilon)


def _mean(values: list[int]) -> int:
    return round(sum(values) / len(values)) if values else 0
