"""What travels: one flat array and a few numbers.

Everything received is checked, nothing is unpickled. The array's bytes are the numbers themselves,
little-endian, so that no format has to be trusted.
"""

import math
import reprlib
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from torch import Tensor

from partavg.sentences import cleaned, shown

ORDER, REPLY, PART, SCORES, SIGNATURE = "order", "reply", "part", "scores", "signature"
_KINDS = {PART: ArrayRecord, SCORES: ConfigRecord, SIGNATURE: ConfigRecord}
BESIDE = 1 << 16
"""Bytes that a message may have beside its array."""
_FORMAT = "little-endian"
_LONGEST = 1000  # characters of a text
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Order:
    """What a client is told to do: take what comes along, train, send something back."""

    token: str
    """Of the job's start: a job begun anew has another."""
    turn: int
    """Numbers the server's rounds of messages; a client carries out each once."""
    after: int
    """The turn that a client must have carried out last to use sums; -1 if any will do."""
    bring: str
    """What comes along: "nothing", "sums" of a part or the rest, that these were "noted" and that
    is all, since the client leaves, the "part", all that is common ("whole"), another client's
    "model", or the "averages" to look at only."""
    about: str
    """Sums of a "part" or of the "rest"."""
    part: int
    active_fraction: float
    """Of all clients, those that the sums are of."""
    start: int
    until: int
    """Train from the step after `start` to this one."""
    send: str
    """What goes back: "nothing", the message about the "part" due or the "rest", the "model", or
    "scores" of it on the client's test samples."""
    due: int
    last: bool = False
    """Whether the run is over then."""
    clip: float = 0.0
    """Of a private run: how much a client may say in this cycle."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a client answers."""

    turn: int
    client: int
    samples: int
    lost: bool = False
    """It does not have the state that the order builds on: only a whole model can help."""
    loss: float = math.nan
    """Mean mini-batch loss, where the client shares it."""


@dataclass(frozen=True, slots=True)
class Question:
    """What the server asks a node that it does not know."""

    token: str
    """Of the job's start."""
    nonce: str
    """A number used once: what answers it is no old answer."""


@dataclass(frozen=True, slots=True)
class Hello:
    """How a client introduces itself."""

    client: int
    samples: int
    digest: str
    key: str = ""
    """The public key of its node, if that has one."""
    tests: int = 0
    """The samples that it measures models on; 0 if it does not."""


def pack(tensor: Tensor) -> ArrayRecord:
    """A flat tensor as it travels."""
    flat = tensor.detach().cpu().contiguous()
    data = flat.view(torch.uint8).numpy().tobytes()
    return ArrayRecord({PART: Array(_name(flat.dtype), (len(flat),), _FORMAT, data)})


def write(kind: str, record: Any, array: ArrayRecord | None = None) -> RecordDict:
    """The content of a message: a record, and an array if one goes along."""
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    content = RecordDict({kind: ConfigRecord(values)})
    if array is not None:
        content[PART] = array
    return content


def read(content: RecordDict, kind: str, record: type[T]) -> T:
    """The record of a message; a ValueError says what is wrong with it."""
    found = content.get(kind)
    if not isinstance(found, ConfigRecord):
        raise ValueError(f"the message holds no {kind}")
    _check_names(content, (kind, *_KINDS), "record", f"a message with a {kind}")
    _check_kinds(content)
    known = {field.name: field.type for field in fields(record)}  # type: ignore[arg-type]
    _check_names(found, known, "key", f"its {kind}")
    return record(**{name: _value(found.get(name), of, name, kind) for name, of in known.items()})


def _value(value: Any, expected: Any, name: str, kind: str) -> Any:
    if type(value) is not expected:
        raise ValueError(f"{name} = {shown(value)} of its {kind} is no {expected.__name__}")
    if isinstance(value, str) and len(value) > _LONGEST:
        raise ValueError(f"{name} of its {kind} has {len(value)} characters")
    return value


def _check_names(found: Any, known: Any, what: str, where: str) -> None:
    """Nothing is kept that nobody asked for."""
    extra = [name for name in found if name not in known]
    if extra:
        raise ValueError(
            f"{where} holds {len(extra)} more than it may, as the {what} {shown(extra[0])}"
        )


def _check_kinds(content: RecordDict) -> None:
    """What goes along with a record is what all who read it take it for."""
    for name, kind in _KINDS.items():
        if name in content and not isinstance(content[name], kind):
            told = type(content[name]).__name__
            raise ValueError(f"the record {name!r} of its message is no {kind.__name__}: {told}")
    if PART in content and list(content[PART]) != [PART]:
        raise ValueError("it does not hold exactly one array")


def check_without_array(content: RecordDict) -> None:
    """Raise a ValueError if a message brings numbers that nobody asked for."""
    if PART in content:
        raise ValueError("it holds an array, and none was asked for")


def check_without_scores(content: RecordDict) -> None:
    """Raise a ValueError if a message brings scores that nobody asked for."""
    if SCORES in content:
        raise ValueError("it holds scores, and none were asked for")


def unpack(content: RecordDict, length: int, dtype: torch.dtype) -> Tensor:
    """The one array of a message, if it is as long and of the type that it must be, and finite."""
    found = content.get(PART)
    if not isinstance(found, ArrayRecord) or PART not in found:
        raise ValueError("it does not hold exactly one array")
    array = found[PART]
    if (array.stype, array.dtype) != (_FORMAT, _name(dtype)):
        raise ValueError(
            f"its numbers are {cleaned(array.stype, 40)} {cleaned(array.dtype, 40)}, not {_FORMAT} "
            f"{_name(dtype)}"
        )
    if tuple(array.shape) != (length,):
        shape = reprlib.repr(tuple(array.shape))
        raise ValueError(f"its array has the shape {shape}, not ({length},)")
    if len(array.data) != length * dtype.itemsize:
        raise ValueError(f"its array has {len(array.data)} bytes, not {length * dtype.itemsize}")
    if not length:
        return torch.empty(0, dtype=dtype)
    tensor = torch.frombuffer(bytearray(array.data), dtype=dtype)
    if not bool(tensor.isfinite().all()):
        raise ValueError("its array holds numbers that are not finite")
    return tensor


def size(message: Message) -> int:
    """The bytes of a message as Flower stores and sends it, object by object."""
    if not message.has_content():
        return len(message.deflate())
    total = len(message.deflate()) + len(message.content.deflate())
    for record in message.content.values():
        total += len(record.deflate())
        if isinstance(record, ArrayRecord):
            total += sum(len(array.deflate()) + len(array.data) for array in record.values())
    return total


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
