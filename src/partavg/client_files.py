"""What clients keep, in files beside checkpoints: each has what changed since the one before."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from partavg import checkpoint
from partavg.core.bank import SavedBank

_MOST = 100  # files, each of which has to be looked at when a run goes on

Banks = dict[str, SavedBank]


class ClientFiles:
    """Writes and reads the rows of clients, and knows in which files they are.

    Those that changed again and again would fill more and more files: once these have as many rows
    as the first, which has all, another one begins.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names: list[str] = []
        self._rows: list[int] = []

    @property
    def begin_anew(self) -> bool:
        """Whether the next file is to have the rows of all clients, changed or not."""
        first, later = sum(self._rows[:1]), sum(self._rows[1:])
        return not self._names or later > first or len(self._names) >= _MOST

    def save(self, banks: Banks) -> tuple[Banks, list[str]]:
        """Write rows; what is left for the checkpoint itself, and the files that it needs."""
        if self.begin_anew:
            self._names, self._rows = [], []
        count = sum(len(bank["clients"]) for bank in banks.values())
        if count:
            self._names.append(checkpoint.save_clients(self._folder, banks))
            self._rows.append(count)
        nobody = torch.arange(0)
        left = {
            name: {**bank, "clients": nobody, "rows": bank["rows"][:0].clone()}
            for name, bank in banks.items()
        }
        return left, list(self._names)

    def load(self, banks: Banks, names: Sequence[str]) -> Banks:
        """What clients keep, of a checkpoint and the files that it needs."""
        found = [_read(self._folder / name) for name in names]
        self._names = list(names)
        self._rows = [sum(len(bank["clients"]) for bank in banks.values()) for banks in found]
        return {
            name: _merged(bank, [banks[name] for banks in found]) if found else bank
            for name, bank in banks.items()
        }


def _read(path: Path) -> Any:
    return torch.load(path, weights_only=True, mmap=True)


def _merged(left: SavedBank, pieces: Sequence[SavedBank]) -> SavedBank:
    """The newest row of each client."""
    clients = torch.unique(torch.cat([piece["clients"] for piece in pieces]))
    rows = left["rows"].new_empty(len(clients), *left["rows"].shape[1:])
    for piece in pieces:
        rows[torch.searchsorted(clients, piece["clients"])] = piece["rows"]
    return {**left, "clients": clients, "rows": rows}
