"""Texts: windows are slices of them, what is tested on is not trained on, bad ones are refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from partavg import Schedule, Simulation, build, iid, load_dataset
from partavg import recipe as recipes
from partavg.config import Component
from partavg.core.pace import Fixed
from partavg.data.convert import as_samples
from partavg.data.dataset import Dataset
from partavg.data.gather import FromDevice, FromHost, moved
from partavg.data.samples import Samples, room_of
from partavg.data.text import Document, documents_of, held_out
from partavg.evaluation import evaluate
from partavg.losses import next_token
from partavg.models import gpt

CPU = torch.device("cpu")
LINES = "".join(f"line {number} of this text\n" for number in range(200)).encode()


def text_of(samples: Samples) -> bytes:
    return bytes(samples.inputs.flatten().tolist())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve documents of three sources."""
    for source, count in (("ann", 2), ("bob", 4), ("cid.txt", 6)):
        pieces = [
            "".join(f"{source} {place} says {line}\n" for line in range(9)).encode()
            for place in range(count)
        ]
        path = tmp_path / "corpus" / source
        if source == "cid.txt":
            path.write_bytes(b"<|endoftext|>\n".join(pieces))
            continue
        path.mkdir(parents=True)
        for place, piece in enumerate(pieces):
            (path / f"{place}.txt").write_bytes(piece)
    return tmp_path


def load(root: Path, **options: Any) -> Dataset:
    return load_dataset("text", root, **{"context": 16, **options})


def test_windows_are_slices_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(LINES)
    data = load(tmp_path, files="a.txt", test=0.1)
    kept = len(LINES) - len(LINES) // 10
    train, test = text_of(data.train), text_of(data.test)
    assert LINES.startswith(train)
    assert abs(len(train) - kept) < 64
    assert test in LINES
    assert LINES.index(test) >= len(train), "the end of the only document"
    assert torch.equal(data.train.inputs[:, 1:], data.train.targets[:, :-1])
    assert torch.equal(data.train.inputs[1:, 0], data.train.targets[:-1, -1])
    assert (data.shape, data.classes, data.bytes_per_token) == ((16,), 256, 1.0)
    closer = load(tmp_path, files="a.txt", test=0.1, stride=5)
    assert text_of(closer.train.some(slice(3, 4))) == LINES[15:31]


def test_documents_are_trained_on_or_tested_on(folder: Path) -> None:
    data = load(folder, files="corpus", test=0.3, context=8)
    train, test = (set(text_of(side).split(b"\0")[1:-1]) for side in (data.train, data.test))
    assert len(train) + len(test) >= 8
    assert not train & test
    assert data.writers is not None
    assert data.writers.unique().tolist() == [0, 1, 2]
    for source, name in enumerate((b"ann", b"bob", b"cid")):
        rows = data.train.inputs[data.writers == source]
        assert name in bytes(rows.flatten().tolist())
    other = load(folder, files=("corpus",), test=0.3, context=8, seed=1)
    assert text_of(other.test) != text_of(data.test)


def test_files_to_test_on_can_be_named(folder: Path) -> None:
    data = load(folder, files=("corpus/ann", "corpus/cid.txt"), test_files="corpus/bob")
    assert b"bob" not in text_of(data.train)
    assert text_of(data.test).startswith(b"bob 0 says 0\n")


def test_what_was_encoded_is_kept_until_a_file_changes(folder: Path) -> None:
    first = load(folder, files="corpus")
    (kept,) = (folder / ".partavg").iterdir()
    again = load(folder, files="corpus")
    assert torch.equal(first.train.inputs, again.train.inputs)
    (folder / "corpus" / "cid.txt").write_bytes(LINES)
    assert b"this text" in text_of(load(folder, files="corpus").train)
    assert kept.exists()


def test_a_text_takes_its_own_room_only(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(LINES)
    data = load(tmp_path, files="a.txt", stride=1)
    assert data.train.bytes <= len(LINES)
    assert sum(tensor.nbytes for tensor in data.train.tensors) > 20 * len(LINES)
    away = moved(data.train, torch.device("meta"))
    assert room_of(away.tensors) == data.train.bytes
    assert away.inputs.stride() == data.train.inputs.stride()
    here = moved(data.train, CPU)
    assert all(map(torch.equal, here.tensors, data.train.tensors))


def test_tensors_that_share_nothing_are_moved_as_they_are() -> None:
    both = torch.arange(12.0)
    apart = Samples(both[:6], both[6:])
    assert apart.bytes == 48
    assert torch.equal(moved(apart, CPU).targets, both[6:])
    same = Samples(both, both)
    assert same.bytes == 48


@pytest.mark.parametrize("header", [False, True])
def test_token_files(tmp_path: Path, header: bool) -> None:
    tokens = (np.arange(3000) * 37 % 50257).astype("<u2")
    head = np.zeros(256, "<i4")
    head[:3] = 20240520, 1, len(tokens)
    (tmp_path / "train.bin").write_bytes((head.tobytes() if header else b"") + tokens.tobytes())
    data = load(tmp_path, files="train.bin", words=50257, test=0.1)
    assert data.train.inputs.dtype == torch.uint16
    assert data.train.inputs.flatten().tolist() == tokens[: data.train.inputs.numel()].tolist()
    assert data.bytes_per_token is None
    assert not (tmp_path / ".partavg").exists(), "it is mapped as it is"
    (tmp_path / "val.bin").write_bytes(tokens[::-1].tobytes())
    named = load(tmp_path, files="train.bin", test_files="val.bin", words=50257)
    assert named.test.inputs[0].tolist() == tokens[::-1][:16].tolist()
    several = load(tmp_path, files=("train.bin", "val.bin"), words=50257)
    assert several.train.size + several.test.size > 370

    def drawn(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor([[step, 2], [0, 5]]), torch.zeros(2).long()

    near, far = FromDevice(data.train, CPU), FromHost(data.train, CPU)
    for step in (1, 2, 9):
        (ours, _), (theirs, _) = near(step, drawn), far(step, drawn)
        assert ours.inputs.tolist() == theirs.inputs.tolist()
        assert ours.inputs[0, 0].tolist() == tokens[16 * step : 16 * step + 16].tolist()


def test_a_tokenizer_of_hugging_face(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<unk>", "<|endoftext|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
    )  # fmt: skip
    made.train_from_iterator([LINES.decode()], trainer)
    made.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "a.txt").write_bytes(LINES)
    (tmp_path / "b.txt").write_bytes(LINES[:600])
    data = load(tmp_path, files="a.txt", test_files="b.txt", tokenizer="tokenizer.json")
    assert data.classes == made.get_vocab_size()
    assert data.train.inputs.dtype == torch.uint16
    text = made.decode(data.train.inputs.flatten().tolist())
    assert LINES.decode().startswith(text)
    ids = [*made.encode(LINES[:600].decode()).ids, made.token_to_id("<|endoftext|>")]
    assert data.bytes_per_token == pytest.approx(601 / len(ids))


@pytest.mark.parametrize(
    ("content", "options", "sentence"),
    [
        (b"", {}, "has nothing but white space: give a text"),
        (b" \n\n", {}, "has nothing but white space: give a text"),
        (b"good \xff bad", {}, "is not UTF-8 at byte 5: save it as UTF-8"),
        (b"short", {}, "a window of context 16 takes 17: give more text"),
        (LINES, {"context": 0}, "context 0"),
        (LINES, {"test": 0.0}, "is outside .0, 1.: it is the share"),
        (LINES, {"test": 1.5}, "is outside .0, 1.: it is the share"),
        (LINES, {"test": 0.001, "context": 64}, "the test text of bad.txt has"),
        (LINES, {"words": 100}, "words 100 is below the 256 of tokenizer 'bytes'"),
        (LINES, {"files": "nowhere"}, "is not there: name files or folders"),
        (LINES, {"files": ()}, "data.files is empty"),
        (LINES, {"tokenizer": "nothing"}, "is neither bytes nor a file"),
        (LINES, {"tokenizer": "bad.txt"}, "no file of a tokenizer"),
    ],
)
def test_bad_text_gets_a_sentence(
    tmp_path: Path, content: bytes, options: dict[str, Any], sentence: str
) -> None:
    (tmp_path / "bad.txt").write_bytes(content)
    if options.get("tokenizer") == "bad.txt":
        pytest.importorskip("tokenizers")
    with pytest.raises(ValueError, match=sentence):
        load(tmp_path, **{"files": "bad.txt", **options})


@pytest.mark.parametrize(
    ("content", "options", "sentence"),
    [
        (b"odd", {}, "has 3 bytes, and tokens of 2 bytes"),
        (b"", {}, "has 0 bytes"),
        (b"\1\1" * 99, {"words": 0}, "holds tokens: set data.words"),
        (b"\1\1" * 99, {"words": 257}, "has the token 257, and the vocabulary ends at 256"),
        (np.array([20240520, 2, 9] + [0] * 300, "<i4").tobytes(), {}, "header of version 2"),
        (np.array([20240520, 1, 9] + [0] * 300, "<i4").tobytes(), {}, "its header says 9"),
    ],
)
def test_bad_tokens_get_a_sentence(
    tmp_path: Path, content: bytes, options: dict[str, Any], sentence: str
) -> None:
    (tmp_path / "bad.bin").write_bytes(content)
    with pytest.raises(ValueError, match=sentence):
        load(tmp_path, **{"files": "bad.bin", "words": 50257, **options})
    (tmp_path / "a.txt").write_bytes(LINES)
    with pytest.raises(ValueError, match="use one kind"):
        load(tmp_path, files=("bad.bin", "a.txt"), words=50257)


@given(
    st.lists(st.text(min_size=1, max_size=60).map(str.encode), min_size=1, max_size=8),
    st.floats(0.01, 0.99),
    st.integers(0, 9),
)
def test_nothing_is_lost_or_taken_twice(texts: list[bytes], share: float, seed: int) -> None:
    documents = [Document("a", text) for text in texts]
    train, test = held_out(documents, share, seed)
    assert test
    assert sum(len(one.text) for one in (*train, *test)) == sum(map(len, texts))
    for document in (*train, *test):
        assert isinstance(document.text, bytes)
        document.text.decode()


@given(st.binary(max_size=80), st.integers(1, 9))
def test_any_bytes_are_read_or_refused_with_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, context: int
) -> None:
    root = tmp_path_factory.mktemp("fuzz")
    (root / "a.txt").write_bytes(content)
    try:
        data = load(root, files="a.txt", test=0.4, context=context)
    except ValueError as error:
        said = str(error)
    else:
        said = "read: "
        assert text_of(data.train) in b"".join(d.text + b"\0" for d in documents_of("", content))
    assert ": " in said


def test_the_shipped_books_are_what_they_say() -> None:
    data = load_dataset("king_james", "nowhere", context=64)
    assert text_of(data.test).startswith(b"In the beginning God created the heaven and the earth.")
    assert data.writers is not None
    assert data.writers.bincount().tolist() == [2834, 3222, 1167, 413, 1944, 1483, 785, 968]
    assert data.train.bytes + data.test.bytes == pytest.approx(864_000, rel=1e-3)
    assert data.train.inputs.max() < 128


def test_reviews_are_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partavg.data.imdb.REVIEWS", 1)
    for part in ("train", "test"):
        for label in ("neg", "pos"):
            path = tmp_path / "aclImdb" / part / label
            path.mkdir(parents=True)
            text = f"A {label} film to {part} on, <br /> no more, no less."
            (path / f"0_{1 if label == 'neg' else 9}.txt").write_text(text)
    data = load_dataset("imdb_text", tmp_path, context=8)
    assert text_of(data.train).startswith(b"A neg film to train on, <br />")
    assert data.writers is not None
    assert data.writers.unique().tolist() == [0, 1]  # stars
    assert b"test" not in text_of(data.train)
    with pytest.raises(ValueError, match=r"lacks aclImdb/train/neg: run .* there$"):
        load_dataset("imdb_text", tmp_path / "nowhere")


def small(tmp_path: Path, *more: str) -> Any:
    (tmp_path / "a.txt").write_bytes(LINES)
    settings = [
        "data.name=text", f"data.files={json.dumps(str(tmp_path / 'a.txt'))}", "data.context=16",
        "split.name=iid", "training.workers=2", "training.batch=2", "averaging.interval=2",
        "model.layers=1", "model.width=8", "model.heads=1", "training.steps=4",
        "engine.name=looped", *more,
    ]  # fmt: skip
    config = recipes.load("lm", settings).config()
    return config, load(tmp_path, files=str(tmp_path / "a.txt"))


@pytest.mark.parametrize("store", ["device", "host"])
def test_training_goes_on_exactly_where_it_was(tmp_path: Path, store: str) -> None:
    config, data = small(tmp_path, f"engine.store={store}")
    build.check(config, data)
    whole, first, second = (build.simulation(config, data, CPU) for _ in range(3))
    for _ in whole.train(until=4):
        pass
    for _ in first.train(until=2):
        pass
    second.load(first.state())
    for _ in second.train(until=4):
        pass
    assert torch.equal(whole.workers.params, second.workers.params)
    assert whole.evaluate(data.test).loss == second.evaluate(data.test).loss


@pytest.mark.parametrize(
    ("changed", "name", "sentence"),
    [
        ("model", "mlp", "cannot say the next token of text: use gpt"),
        ("loss", "cross_entropy", "is not for texts, and text is one: use next_token"),
        ("data", "fashion_subset", "says the next token of a text, and fashion_subset is none"),
    ],
)
def test_what_does_not_go_with_texts(
    tmp_path: Path, changed: str, name: str, sentence: str
) -> None:
    config, data = small(tmp_path, "split.name=iid")
    given: dict[str, Any] = {changed: Component(name)}
    other = load_dataset("fashion_subset") if changed == "data" else data
    with pytest.raises(ValueError, match=sentence):
        build.check(replace(config, **given), other)


def test_crops_are_for_images(tmp_path: Path) -> None:
    config, data = small(tmp_path, "images.crop=2")
    with pytest.raises(ValueError, match="are for images, and text has none"):
        build.check(config, data)


def test_an_even_split_of_windows(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(LINES)
    data = load(tmp_path, files="a.txt")
    assert [len(own) for own in iid(data.train.targets, 3, 0)] == [85, 85, 84]


def test_texts_are_for_simulations_made_in_python_too() -> None:
    """Tokens are kept as bytes, and embeddings want int64."""
    data = load_dataset("king_james", context=16)
    assert data.train.inputs.dtype == torch.uint8
    torch.manual_seed(0)
    made = Simulation(
        gpt((16,), data.classes, size="tiny"), next_token, data.train,
        iid(data.train.classes, 2, 0), lr=0.01, batch=2, schedule=Schedule(2),
    )  # fmt: skip
    for _ in made.train(until=2):
        pass
    few = data.test.some(slice(20))
    with torch.no_grad():
        expected = next_token(made.consensus()(few.inputs.long()), few.targets.long())
    assert made.evaluate(few).loss == pytest.approx(float(expected), rel=1e-5)
    assert evaluate(made.consensus(), next_token, few).loss == made.evaluate(few).loss


def test_the_same_files_under_other_names_have_other_sources(tmp_path: Path) -> None:
    for name in ("a/1.txt", "a/2.txt", "b/1.txt", "b/2.txt"):
        path = tmp_path / "corpus" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(LINES)
    each = tuple(f"corpus/{name}" for name in ("a/1.txt", "a/2.txt", "b/1.txt", "b/2.txt"))
    for files, sources in (("corpus", 2), (each, 4), ("corpus", 2)):
        data = load_dataset("text", tmp_path, files=files, context=16)
        assert data.writers is not None
        assert len(data.writers.unique()) == sources


def test_what_is_a_text() -> None:
    words = torch.randint(0, 9, (9, 8))
    assert Samples(words[:, :-1], words[:, 1:]).tokens == 7
    ignored = words[:, 1:].masked_fill(words[:, 1:] > 5, -100)
    assert Samples(words[:, :-1], ignored).tokens == 7
    tags = torch.randint(0, 3, (9, 7))
    assert Samples(words[:, :-1], tags).tokens is None
    large = torch.tensor([[40_000, 50_000, 60_000]] * 3).to(torch.uint16)
    assert Samples(large[:, :-1], large[:, 1:]).tokens == 2


def test_transforms_see_the_same_in_training_and_evaluation() -> None:
    seen = set()

    def transform(inputs: Any, keys: Any) -> Any:
        seen.add(inputs.dtype)
        return inputs

    data = load_dataset("king_james", context=16)
    made = Simulation(
        gpt((16,), data.classes, size="tiny"), next_token, data.train,
        iid(data.train.classes, 2, 0), lr=0.01, batch=2, schedule=Schedule(2), transform=transform,
    )  # fmt: skip
    for _ in made.train(until=2):
        pass
    made.evaluate(data.test.some(slice(4)))
    assert seen == {torch.int64}


def test_tokens_of_workers_that_rest_are_not_seen() -> None:
    data = load_dataset("king_james", context=16)
    made = Simulation(
        gpt((16,), data.classes, size="tiny"), next_token, data.train,
        iid(data.train.classes, 2, 0), lr=0.01, batch=2, schedule=Schedule(4),
        pace=Fixed(4, (4, 1), 2),
    )  # fmt: skip
    for _ in made.train(until=6):
        pass
    assert made.steps_taken() == int(made.workers.taken.sum()) == 6 + 1
    for _ in made.train(until=8):
        pass
    assert made.steps_taken() == 8 + 2


@pytest.mark.parametrize(
    "options",
    [
        {"files": ("a.txt", "a.txt")},
        {"files": ("b", "b/c.txt")},
        {"files": "a.txt", "test_files": "a.txt"},
        {"files": "a.txt", "test_files": "b/../a.txt"},
    ],
)
def test_nothing_to_test_on_is_trained_on(tmp_path: Path, options: dict[str, Any]) -> None:
    for name in ("a.txt", "b/c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(LINES)
    with pytest.raises(ValueError, match=r"have .*\.txt twice: name it once"):
        load_dataset("text", tmp_path, context=16, **options)


def test_where_files_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, here, home = (tmp_path / name for name in ("root", "here", "home"))
    for folder in (root, here, home):
        folder.mkdir()
        (folder / f"{folder.name}.txt").write_bytes(LINES)
    (here / "root.txt").write_bytes(b"not this one")
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(home))
    for files in ("root.txt", "here.txt", "~/home.txt", root / "root.txt", [here / "here.txt"]):
        data = load_dataset("text", root, files=files, context=16)
        assert text_of(data.train).startswith(b"line 0 of this text")


def test_a_tokenizer_that_does_not_know_all(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    (tmp_path / "a.txt").write_bytes(LINES)
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"line": 0, "of": 7}, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "few.json"))
    options = {"files": "a.txt", "context": 16}
    with pytest.raises(ValueError, match=r"few\.json cannot make tokens of the text that begins"):
        load_dataset("text", tmp_path, tokenizer="few.json", **options)
    made.add_tokens([f"{number}" for number in range(400)] + ["this", "text"])
    made.save(str(tmp_path / "more.json"))
    data = load_dataset("text", tmp_path, tokenizer=tmp_path / "more.json", **options)
    assert data.classes is not None
    assert int(data.train.inputs.long().max()) < data.classes, "numbers of tokens have gaps"


def test_a_whole_dataset_is_no_samples() -> None:
    with pytest.raises(ValueError, match=r"whole dataset: give its samples, data\.train or data"):
        as_samples(load_dataset("king_james"))
