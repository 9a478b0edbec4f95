"""Arrays and tensors out of whatever holds numbers, or a sentence why not."""

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from partavg.data.memory import check_room


def tensor_of(value: Any, what: str, dtype: torch.dtype | None = None) -> Tensor:
    """Numbers as a tensor; tensors stay what they are, NumPy's float64 becomes `dtype`."""
    if isinstance(value, Tensor):
        return value.detach()
    return _tensor(_array(value, what), what, dtype)


def _array(value: Any, what: str) -> NDArray[Any]:
    """Numbers as an array: one that is there already, or a list of them."""
    if isinstance(value, str | bytes):
        raise ValueError(f"{what} hold text: make numbers of it, or leave it out")
    if type(value).__module__.partition(".")[0] == "PIL":
        raise ValueError(
            f"{what} hold PIL images: give the dataset a transform that makes tensors of them, "
            f"like torchvision's PILToTensor"
        )
    if isinstance(value, np.ma.MaskedArray):
        raise ValueError(f"{what} are a masked array: fill it in, by filled()")
    try:
        found = np.asarray(value)
    except ValueError as error:
        if "inhomogeneous" not in str(error):
            raise ValueError(f"{what} cannot be read: {error}") from None
        raise _uneven(what) from None
    except Exception as error:
        raise ValueError(f"{what} cannot be read: {error}; give a tensor or an array") from None
    if found.dtype.kind in "US":
        raise ValueError(f"{what} hold text: make numbers of it, or leave it out")
    if found.dtype.kind == "O" and _holds_lists(found):
        raise _uneven(what)
    if found.dtype.kind == "O":
        kind = type(found.flat[0]).__name__ if found.size else "none"
        raise ValueError(f"{what} hold Python objects ({kind}): give numbers")
    return found


def _uneven(what: str) -> ValueError:
    return ValueError(f"{what} differ in shape from sample to sample: pad or crop them to one")


def _holds_lists(found: NDArray[Any]) -> bool:
    return bool(found.size) and isinstance(found.flat[0], list | tuple | np.ndarray | Tensor)


def _tensor(found: NDArray[Any], what: str, dtype: torch.dtype | None) -> Tensor:
    """An array as a tensor, in the same memory where its dtype is known to torch."""
    kind, size = found.dtype.kind, found.dtype.itemsize
    wanted: np.dtype[Any] = found.dtype.newbyteorder("=")
    if kind == "f" and size >= 8:
        double = (dtype or torch.get_default_dtype()) == torch.float64
        wanted = np.dtype(np.float64 if double else np.float32)
    elif kind == "u" and size > 1:
        wanted = np.dtype(np.int64)
        if size == 8 and found.size and found.max() > np.iinfo(np.int64).max:
            raise ValueError(f"{what} hold numbers of 2⁶³ and above: use smaller ones")
    elif kind not in "biufc" or size > 16:
        raise ValueError(f"{what} hold {found.dtype}: give numbers")
    if wanted != found.dtype or any(stride < 0 for stride in found.strides):
        check_room(found.size * wanted.itemsize, what)
        try:
            with np.errstate(over="raise"):
                found = np.array(found, wanted, order="C")
        except FloatingPointError:
            raise ValueError(f"{what} hold numbers too large for {wanted}: scale them") from None
    with warnings.catch_warnings():  # nobody writes to samples, so a file may be read-only
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(found)
