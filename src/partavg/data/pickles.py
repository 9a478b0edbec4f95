"""Pickles of plain data: arrays, containers, numbers, text; whatever else they name is refused."""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np


def load(content: bytes, path: Path) -> Any:
    """Unpickle the content of a file; `path` is its name for a person."""
    try:
        return _Plain(io.BytesIO(content), encoding="latin1").load()
    except _Refused as refused:
        raise ValueError(
            f"{path} asks for {refused}, which no data needs: it was not loaded; get the original"
        ) from None
    except (pickle.UnpicklingError, EOFError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a whole pickle ({error}): get the original") from None


class _Refused(Exception):
    """A pickle names something that is not admitted."""


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """What a pickle may call."""
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise _Refused(f"{module}.{name}") from None


def _encode(text: str, codec: str) -> bytes:
    """How old protocols write bytes; other codecs could unpack without end."""
    if codec != "latin1":
        raise _Refused(f"the codec {codec}")
    return text.encode("latin1")


_RECONSTRUCT: Any = np.empty(0).__reduce__()[0]
_ADMITTED = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _encode,
}
