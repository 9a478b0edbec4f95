"""Which kernel runs, for made-up devices; and that docs/fused-engine.md says the same."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from partavg import torch_internals
from partavg.engines.fused import coverage, dispatch
from partavg.engines.fused.convolution.case import Case, Window
from partavg.engines.fused.dispatch import Convolution, Device, Norm, Pool, Recurrent

PAGE = (Path(__file__).parents[2] / "docs" / "fused-engine.md").read_text()
CPU = Device()
INTERPRETER = Device(triton=True, compiler=True)
AMPERE = Device(triton=True, cuda=True, compiler=True)
HOPPER = Device(triton=True, cuda=True, hopper=True, compiler=True, groups=True)
DEVICES = {"CPU": CPU, "Ampere": AMPERE, "Hopper": HOPPER}
DTYPES = {"bf16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}


def case(inputs: int, outputs: int, size: int, side: int = 3, stride: int = 1, **more) -> Case:
    window = Window((stride, stride), (side // 2, side // 2))
    found = Case(32, inputs, size, size, outputs, (side, side), window, gradient=inputs > 4)
    return found._replace(**more)


def rows_of(table: str) -> list[list[str]]:
    """The cells of a table of the page, found by its first line."""
    lines = PAGE[PAGE.index(table) :].splitlines()[2:]
    return [
        [cell.strip() for cell in line.strip("|").split(" |")]
        for line in lines[: next(i for i, line in enumerate(lines) if not line.startswith("|"))]
    ]


def test_the_page_shows_which_convolution_runs() -> None:
    rows = rows_of("| way | its kernels |")
    assert [row[0] for row in rows] == [str(way) for way in Convolution], "in their order"
    pattern = r"(\d+) to (\d+) channels, (\d+) x \3, (\d+) x \4, stride (\d), (\w+) on (\w+)"
    for way, _, _, example in rows:
        match = re.fullmatch(pattern, example)
        assert match is not None, example
        *sizes, dtype, device = match.groups()
        given = case(*map(int, sizes), dtype=DTYPES[dtype])
        assert dispatch.convolution(given, DEVICES[device]) == way


def test_the_page_names_every_way_of_other_operations() -> None:
    rows = rows_of("| operation | way |")
    named = {(operation, way) for operation, way, _ in rows}
    ways = {"norm": Norm, "group norm": Norm, "pool": Pool, "recurrent": Recurrent}
    assert named == {(name, str(way)) for name, enum in ways.items() for way in enum}


def test_the_page_lists_the_layers_that_are_covered() -> None:
    listed = {
        (operation.strip("`"), name)
        for operation, layers in rows_of("| operation | layers |")
        for name in re.findall(r"`(\w+)`", layers)
    }
    known = {
        (entry.run.__module__.split(".")[3], what.__name__)
        for what, entry in coverage.COVERED.items()
        if isinstance(what, type)
    }
    assert listed == known


def test_the_page_names_every_folder_and_file() -> None:
    folder = Path(coverage.__file__).parent
    named = set(re.findall(r"`([\w.]+/?)`", "".join(row[0] for row in rows_of("| folder or file"))))
    real = {path.name for path in folder.glob("[a-z]*.py")}
    real |= {f"{path.name}/" for path in folder.iterdir() if (path / "__init__.py").exists()}
    assert named == real


@pytest.mark.parametrize(
    ("given", "device", "way"),
    [
        (case(16, 16, 32), HOPPER, "few channels"),
        (case(16, 16, 32), AMPERE, "any channels"),
        (case(16, 16, 32), CPU, "grouped"),
        (case(3, 16, 32), HOPPER, "few channels"),
        (case(3, 16, 32, gradient=True), HOPPER, "any channels"),
        (case(16, 16, 32, bias=True), HOPPER, "any channels"),
        (case(32, 32, 16, bias=True), HOPPER, "many channels"),
        (case(16, 16, 28), HOPPER, "any channels"),
        (case(16, 16, 32, dtype=torch.float32), HOPPER, "any channels"),
        (case(16, 16, 32, dtype=torch.float64), HOPPER, "grouped"),
        (case(64, 64, 8, contiguous=False), HOPPER, "any channels"),
        (case(160, 160, 32), HOPPER, "squares"),
        (case(128, 640, 8), HOPPER, "squares"),
        (case(16, 160, 32), HOPPER, "many channels"),
        (case(160, 160, 32), HOPPER._replace(groups=False), "many channels"),
        (case(160, 160, 28), HOPPER, "many channels"),
        (case(160, 160, 32, bias=True), HOPPER, "many channels"),
        (case(160, 192, 32), HOPPER, "many channels"),
        (case(160, 160, 32, 5), HOPPER, "many channels"),
        (case(32, 64, 30, window=Window(), bias=True), HOPPER, "many channels"),
        (case(32, 64, 30, 2), HOPPER, "many channels"),
        (case(160, 160, 32), AMPERE, "one worker at a time"),
        (case(160, 160, 32), INTERPRETER, "any channels"),
        (case(160, 320, 32, 3, 2), HOPPER, "squares"),
        (case(160, 160, 32, 3, 2), HOPPER._replace(groups=False), "one worker at a time"),
        (case(160, 160, 4, 3, 2), HOPPER, "any channels"),
        (case(16, 24, 32), HOPPER, "grouped"),
        (case(16, 16, 32, window=Window((1, 2), (1, 1))), HOPPER, "grouped"),
        (case(16, 16, 32, window=Window((1, 1), (1, 1), (2, 2))), HOPPER, "grouped"),
        (case(16, 16, 32, window=Window((1, 1), (1, 1), groups=2)), HOPPER, "grouped"),
        (case(16, 16, 32, 1, window=Window(padding="valid")), HOPPER, "any channels"),
        (case(64, 64, 32, 1, window=Window(padding="valid")), HOPPER, "many channels"),
    ],
    ids=str,
)
def test_convolutions(given: Case, device: Device, way: str) -> None:
    assert dispatch.convolution(given, device) == way


def test_without_a_compiler_for_cuda_others_do_it(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = HOPPER._replace(compiler=False)
    assert dispatch.convolution(case(16, 16, 32), lacking) == Convolution.ANY_CHANNELS
    assert dispatch.convolution(case(64, 64, 8), lacking) == Convolution.MANY_CHANNELS
    norm = nn.BatchNorm2d(16)
    assert not dispatch.fuses_norm(norm, case(16, 16, 32), lacking, broadcasts=False)
    assert dispatch.device_of(torch.empty(1)).compiler == hasattr(torch.cuda, "_compile_kernel")
    monkeypatch.delattr(torch.cuda, "_compile_kernel", raising=False)
    assert torch_internals.cuda_compiler() is None
    assert not dispatch.device_of(torch.empty(1)).compiler


def test_norms_before_convolutions() -> None:
    given = case(16, 16, 32)
    norm = nn.BatchNorm2d(16)
    assert dispatch.fuses_norm(norm, given, HOPPER, broadcasts=False)
    assert not dispatch.fuses_norm(norm, given, HOPPER, broadcasts=True)
    assert not dispatch.fuses_norm(norm, given, AMPERE, broadcasts=False)
    for fixed in (nn.BatchNorm2d(16).eval(), nn.BatchNorm2d(16, momentum=None).eval()):
        assert dispatch.fuses_norm(fixed, given, HOPPER, broadcasts=False)
    for other in (
        nn.BatchNorm2d(16, track_running_stats=False).eval(),
        nn.BatchNorm2d(16, momentum=None),
        nn.BatchNorm2d(16, affine=False),
    ):
        assert not dispatch.fuses_norm(other, given, HOPPER, broadcasts=False)


@pytest.mark.parametrize(
    ("sizes", "way"),
    [((32, 8, 8), "many channels"), ((32, 7, 7), "any channels"), ((1, 8, 8), "any channels")],
)
def test_weight_gradients_of_many_channels(sizes: tuple[int, int, int], way: str) -> None:
    assert dispatch.weight_gradient_of_many_channels(sizes) == way


def test_norms() -> None:
    assert dispatch.norm(torch.bfloat16, 0.1, HOPPER) == Norm.TRITON
    assert dispatch.norm(torch.float32, None, AMPERE) == Norm.TRITON
    assert dispatch.norm(torch.float64, 0.1, HOPPER) == Norm.TORCH
    assert dispatch.norm(torch.bfloat16, torch.ones(3, 1), HOPPER) == Norm.TORCH
    assert dispatch.norm(torch.float32, 0.1, CPU) == Norm.TORCH


def test_group_norms() -> None:
    assert dispatch.group_norm(2, torch.bfloat16, HOPPER) == Norm.TRITON
    assert dispatch.group_norm(16384, torch.float32, AMPERE) == Norm.TRITON
    assert dispatch.group_norm(16385, torch.float32, AMPERE) == Norm.TORCH
    assert dispatch.group_norm(2, torch.float64, HOPPER) == Norm.TORCH
    assert dispatch.group_norm(2, torch.bfloat16, CPU) == Norm.TORCH


@pytest.mark.parametrize(
    ("by", "args", "size", "way"),
    [
        (nn.AdaptiveAvgPool2d(1), (), (6, 4), "mean"),
        (nn.AdaptiveAvgPool2d((2, 1)), (), (6, 4), "torch"),
        (nn.MaxPool2d(2), (), (6, 4), "max by two"),
        (nn.MaxPool2d(2, return_indices=True), (), (6, 4), "torch"),
        (nn.MaxPool2d(2, ceil_mode=True), (), (7, 5), "max by two"),
        (nn.MaxPool2d(2), (), (7, 4), "torch"),
        (nn.MaxPool2d(3, 2, 1), (), (6, 4), "torch"),
        (nn.AvgPool2d(2), (), (6, 4), "torch"),
        (F.max_pool2d, (2,), (6, 4), "max by two"),
        (F.max_pool2d, (2, 1), (6, 4), "torch"),
        (F.avg_pool2d, (2,), (6, 4), "torch"),
    ],
)
def test_pools(by, args, size: tuple[int, int], way: str) -> None:
    shape = 3, 2, 40, *size
    assert dispatch.pool(by, shape, torch.bfloat16, HOPPER, args) == way
    on_cpu = "mean" if way == "mean" else "torch"
    assert dispatch.pool(by, shape, torch.float32, CPU, args) == on_cpu
    assert dispatch.pool(by, shape, torch.float64, HOPPER, args) == on_cpu


def test_means() -> None:
    pixels = torch.empty(3, 8, 4, 4, 16)
    x = pixels.movedim(-1, 2)
    assert dispatch.averages_by_triton(x, AMPERE)
    assert not dispatch.averages_by_triton(pixels, AMPERE)
    assert not dispatch.averages_by_triton(x[0], AMPERE)
    assert not dispatch.averages_by_triton(x[:, :0], AMPERE)
    assert not dispatch.averages_by_triton(x.double(), AMPERE)
    assert not dispatch.averages_by_triton(torch.empty(3, 8, 33, 32, 16).movedim(-1, 2), AMPERE)
    assert not dispatch.averages_by_triton(x, CPU)


def test_steps_of_lstms() -> None:
    assert dispatch.recurrent(torch.bfloat16, AMPERE) == Recurrent.TRITON
    assert dispatch.recurrent(torch.float32, INTERPRETER) == Recurrent.TRITON
    assert dispatch.recurrent(torch.float64, HOPPER) == Recurrent.TORCH
    assert dispatch.recurrent(torch.float32, CPU) == Recurrent.TORCH


def test_dropout() -> None:
    x = torch.empty(3, 8, 4)
    assert dispatch.drops_by_triton(x, AMPERE)
    assert not dispatch.drops_by_triton(x.mT, AMPERE)
    assert not dispatch.drops_by_triton(x[:, :0], AMPERE)
    pixels = torch.empty(3, 8, 4, 4, 16)
    assert dispatch.drops_by_triton(pixels.movedim(-1, 2), AMPERE)
    assert not dispatch.drops_by_triton(pixels.movedim(-1, 2)[:, :, 1:], AMPERE)
    assert not dispatch.drops_by_triton(pixels.movedim(-1, 3), AMPERE)
    assert not dispatch.drops_by_triton(x.double(), AMPERE)
    assert not dispatch.drops_by_triton(x, CPU)


def test_products() -> None:
    weight = torch.empty(3, 8, 4)
    assert dispatch.casts_by_triton(weight, torch.bfloat16, AMPERE)
    assert not dispatch.casts_by_triton(weight, torch.float32, AMPERE)
    assert not dispatch.casts_by_triton(weight.mT, torch.bfloat16, AMPERE)
    assert not dispatch.casts_by_triton(weight, torch.bfloat16, CPU)
    assert dispatch.multiplies_into(torch.bfloat16, torch.float32, AMPERE)
    assert not dispatch.multiplies_into(torch.float32, torch.float32, AMPERE)
    assert not dispatch.multiplies_into(torch.bfloat16, torch.float32, CPU)
    assert dispatch.puts_words_first(10, CPU)
    assert not dispatch.puts_words_first(5000, CPU)
    assert not any(dispatch.puts_words_first(10, device) for device in (INTERPRETER, AMPERE))
