"""Parts by name: repeated blocks, and patterns of one's own."""

import re

import pytest

from partavg.core.cuts import by_name, sequential, strided
from partavg.core.layout import Layout
from partavg.core.partition import Partition

GPT = (
    "wte.weight",
    "wpe.weight",
    *(
        f"h.{block}.{tensor}"
        for block in range(5)
        for tensor in ("ln.weight", "mlp.0.weight", "mlp.2.weight")
    ),
    "ln_f.weight",
    "lm_head.weight",
)
LAYOUT = Layout(GPT, ((2,),) * len(GPT))


def fragments(partition: Partition, layout: Layout = LAYOUT) -> list[list[str]]:
    """The names in each part; a tensor in several would be in several."""
    owners = layout.views(partition.owners())
    return [
        [name for name, owner in owners.items() if (owner == part).any()]
        for part in range(len(partition.parts))
    ]


def blocks(*numbers: int) -> list[str]:
    return [name for name in GPT if name.split(".")[1] in map(str, numbers)]


FRONT, BACK = list(GPT[:2]), list(GPT[-2:])


def test_strided_blocks_are_dealt_in_turn() -> None:
    first, second = fragments(strided(LAYOUT, 2))
    assert first == [*FRONT, *blocks(0, 2, 4), *BACK]
    assert second == blocks(1, 3)


def test_sequential_blocks_follow_each_other() -> None:
    assert fragments(sequential(LAYOUT, 2)) == [
        [*FRONT, *blocks(0, 1, 2)],
        [*blocks(3, 4), *BACK],
    ]


def test_more_fragments_than_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot fill 6 parts: the model has 5 repeated blocks"):
        strided(LAYOUT, 6)


def test_blocks_of_several_stages_are_counted_through() -> None:
    names = ("conv.w", "layer1.0.w", "layer1.1.w", "layer2.0.w", "layer2.1.w", "fc.w")
    layout = Layout(names, ((3,),) * 6)
    found = fragments(strided(layout, 2), layout)
    assert found == [["conv.w", "layer1.0.w", "layer2.0.w"], ["layer1.1.w", "layer2.1.w", "fc.w"]]


def test_a_number_without_others_beside_it_is_no_block() -> None:
    names = tuple(f"model.0.layers.{block}.w" for block in range(3))
    assert fragments(strided(Layout(names, ((1,),) * 3), 3), Layout(names, ((1,),) * 3)) == [
        [name] for name in names
    ]


def test_patterns_name_tensors_and_modules() -> None:
    found = fragments(by_name(LAYOUT, [["h.1", "h.3.*"], ["h.[024].*"], ["lm_*"]]))
    assert found[0] == blocks(1, 3)
    assert found[1] == [*FRONT, *blocks(0, 2, 4), "ln_f.weight"], "with the one before it"
    assert found[2] == ["lm_head.weight"]


@pytest.mark.parametrize(
    ("patterns", "sentence"),
    [
        (
            [["h.0"], ["h.0.ln.*"]],
            "parameter 'h.0.ln.weight' is in fragments 0 and 1: let patterns",
        ),
        ([["h.7"], ["h.1"]], "fragment 0 has 'h.7', which matches no parameter that is averaged"),
    ],
)
def test_patterns_that_make_no_sense_are_refused(patterns: list[list[str]], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        by_name(LAYOUT, patterns)
