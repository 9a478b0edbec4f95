"""Who a client is: what it says is signed by the key of its node."""

import base64
import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from partavg.flower.messages import PART, SCORES, SIGNATURE
from partavg.sentences import cleaned, shown

KEY = "key"
"""What the node's operator calls the key in --node-config."""
_ALGORITHM = ec.ECDSA(hashes.SHA256())


class Signer:
    """The private key of a node, the one by which Flower knows it."""

    def __init__(self, path: Path) -> None:
        try:
            key = load_ssh_private_key(path.read_bytes(), None)
        except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise ValueError(
                f"{KEY} = {str(path)!r} of this node cannot be read ({cleaned(str(error), 100)}): "
                f"name the private key of the SuperNode, as ssh-keygen -t ecdsa -b 384 makes it"
            ) from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError(f"{KEY} = {str(path)!r} of this node is no elliptic-curve key")
        self._key = key
        line = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        self.public = line.decode()

    def sign_(self, content: RecordDict, kind: str, about: Mapping[str, Any]) -> None:
        """Add the signature of a message about something to it."""
        signature = self._key.sign(_signed(content, kind, about), _ALGORITHM)
        content[SIGNATURE] = ConfigRecord({SIGNATURE: signature})


def fingerprint(public: str) -> str:
    """A public key in few letters, as ssh-keygen -l shows it."""
    digest = hashlib.sha256(base64.b64decode(public.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def check_signature(content: RecordDict, kind: str, about: Mapping[str, Any], public: str) -> None:
    """Raise a ValueError if a message was not signed by a key, or changed on its way."""
    record = content.get(SIGNATURE)
    signature = record.get(SIGNATURE) if isinstance(record, ConfigRecord) else None
    if not isinstance(signature, bytes):
        raise ValueError("its message is not signed")
    try:
        _loaded(public).verify(signature, _signed(content, kind, about), _ALGORITHM)
    except (ValueError, InvalidSignature):
        raise ValueError(
            "the signature of its message is not that of its key, or of another message"
        ) from None


def keys_of_clients(path: Path) -> dict[int, tuple[str, ...]]:
    """Which keys each client may have, from a file with lines `number public-key`."""
    found: dict[int, tuple[str, ...]] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"flower.keys = {str(path)!r} cannot be read: {error}") from None
    for number, line in enumerate(lines, 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        client, public = words[0], " ".join(words[1:3])
        try:
            found[int(client)] = (*found.get(int(client), ()), public)
            _loaded(public)
        except ValueError:
            raise ValueError(
                f"line {number} of flower.keys = {str(path)!r} is {shown(line)}: write the number "
                f"of a client and its public key, as 0 ecdsa-sha2-nistp384 AAAA…"
            ) from None
    return found


@lru_cache(maxsize=1024)
def _loaded(public: str) -> ec.EllipticCurvePublicKey:
    try:
        key = load_ssh_public_key(public.encode())
    except UnsupportedAlgorithm as error:
        raise ValueError(str(error)) from None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError("no elliptic-curve key")
    return key


def _signed(content: RecordDict, kind: str, about: Mapping[str, Any]) -> bytes:
    """What a signature is of: all numbers and texts of records, the array, what it is about."""
    record, array = content[kind], content.get(PART)
    digest = hashlib.sha256()
    if isinstance(array, ArrayRecord):
        digest.update(array[PART].data)
    scores = dict(content.get(SCORES) or {})
    told = ["partavg", kind, dict(about), dict(record), scores, digest.hexdigest()]
    return json.dumps(told, sort_keys=True, default=repr).encode()  # clients may send bytes
