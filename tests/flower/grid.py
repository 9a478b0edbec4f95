"""A federation in one process: real apps, real messages, and faults on demand."""

from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.serverapp import Grid

Fault = Callable[[int, Message], str | None]
"""(client, message to it) -> "late" if its time is up before it is carried out."""


class FakeGrid(Grid):
    """Hands messages to the ClientApps themselves; contexts are a node's own, as in Flower."""

    def __init__(self, app: ClientApp, run_config: dict[str, Any], nodes: dict[int, Any]) -> None:
        self._app = app
        self.contexts = {
            node: Context(1, node, config, RecordDict(), run_config)
            for node, config in nodes.items()
        }
        self.fault: Fault = lambda client, message: None
        self.after: Callable[[int, Message], Message] = lambda client, reply: reply
        self.gone: set[int] = set()
        self.log: list[tuple[int, Message, Message]] = []
        self._replies: dict[str, Message] = {}

    def client(self, node: int) -> int:
        """The number of the client on a node."""
        return int(self.contexts[node].node_config["partition-id"])

    def get_node_ids(self) -> Iterable[int]:
        return [node for node in self.contexts if node not in self.gone]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        numbers = []
        for message in messages:
            number = f"{len(self.log)}-{len(self._replies)}-{message.metadata.dst_node_id}"
            message.metadata.__dict__["_message_id"] = number
            numbers.append(number)
            self._deliver(message)
        return numbers

    def _deliver(self, message: Message) -> None:
        node = message.metadata.dst_node_id
        client = self.client(node)
        if self.fault(client, message) == "late":
            self.expire(message)
            return
        try:
            reply = self._app(_travelled(message), self.contexts[node])
        except Exception as error:
            reply = Message(Error(2, str(error)), reply_to=message)
        reply = self.after(client, _travelled(reply))
        self.log.append((client, message, reply))
        self._replies[message.metadata.message_id] = reply

    def expire(self, message: Message) -> None:
        """Answer as the SuperLink does when time is up, at once, so that no test has to wait."""
        reply = Message(Error(3, "expired"), reply_to=message)
        self._replies[message.metadata.message_id] = reply

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(number) for number in message_ids if number in self._replies]

    def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
        raise NotImplementedError

    def create_message(self, *arguments: Any, **options: Any) -> Any:
        raise NotImplementedError

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError


def _travelled(message: Message) -> Message:
    """What arrives of a message."""
    return message_from_proto(message_to_proto(message))
