"""What tells samples from others: a digest of their numbers, or of enough of them."""

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor

_HASHED = 1 << 24  # bytes of a large tensor that are looked at, spread over all of it


def fingerprint(tensors: Iterable[Tensor]) -> str:
    """A digest of tensors: of large ones, of rows at equal distances."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {list(tensor.shape)}".encode())
        rows = max(1, len(tensor)) if tensor.ndim else 1
        most = max(1, _HASHED * rows // max(1, tensor.nbytes))
        some = tensor[torch.arange(most) * rows // most] if most < rows else tensor
        whole = some.detach().cpu().contiguous()
        digest.update(whole.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def short_fingerprint(tensors: Iterable[Tensor]) -> str:
    """As many digits of it as tell apart what changed by chance, and as a page has room for."""
    return fingerprint(tensors)[:16]
