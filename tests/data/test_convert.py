"""Samples out of whatever holds some: the same numbers, or one sentence."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import data as torch_data

from partavg import Dataset, Samples, Schedule, Simulation, as_samples, evaluate, iid
from partavg.data import memory, rows

X = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(30) % 3
IDS, MASK = torch.arange(150).view(30, 5) % 9, torch.arange(150).view(30, 5) % 2 == 0


class Items(torch_data.Dataset[Any]):
    """A map-style dataset of whatever a function gives."""

    def __init__(self, item: Callable[[int], Any], count: int = 30) -> None:
        self.item, self.count = item, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, place: int) -> Any:
        if place >= self.count:
            raise IndexError(place)
        return self.item(place)


class Plain:
    """The same without torch's class."""

    def __len__(self) -> int:
        return 30

    def __getitem__(self, place: int) -> Any:
        return X[place].numpy(), int(Y[place])


PAIRS = Items(lambda i: (X[i], int(Y[i])))
TENSORS = torch_data.TensorDataset(X, Y)
TABLE = datasets.Dataset.from_dict({"x": X.tolist(), "label": Y.tolist()})

FORMS: dict[str, Any] = {
    "tensors": (X, Y),
    "a list": [X, Y],
    "samples": Samples(X, Y),
    "arrays": (X.numpy(), Y.numpy()),
    "samples of arrays": Samples(X.numpy(), Y.numpy()),
    "doubles": (X.double().numpy(), Y.numpy()),
    "other bytes": (X.numpy().astype(">f4"), Y.numpy().astype(">i8")),
    "backwards": (X.numpy()[::-1].copy()[::-1], Y.numpy()),
    "short labels": (X, Y.to(torch.int32)),
    "unsigned labels": (X, Y.numpy().astype(np.uint16)),
    "lists": (X.tolist(), Y.tolist()),
    "columns": {"x": X, "label": Y},
    "pairs": PAIRS,
    "pairs as lists": Items(lambda i: [X[i], Y[i]]),
    "dicts": Items(lambda i: {"x": X[i].numpy(), "label": int(Y[i])}),
    "a list of items": [(X[i], Y[i]) for i in range(30)],
    "not torch's": Plain(),
    "TensorDataset": TENSORS,
    "Subset": torch_data.Subset(torch_data.ConcatDataset([PAIRS, PAIRS]), range(30)),
    "Subset of tensors": torch_data.Subset(
        torch_data.TensorDataset(X.flip(0), Y.flip(0)), range(29, -1, -1)
    ),
    "DataLoader": torch_data.DataLoader(PAIRS, batch_size=4, shuffle=True),
    "collated": torch_data.DataLoader(
        Items(lambda i: i), 7, collate_fn=lambda some: (X[some], Y[some])
    ),
    "Hugging Face": TABLE,
    "Hugging Face, in NumPy": TABLE.with_format("numpy"),
    "Hugging Face, loaded": torch_data.DataLoader(TABLE.with_format("torch"), batch_size=4),
}


@pytest.mark.parametrize("name", FORMS)
def test_all_forms_are_the_same_samples(name: str) -> None:
    found = as_samples(FORMS[name])
    assert torch.equal(found.inputs, X)
    assert found.inputs.dtype == torch.float32
    assert torch.equal(found.targets, Y)
    assert found.targets.dtype == torch.int64
    assert as_samples(found).inputs is found.inputs, "what was made is taken as it is"


@pytest.mark.parametrize("name", FORMS)
def test_all_forms_are_trained_and_evaluated_alike(name: str) -> None:
    def trained(samples: Any) -> Simulation:
        torch.manual_seed(0)
        simulation = Simulation(
            nn.Linear(4, 3), F.cross_entropy, samples, iid(Y, 3, 0),
            schedule=Schedule.partial(2), lr=0.1, batch=4, engine="looped",
        )  # fmt: skip
        list(simulation.train(4))
        return simulation

    ours, theirs = trained(FORMS[name]), trained((X, Y))
    assert torch.equal(ours.workers.params, theirs.workers.params)
    assert ours.evaluate(FORMS[name]) == theirs.evaluate((X, Y))
    assert ours.evaluate_worker(1, FORMS[name]) == theirs.evaluate_worker(1, (X, Y))
    assert ours.evaluate_workers(FORMS[name]) == theirs.evaluate_workers((X, Y))
    module = theirs.consensus()
    assert evaluate(module, F.cross_entropy, FORMS[name]) == theirs.evaluate((X, Y))


def test_processes_of_a_loader_read() -> None:
    found = as_samples(torch_data.DataLoader(PAIRS, batch_size=4, num_workers=1))
    assert torch.equal(found.inputs, X)
    assert torch.equal(found.targets, Y)


SEVERAL: dict[str, Any] = {
    "three tensors": (IDS, MASK, Y),
    "a tuple": ((IDS, MASK), Y),
    "a tuple of arrays": ((IDS.numpy(), MASK.numpy()), Y.numpy()),
    "TensorDataset": torch_data.TensorDataset(IDS, MASK, Y),
    "items": Items(lambda i: (IDS[i], MASK[i].numpy(), int(Y[i]))),
    "items with a tuple": Items(lambda i: ((IDS[i], MASK[i]), Y[i])),
}
NAMED: dict[str, Any] = {
    "a dict": ({"ids": IDS, "mask": MASK}, Y),
    "columns": {"ids": IDS, "mask": MASK, "labels": Y},
    "inputs and targets": {"inputs": {"ids": IDS, "mask": MASK}, "targets": Y},
    "items": Items(lambda i: {"ids": IDS[i], "mask": MASK[i], "target": Y[i]}),
    "items with a dict": Items(lambda i: ({"ids": IDS[i].tolist(), "mask": MASK[i]}, Y[i])),
    "Hugging Face": datasets.Dataset.from_dict(
        {"ids": IDS.tolist(), "mask": MASK.tolist(), "label": Y.tolist()}
    ),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_several_inputs_are_a_tuple(name: str) -> None:
    found = as_samples(SEVERAL[name])
    assert isinstance(found.inputs, tuple)
    assert all(map(torch.equal, found.inputs, (IDS, MASK)))
    assert torch.equal(found.targets, Y)


@pytest.mark.parametrize("name", NAMED)
def test_several_inputs_by_name_are_a_dict(name: str) -> None:
    found = as_samples(NAMED[name])
    assert list(found.inputs) == ["ids", "mask"]
    assert torch.equal(found.inputs["ids"], IDS)
    assert torch.equal(found.inputs["mask"].bool(), MASK)
    assert torch.equal(found.targets, Y)


def test_columns_are_chosen_by_name_or_place() -> None:
    columns = {"ids": IDS, "mask": MASK, "text": ["no"] * 30, "score": X[:, 0], "label": Y}
    table = datasets.Dataset.from_dict(
        {key: v.tolist() if isinstance(v, Tensor) else v for key, v in columns.items()}
    )
    for holds in (columns, Items(lambda i: {key: v[i] for key, v in columns.items()}), table):
        one = as_samples(holds, inputs="ids")
        assert torch.equal(one.inputs, IDS)
        assert torch.equal(one.targets, Y)
        two = as_samples(holds, inputs=["mask"], targets=("score", "label"))
        assert list(two.inputs) == ["mask"]
        assert list(two.targets) == ["score", "label"]
        assert torch.allclose(two.targets["score"], X[:, 0])
    first = as_samples((Y, X, IDS), inputs=1, targets=0)
    assert torch.equal(first.inputs, X)
    assert torch.equal(first.targets, Y)
    assert as_samples((IDS, X, Y), inputs=(1, 0)).inputs[0] is not None


class Reader(nn.Module):
    """Reads words where a mask is set; two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
        seen = (self.words(ids) * mask[..., None]).sum(1)
        return {"class": self.out(seen), "sum": seen.sum(1)}


def both(outputs: dict[str, Tensor], targets: dict[str, Tensor]) -> Tensor:
    wrong = F.cross_entropy(outputs["class"], targets["label"])
    return wrong + F.mse_loss(outputs["sum"], targets["score"])


@pytest.mark.parametrize("engine", ["looped", "vmapped", "auto"])
@pytest.mark.parametrize("store", ["device", "host"])
def test_several_inputs_and_targets_train(engine: str, store: Any) -> None:
    targets = {"label": Y, "score": X[:, 0]}
    losses = []
    for inputs in ((IDS, MASK), {"mask": MASK, "ids": IDS}):
        torch.manual_seed(0)
        simulation = Simulation(
            Reader(), both, (inputs, targets), iid(Y, 3, 0), store=store,
            schedule=Schedule.partial(2), lr=0.1, batch=4, engine=engine,
        )  # fmt: skip
        list(simulation.train(4))
        losses.append(simulation.evaluate((inputs, targets)).loss)
    # auto may take another engine each time, which rounds otherwise.
    assert losses[0] == (pytest.approx(losses[1], rel=1e-5) if engine == "auto" else losses[1])


def test_a_file_is_mapped_and_not_copied(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X.numpy())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    found = as_samples((mapped, Y))
    assert found.inputs.data_ptr() == mapped.ctypes.data
    simulation = Simulation(
        nn.Linear(4, 3), F.cross_entropy, found, iid(Y, 3, 0), store="host",
        schedule=Schedule.partial(2), lr=0.1,
    )  # fmt: skip
    assert simulation.samples.inputs.data_ptr() == mapped.ctypes.data
    assert as_samples((X.numpy(), Y.numpy())).targets.data_ptr() == Y.data_ptr()


def test_doubles_follow_the_model() -> None:
    x, y = X.double().numpy(), X[:, :1].double().numpy()
    assert as_samples((x, y)).targets.dtype == torch.float32
    assert as_samples((x, y), dtype=torch.float64).inputs.dtype == torch.float64
    assert as_samples((X.double(), y)).inputs.dtype == torch.float64, "a tensor stays what it is"
    for model in (nn.Linear(4, 1), nn.Linear(4, 1).double()):
        simulation = Simulation(
            model, F.mse_loss, (x, y), iid(Y, 3, 0), schedule=Schedule.partial(2), lr=0.1
        )
        assert simulation.samples.inputs.dtype == model.weight.dtype
        simulation.evaluate((x, y))
    numbers = Items(lambda i: (float(X[i, 0]), i))
    assert as_samples(numbers).inputs.dtype == torch.float32


def test_bytes_stay_bytes() -> None:
    images = np.zeros((30, 1, 4, 4), np.uint8)
    assert as_samples((images, Y)).inputs.dtype == torch.uint8
    with pytest.raises(ValueError, match="give transform=partavg"):
        Simulation(
            nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), F.cross_entropy, (images, Y),
            iid(Y, 3, 0), schedule=Schedule.partial(2), lr=0.1,
        )  # fmt: skip


def ragged(place: int) -> Any:
    return torch.zeros(1 + place), 0


class Stream(torch_data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield X[0], 0


BAD: list[tuple[Any, str]] = [
    ((X[:-1], Y), r"inputs \[29, 4\] and targets \[30\] differ in length"),
    (((IDS, MASK[:3]), Y), r"inputs \(\[30, 5\], \[3, 5\]\) and targets \[30\] differ in length"),
    ((X[:0], Y[:0]), "there are no samples: give at least one"),
    ((X[0, 0], Y), "the inputs are a single number"),
    ((torch.full((30, 2), float("nan")), Y), "some inputs are NaN: fill them in"),
    ((np.array([[1, 2], [3]], object), [0, 1]), "the inputs differ in shape from sample to sample"),
    (([[1, 2], [3]], [0, 1]), "the inputs differ in shape from sample to sample: pad or crop"),
    ((np.array([{}, {}]), [0, 1]), r"the inputs hold Python objects \(dict\)"),
    ((["a", "b"], [0, 1]), "the inputs hold text"),
    ((X, ["a"] * 30), "the targets hold text"),
    ((np.zeros(30, "M8[s]"), Y), "the inputs hold datetime64"),
    ((np.array([2**64 - 1] * 30, np.uint64), Y), "the inputs hold numbers of 2⁶³ and above"),
    ((np.full((30, 1), 1e300), Y), "the inputs hold numbers too large for float32"),
    ((np.ma.masked_array(np.ones(30)), Y), "the inputs are a masked array"),
    (([X[0], X[1]], [0, 1]), "the inputs are a list of tensors: use a tuple for several inputs"),
    ((((X, X), X), Y), "lie in tuples within tuples"),
    ((X.to_sparse(), Y), "the inputs are torch.sparse_coo"),
    (X, "samples cannot be a Tensor: give"),
    (X.numpy(), "samples cannot be a ndarray"),
    ("cifar10", "samples cannot be a str"),
    (None, "samples cannot be a NoneType"),
    (7, "samples cannot be a int"),
    ((X,), "samples of 1 parts"),
    ([], "samples of 0 parts"),
    ({}, "there are no columns"),
    ({"x": X}, "which of the columns 'x' is the target"),
    ({"label": Y}, "the only column is 'label'"),
    ({"x": X, "label": Y, "target": Y}, "which of the columns 'x', 'label', 'target'"),
    (Items(ragged), r"part 0 in sample 1 are \[2\], those in sample 0 \[1\]: pad or crop"),
    (Items(lambda i: (X[i], 0.5 if i else 0)), "part 1 in sample 1 are torch.float32, those in"),
    (Items(lambda i: ("word", 0)), "part 0 in sample 0 hold text"),
    (Items(lambda i: X[i]), "an item of the dataset is Tensor: it must be a tuple"),
    (Items(lambda i: {"x": X[i]} if i else {"x": X[i], "label": 0}), "sample 1 lacks .*'label'"),
    (Items(lambda i: ((X[i],) * (1 + i % 2), 0)), "sample 1 has other parts than sample 0"),
    (Items(lambda i: 1 / 0), "sample 0 of the Items cannot be read: division by zero"),
    (Items(lambda i: 0, 0), "there are no samples"),
    (Stream(), "a Stream has no length and no places"),
    (torch_data.DataLoader(Stream()), "a Stream has no length"),
    (torch_data.DataLoader(PAIRS, batch_size=None), "batch_size=None says not what a sample is"),
    (torch_data.DataLoader(PAIRS, 4, collate_fn=lambda some: 1), "an item of the dataset is int"),
    (
        torch_data.DataLoader(PAIRS, 4, collate_fn=lambda some: (torch.zeros(()), 1)),
        "part 0 are one for all samples",
    ),
    (
        torch_data.DataLoader(PAIRS, 4, collate_fn=lambda some: (torch.zeros(1), torch.ones(1))),
        "only 8 of 30 samples came",
    ),
    (
        torch_data.DataLoader(Items(ragged), 4, collate_fn=torch_data.default_collate),
        "part 0 in sample 1 are",
    ),
    (datasets.DatasetDict(train=TABLE), "there are several datasets: choose one of 'train'"),
    (TABLE.to_iterable_dataset(), "has no length and no places"),
    (TABLE.select([]), "there are no samples"),
    (
        datasets.Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]}),
        "'text' in sample 0 hold text",
    ),
    (
        datasets.Dataset.from_dict({"x": [[1, 2], [3]], "label": [0, 1]}),
        "column 'x' differs in shape from sample to sample",
    ),
]


@pytest.mark.parametrize(("holds", "sentence"), BAD)
def test_what_holds_no_samples_is_refused(holds: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        as_samples(holds)


def test_unknown_columns_are_refused() -> None:
    with pytest.raises(ValueError, match="there is no column 'ids': use 'x', 'label'"):
        as_samples(TABLE, inputs="ids")
    with pytest.raises(ValueError, match="there is no column 5: use 0, 1"):
        as_samples((X, Y), targets=5)


def test_images_of_pil_are_refused() -> None:
    image = pytest.importorskip("PIL.Image").new("L", (4, 4))
    with pytest.raises(ValueError, match="hold PIL images: give the dataset a transform"):
        as_samples(Items(lambda i: (image, 0)))


def test_images_of_hugging_face_have_channels_first() -> None:
    images = [np.full((6, 5, 3), place, np.uint8) for place in range(4)]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    pytest.importorskip("PIL.Image")
    table = datasets.Dataset.from_dict({"image": images, "label": [0, 1, 0, 1]}, features)
    found = as_samples(table)
    assert found.inputs.shape == (4, 3, 6, 5)
    assert found.inputs.dtype == torch.uint8
    assert found.inputs[:, 0, 0, 0].tolist() == [0, 1, 2, 3]


def test_what_is_lost_is_said() -> None:
    some = torch_data.DataLoader(TENSORS, 4, sampler=torch_data.SubsetRandomSampler([1, 2]))
    with pytest.warns(UserWarning, match="SubsetRandomSampler is not used: all samples"):
        assert as_samples(some).size == 30
    batches = torch_data.BatchSampler(torch_data.SequentialSampler(TENSORS), 4, drop_last=False)
    with pytest.warns(UserWarning, match="is not used"):
        as_samples(torch_data.DataLoader(TENSORS, batch_sampler=batches))
    again = torch_data.RandomSampler(TENSORS, replacement=True, num_samples=99)
    with pytest.warns(UserWarning, match="RandomSampler is not used"):
        as_samples(torch_data.DataLoader(TENSORS, 4, sampler=again))


def test_random_items_are_said() -> None:
    with pytest.warns(UserWarning, match="the dataset gives another sample every time"):
        as_samples(Items(lambda i: (torch.rand(3), 0)))
    table = TABLE.with_transform(lambda some: {"x": torch.rand(len(some["x"]), 2), "label": [0]})
    with pytest.warns(UserWarning, match="the dataset gives another sample every time"):
        as_samples(table.select([0]))
    missing = torch.tensor([float("nan")])
    with pytest.raises(ValueError, match="NaN"):  # the same, though NaN is not NaN
        as_samples(Items(lambda i: (missing, 0)))


def test_long_reads_are_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    as_samples(PAIRS)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(rows, "_PATIENCE", -1.0)
    as_samples(PAIRS)
    output, said = capsys.readouterr()
    assert not output
    assert "reading 30 samples, 720 bytes" in said


def test_what_does_not_fit_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda: 700)
    read: list[int] = []

    def item(place: int) -> Any:
        read.append(place)
        return X[place], 0

    sentence = "the samples need 720 bytes and 700 bytes of memory are free: keep them in a file"
    with pytest.raises(ValueError, match=sentence):
        as_samples(Items(item))
    assert max(read) < 10
    with pytest.raises(ValueError, match="the inputs need 960 bytes"):
        as_samples((np.zeros((30, 8)), Y))
    as_samples((X, Y))
    monkeypatch.undo()
    assert (memory.free_bytes() or 1) > 0


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.floats() | st.text(max_size=3)
    | st.sampled_from([X, Y, X.numpy(), np.zeros(0), torch.zeros(()), np.array([None]), TENSORS]),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner)
    | st.dictionaries(st.sampled_from(["x", "label", "y"]), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(anything)
def test_nothing_else_happens(holds: Any) -> None:
    """Whatever it is, it is samples or a ValueError."""
    try:
        found = as_samples(holds)
    except ValueError:
        return
    assert {len(tensor) for tensor in found.tensors} == {found.size}
    assert found.size > 0


def test_a_dataset_takes_any_form() -> None:
    for form in FORMS.values():
        data = Dataset(form, form, classes=3)
        data.check("mine")
        assert data.shape == (4,)
        assert torch.equal(data.train.inputs, X)
    several = Dataset(({"ids": IDS, "mask": MASK}, X), (({"ids": IDS, "mask": MASK}), X))
    several.check("several")
    assert several.shape == {"ids": (5,), "mask": (5,)}
    assert several.classes is None
    assert several.reduced(10, 5).train.inputs["mask"].shape == (10, 5)
    named = Dataset((X, Y), (X, Y), writers=["ann", "bob", "eve"] * 10)
    assert named.writers is not None
    assert named.writers.tolist() == [0, 1, 2] * 10


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Dataset((X, Y[:3]), (X, Y)), "training samples: inputs"),
        (lambda: Dataset((X, Y), ("a", "b")), "test samples: the inputs hold text"),
        (lambda: Dataset((X, Y), (X, Y), writers=[0.5] * 30), "client ids are floating point"),
        (lambda: Dataset((X, Y), (IDS, Y)).check("d"), "inputs of one shape"),
        (lambda: Dataset((X, Y), (X, Y), 2).check("d"), "with 2 classes, use 0 to 1"),
        (
            lambda: Dataset((X, Y), (X, Y), 3, [1]).check("d"),
            "writers has 1 entries for 30 samples",
        ),
        (
            lambda: Dataset((X, Y), (X, Y))._replace(classes=2.0).check("d"),
            "has classes 2.0: give their number, or None",
        ),
    ],
)
def test_a_dataset_that_does_not_fit_is_refused(make: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make()
