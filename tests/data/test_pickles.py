import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partavg.data.pickles import load

NAME = Path("batch")


def plain(value: object, protocol: int) -> Any:
    return load(pickle.dumps(value, protocol), NAME)


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_plain_data_comes_back(protocol: int) -> None:
    array = np.arange(12, dtype=np.uint8).reshape(3, 4)
    value = {"data": array, "labels": [1, 2], "text": "é", "bytes": b"\xff\x00", "none": None}
    back = plain(value, protocol)
    assert np.array_equal(back.pop("data"), array)
    value.pop("data")
    assert back == value
    objects = np.empty(2, object)
    objects[:] = [[1], [2, 3]]
    assert plain(objects, protocol).tolist() == [[1], [2, 3]]


def test_a_pickle_of_python_2() -> None:
    """As CIFAR's batches are: strings of bytes, numpy.core."""
    content = (
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\n"
        b"q\x04K\x00\x85U\x01b\x87Rq\x05(K\x01K\x02\x85cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87R"
        b"q\x07(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x02\x07\xfftbU\x06"
        b"labelsq\x08]q\tK\x03au."
    )
    batch = load(content, NAME)
    assert batch["data"].tolist() == [7, 255]
    assert batch["labels"] == [3]


class Evil:
    def __init__(self, call: object, *arguments: object) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call, self.arguments


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("call", [os.system, eval, np.fromfile, np.load])
def test_whatever_else_is_refused(call: object, protocol: int, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    argument = f"touch {trace}" if call is os.system else f"open({str(trace)!r}, 'w')"
    with pytest.raises(ValueError, match=r"^batch asks for .*, which no data needs: it was not"):
        plain({"data": Evil(call, argument)}, protocol)
    assert not trace.exists()


def test_other_codecs_are_refused() -> None:
    from codecs import encode

    with pytest.raises(ValueError, match="asks for the codec zlib"):
        plain(Evil(encode, "text", "zlib"), 2)


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x80\x02}q\x01(U\x04da", b"\x80\x02."])
def test_damaged_pickles(content: bytes) -> None:
    with pytest.raises(ValueError, match="batch is not a whole pickle"):
        load(content, NAME)
