import base64
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from partavg.data.mat import read

# Written by scipy.io.savemat, plain (packed here) and compressed (without the text in front).
PLAIN = zlib.decompress(
    base64.b64decode(
        "eNrzdQzxcXRSMNUzUPB1DNFNy8xJVaA1YIABRk9fPiDlAcRsQMwBxJxQKVYgFgBiJiBmBimFshmBMALK5gEp"
        "ZGPiYOFiZGfmZOUGcdHNY0MyjwPJLJA5lVD7JOAO+mAPZThAKBUHkHkWSOZxoZmHcBdELCcxKTUHbA8LAzuD"
        "DiNIvwGSfhYs+iFuYmEoSa0oEQDyEpOSGQCq8Rwc"
    )
)
COMPRESSED = b" " * 116 + base64.b64decode(
    "AAAAAAAAAAAAAUlNDwAAADgAAAB4nONjYGDwAGI2IOYAYk4GCGAFYgEgZgJiZiBmhLIZgTACyuYBKWRj4mDhYmRn"
    "5mTlBnEBMzsBNQ8AAAAwAAAAeJzjY2Bg8ABiNiDmgNIgwArlMwMxIxgzMlQCaU4glmCAgQ/2UIYDhFJxAABPvQLr"
    "DwAAAC8AAAB4nONjYGCwAGI2IOYAYi4GCGCF8hmBmAlKg8RyEpNSc4A0MwMLAzuDDiMANQ0CsA8AAAArAAAAeJzj"
    "Y2BgMABiNiDmAGIWBghghfIZgZgZTLMwlKRWlAgAeYlJyQwAKNEDZQ=="
)


@pytest.mark.parametrize("content", [PLAIN, COMPRESSED], ids=["plain", "compressed"])
def test_what_scipy_wrote(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.mat"
    path.write_bytes(content)
    arrays = read(path)
    assert sorted(arrays) == ["X", "label", "y"], "the text is passed over"
    assert np.array_equal(arrays["X"], np.arange(12).reshape(2, 3, 1, 2))
    assert arrays["X"].dtype == np.uint8
    assert arrays["y"].tolist() == [[1.0], [2.0], [10.0]]
    assert arrays["label"].tolist() == [[7, 300]]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is not a MATLAB file of version 5"),
        (PLAIN[:126] + b"MI" + PLAIN[128:], "is not a MATLAB file of version 5"),
        (PLAIN[:150], "is damaged"),
        (PLAIN[:132], "is damaged"),
        (PLAIN[:190], "is damaged"),
        (COMPRESSED[:170], "is damaged"),
        (COMPRESSED[:128] + struct.pack("<II", 15, 3) + b"abc", "is damaged"),
    ],
)
def test_damaged_files(content: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "a.mat"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=sentence):
        read(path)
