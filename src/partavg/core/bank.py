"""What clients keep while they are not active; it takes memory from when there is something."""

from collections.abc import Iterator

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

SavedBank = dict[str, Tensor]
"""What `Bank.state` gives."""

_PIECE = 1024  # rows that are read from a file at a time


class Bank:
    """A row for each of many clients: the same for all, until a client puts its own there.

    Own rows lie in blocks, in the order in which clients first came; a new block is as large as
    all before it, so that there are few, and what was put away never moves.

    >>> bank = Bank(torch.zeros(1, 2), clients=100_000)
    >>> bank.put_(torch.tensor([7]), torch.ones(1, 2))
    >>> bank.take(torch.tensor([7, 8])).tolist(), bank.known.tolist()
    ([[1.0, 1.0], [0.0, 0.0]], [7])
    """

    def __init__(self, first: Shaped[Tensor, "1 w"], clients: int) -> None:
        self.first, self.clients = first, clients
        self._forget_()

    @classmethod
    def of(cls, rows: Shaped[Tensor, "n w"]) -> "Bank":
        """One that holds these rows, which are not copied, for as many clients."""
        made = cls(rows[:1].clone(), len(rows))
        made._places, made._count, made._blocks = torch.arange(len(rows)), len(rows), [rows]
        return made

    @property
    def device(self) -> torch.device:
        """Where the rows are."""
        return self.first.device

    @property
    def known(self) -> Int[Tensor, "k"]:
        """The clients that have a row of their own, in order."""
        return (self._places >= 0).nonzero().flatten()

    def put_(self, clients: Int[Tensor, "a"], rows: Shaped[Tensor, "a w"]) -> None:
        """Keep the rows of some clients."""
        clients, rows = clients.cpu(), arrived(rows, self.device)
        self._make_room(clients)
        for block, here, there in self._found(clients):
            block[there] = rows[here]
        self._changed[clients] = True

    def take(self, clients: Int[Tensor, "a"]) -> Shaped[Tensor, "a w"]:
        """A copy of the rows of some clients."""
        rows = self.first.repeat(len(clients), 1)
        for block, here, there in self._found(clients.cpu()):
            rows[here] = block[there]
        return rows

    def whole(self) -> Shaped[Tensor, "n w"]:
        """A copy of all rows."""
        return self.take(torch.arange(self.clients))

    def fill_(self, columns: slice, values: Shaped[Tensor, "c"]) -> None:
        """Give all clients the same values in some columns."""
        for rows in (self.first, *self._blocks):
            rows[:, columns] = values.to(rows)
        self._changed |= self._places >= 0

    def state(self, *, whole: bool = True) -> SavedBank:
        """What is to be saved: `first`, and the `rows` of the `clients` that have their own.

        If not `whole`, of those whose row changed since all was `saved_`.
        """
        clients = self.known if whole else self._changed.nonzero().flatten()
        return {"first": self.first, "clients": clients, "rows": self.take(clients)}

    def saved_(self) -> None:
        """What there is now was saved."""
        self._changed[:] = False

    def load_(self, saved: SavedBank | Tensor) -> None:
        """Take back what `state` gave."""
        saved = as_saved(saved)
        self.first = saved["first"].to(self.device, copy=True)
        self._forget_()
        for start in range(0, len(saved["clients"]), _PIECE):
            some = slice(start, start + _PIECE)
            self.put_(saved["clients"][some], saved["rows"][some])

    def _forget_(self) -> None:
        self._places = torch.full((self.clients,), -1)
        self._changed = torch.zeros(self.clients, dtype=torch.bool)
        self._count = 0
        self._blocks: list[Tensor] = []

    def _make_room(self, clients: Tensor) -> None:
        new = clients[self._places[clients] < 0]
        room = sum(map(len, self._blocks))
        if self._count + len(new) > room:
            size = min(max(room, len(new)), self.clients - room)
            self._blocks.append(self.first.new_empty(size, self.first.shape[1]))
        self._places[new] = torch.arange(self._count, self._count + len(new))
        self._count += len(new)

    def _found(self, clients: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Block by block, which of the clients have rows there, and in which places."""
        places, start = self._places[clients], 0
        for block in self._blocks:
            stop = start + len(block)
            here = ((places >= start) & (places < stop)).nonzero().flatten()
            if len(here):
                yield block, here.to(self.device), (places[here] - start).to(self.device)
            start = stop


def as_saved(saved: SavedBank | Tensor) -> SavedBank:
    """A state of a bank, where 0.1 saved a row for every client."""
    if isinstance(saved, Tensor):
        return {"first": saved[:1], "clients": torch.arange(len(saved)), "rows": saved}
    return saved


def arrived(rows: Tensor, device: torch.device) -> Tensor:
    """Rows on a device: between a GPU and the host by way of pinned memory, which is faster."""
    if rows.is_cuda and device.type == "cpu":
        return torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True).copy_(rows)
    if device.type == "cuda" and rows.device.type == "cpu":
        return rows.pin_memory().to(device, non_blocking=True)
    return rows.to(device)
