"""Messages to nodes and their answers, each with its own deadline."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Event, Thread
from time import monotonic

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from partavg.flower import messages
from partavg.sentences import cleaned, reason

_LOOKS = 600  # a second at most, for the answers of all clients: each is work for the SuperLink
_LAST_LOOK = 0.5  # seconds between two looks for an answer that is slow to come
_EXPIRED = 3  # Flower's error code of a message that nobody answered in time


@dataclass(frozen=True, slots=True)
class Answer:
    """A node's answer, or why there is none, and the bytes to and from it."""

    node: int
    content: RecordDict | None
    problem: str
    sent: int
    received: int
    silent: bool = False
    """Whether its time was up."""


@dataclass(slots=True)
class Transport:
    """Sends messages by a Grid and waits for the answers; counts the bytes of both."""

    grid: Grid

    def nodes(self) -> list[int]:
        """The nodes that Flower takes to be there."""
        return sorted(self.grid.get_node_ids())

    def send(
        self,
        contents: Mapping[int, RecordDict],
        action: str,
        turn: int,
        seconds: float,
        most: Mapping[int, int] | None = None,
    ) -> "Sent":
        """Send a message to each of some nodes, whose answers may have so many bytes at `most`.

        One thread looks for each answer: a node that dies while it answers blocks whoever waits
        for it, and must not block the others.
        """
        outgoing = {
            node: Message(
                content, dst_node_id=node, message_type=action, ttl=seconds, group_id=str(turn)
            )
            for node, content in contents.items()
        }
        sizes = {node: messages.size(message) for node, message in outgoing.items()}
        sent = Sent(self.grid, seconds, monotonic() + seconds, sizes)
        pushed = set(self.grid.push_messages(list(outgoing.values())))
        for node, message in outgoing.items():
            number = message.metadata.message_id
            if number in pushed:
                limit = (most or {}).get(node)
                arguments = (node, number, sizes[node], limit, len(outgoing) / _LOOKS)
                Thread(target=sent.wait, args=arguments, daemon=True).start()
            else:
                sent.arrivals.put(Answer(node, None, "its message could not be sent", 0, 0))
        return sent


@dataclass(slots=True)
class Sent:
    """Messages on their way; their answers are taken as they come."""

    grid: Grid
    seconds: float
    ends: float
    missing: dict[int, int]
    """The nodes that have not answered yet, and the bytes sent to each."""
    arrivals: SimpleQueue[Answer] = field(default_factory=SimpleQueue)
    stop: Event = field(default_factory=Event)

    def take(self, patience: float = 0.0) -> Answer | None:
        """The next answer; None if none comes in so many seconds; silence after the deadline."""
        try:
            left = max(0.01, min(patience, self.ends - monotonic()))
            answer = self.arrivals.get(timeout=left) if patience else self.arrivals.get_nowait()
        except Empty:
            if monotonic() < self.ends or not self.missing:
                return None
            self.stop.set()
            node = min(self.missing)
            problem = f"it did not answer within {self.seconds:g} s"
            return Answer(node, None, problem, self.missing.pop(node), 0, silent=True)
        if answer.node not in self.missing:
            return None  # too late: its silence was noted
        del self.missing[answer.node]
        return answer

    def wait(self, node: int, number: str, sent: int, most: int | None, shortest: float) -> None:
        """Look for a node's answer until it comes or time is up."""
        began, problem = monotonic(), ""
        while monotonic() < self.ends and not self.stop.is_set():
            try:
                found = list(self.grid.pull_messages([number]))
            except Exception as error:  # the connection's; it may come back before the deadline
                problem = f"its answer could not be fetched ({cleaned(str(error))})"
            else:
                if found:
                    self.arrivals.put(_answer(node, found[0], sent, most))
                    return
            # Look often for quick answers and seldom for slow ones: 5 % late at most.
            pause = max(shortest, min(_LAST_LOOK, 0.05 * (monotonic() - began)))
            self.stop.wait(min(pause, max(0.0, self.ends - monotonic())))
        if problem:
            self.arrivals.put(Answer(node, None, problem, sent, 0, silent=True))


def _answer(node: int, message: Message, sent: int, most: int | None) -> Answer:
    try:
        received = messages.size(message)
    except Exception as raised:  # whatever Flower makes of what a node sent
        problem = f"its answer cannot be read ({cleaned(reason(raised))})"
        return Answer(node, None, problem, sent, 0)
    if message.has_error():
        error = message.error
        words = cleaned(error.reason or "no reason given")
        problem = f"error {error.code}: {words}"
        return Answer(node, None, problem, sent, received, silent=error.code == _EXPIRED)
    if most is not None and received > most:  # not kept for a moment longer
        problem = f"its answer has {received} bytes, and no more than {most} were asked for"
        return Answer(node, None, problem, sent, received)
    if not message.has_content():
        return Answer(node, None, "its answer is empty", sent, received)
    return Answer(node, message.content, "", sent, received)
