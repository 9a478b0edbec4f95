"""What a sweep tries: grids and draws, and what is none."""

import math
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partavg.sweeps.space import Axis, axes_of, called, overrides, points


def test_a_grid_is_every_combination_in_order():
    axes = axes_of(["training.lr=0.1,0.2", "averaging.partition=channel,layer"])
    assert points(axes, None, seed=0) == [
        (("training.lr", 0.1), ("averaging.partition", "channel")),
        (("training.lr", 0.1), ("averaging.partition", "layer")),
        (("training.lr", 0.2), ("averaging.partition", "channel")),
        (("training.lr", 0.2), ("averaging.partition", "layer")),
    ]


def test_of_a_larger_grid_as_many_are_drawn_as_the_budget_has():
    axes = axes_of([f"training.lr={','.join(str(k / 100) for k in range(1, 21))}"])
    some, every = points(axes, 5, seed=3), points(axes, None, seed=3)
    assert len(set(some)) == 5
    assert set(some) < set(every)
    assert some == points(axes, 5, seed=3)
    assert points(axes, 20, seed=3) == every


def test_a_huge_grid_needs_a_budget_and_is_not_listed():
    values = ",".join(str(k) for k in range(1, 1001))
    axes = axes_of([f"model.{key}={values}" for key in "abcd"])
    with pytest.raises(ValueError, match="say by --budget"):
        points(axes, None, seed=0)
    assert len(set(points(axes, 20, seed=0))) == 20


def test_a_larger_budget_keeps_the_first_draws():
    axes = axes_of(["training.lr=loguniform(0.01, 1)", "solver.momentum=0.0,0.9"])
    assert points(axes, 12, seed=1)[:5] == points(axes, 5, seed=1)
    assert points(axes, 5, seed=1) != points(axes, 5, seed=2)


def test_loguniform_draws_are_even_on_a_logarithmic_scale():
    axes = axes_of(["training.lr=loguniform(0.001, 1)"])
    drawn = [math.log10(dict(point)["training.lr"]) for point in points(axes, 2000, seed=0)]
    assert all(-3 <= value <= 0 for value in drawn)
    assert sum(drawn) / len(drawn) == pytest.approx(-1.5, abs=0.06)
    assert sum(value < -2 for value in drawn) / len(drawn) == pytest.approx(1 / 3, abs=0.04)


def test_draws_need_a_budget():
    with pytest.raises(ValueError, match="--budget"):
        points(axes_of(["training.lr=uniform(0, 1)"]), None, seed=0)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("training.lr", "not of the form"),
        ("=0.1", "not of the form"),
        ("training.lr=", "has no value"),
        ("training.lr=0.1,,0.2", "empty value"),
        ("training.lr=0.1,0.1", "twice"),
        ("training.lr=normal(0, 1)", "no way to draw"),
        ("training.lr=loguniform(0, 1)", "above 0"),
        ("training.lr=uniform(2, 1)", "the lower first"),
        ("training.lr=uniform(1)", "two numbers"),
        ("training.lr=loguniform(0.1, inf)", "above 0"),
        ("training.seed=0,1", "cannot be tuned"),
        ("training.steps=10,20", "one budget"),
        ("engine.name=looped,vmapped", "all runs of a sweep compute"),
        ("data.name=imdb,svhn", "one task"),
        ("split.alpha=0.1,0.5", "one task; run a sweep of each, by --set"),
        ("attack.share=0.1,0.2", "one task"),
        ("training.workers=8,16", "one task"),
        ("participation.fraction=0.5,1.0", "one task"),
        ("metrics.evaluate_every=1,2", "what is measured"),
    ],
)
def test_what_is_no_grid_gets_a_sentence(text: str, sentence: str):
    with pytest.raises(ValueError, match=sentence) as caught:
        Axis.parse(text)
    assert "\n" not in str(caught.value)


def test_a_setting_is_swept_once():
    with pytest.raises(ValueError, match="swept twice"):
        axes_of(["training.lr=0.1", "training.lr=0.2"])


@given(st.text(max_size=30))
def test_whatever_is_given_is_an_axis_or_a_sentence(text: str):
    with suppress(ValueError):
        axis = Axis.parse(text)
        assert axis.values or axis.ends


def test_the_best_value_at_the_border_is_noticed():
    grid, drawn = Axis.parse("a.b=0.1,0.4,0.2"), Axis.parse("a.b=loguniform(0.01, 1)")
    assert [grid.edge(v) for v in (0.1, 0.2, 0.4)] == ["smallest", "", "largest"]
    assert [drawn.edge(v) for v in (0.011, 0.1, 0.99)] == ["smallest", "", "largest"]
    tried = drawn.of_those([0.012, 0.011, 0.5, 0.9])
    assert [tried.edge(v) for v in (0.011, 0.012, 0.5, 0.9)] == ["smallest", "", "", "largest"]
    assert Axis.parse("a.b=0.1").edge(0.1) == ""
    assert Axis.parse("a.b=channel,layer").edge("layer") == ""


def test_settings_in_words_and_as_overrides():
    point = (("training.lr", 0.1), ("averaging.partition", "layer"), ("model.hidden", [8, 8]))
    assert called(point) == "lr = 0.1, partition = layer, hidden = [8, 8]"
    assert overrides(point) == [
        "training.lr=0.1",
        "averaging.partition=layer",
        "model.hidden=[8, 8]",
    ]
    point = (("training.lr", 0.1), ("solver.name", "diloco"), ("solver.lr", 0.7))
    assert called(point) == "training.lr = 0.1, solver = diloco, solver.lr = 0.7"
