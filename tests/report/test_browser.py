"""The page in a real browser: Debian's Chromium, driven by Playwright."""

import re
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from tests.limits import seconds
from tests.report.folders import make
from tests.report.visit import Visit

from partavg.report.page import write_page
from partavg.report.runs import gather
from partavg.report.watch import Watcher, server

pytestmark = pytest.mark.slow


def test_all_charts_draw_inside_their_frame(visit: Visit) -> None:
    keys = visit.page.eval_on_selector_all("[data-chart]", "all => all.map(e => e.dataset.chart)")
    assert keys == [
        "loss", "accuracy", "accuracy_bytes", "test_loss", "discrepancy_early",
        "discrepancy_middle", "discrepancy", "round_losses",
    ]  # fmt: skip
    for key in keys:
        plot = visit.chart(key)
        width, height = map(float, plot.locator("svg").first.get_attribute("viewBox").split()[2:])
        paths = plot.locator("path[data-group]").all()
        # seeds and mean of two schemes, one run alone; twice where there are two kinds of lines
        assert len(paths) == (14 if key == "round_losses" else 7)
        for path in paths:
            points = re.findall(r"([\d.]+),([\d.]+)", path.get_attribute("d"))
            assert len(points) > 5
            assert all(0 <= float(x) <= width and 0 <= float(y) <= height for x, y in points)
    assert visit.page.locator(".heat path").count() > 20
    assert visit.page.locator(".split rect").count() > 5


def test_pointing_reads_the_values_of_all_runs(visit: Visit) -> None:
    plot = visit.chart("accuracy")
    box = plot.bounding_box()
    visit.page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.5)
    said = plot.locator(".readout").inner_text()
    assert re.search(r"step 1[345]0", said)
    for name in ("partial", "periodic", "open"):
        assert re.search(rf"{name}\s+[78]\d\.\d+ %", said)
    assert re.search(r"\(\S+–\S+\)", said), "the range of the seeds"
    visit.page.mouse.move(5, 5)
    assert plot.locator(".readout").is_hidden()


def test_dragging_zooms_and_a_double_click_resets(visit: Visit) -> None:
    plot, before = visit.chart("loss"), visit.marks("loss")
    box = plot.bounding_box()
    middle = box["y"] + box["height"] / 2
    visit.page.mouse.move(box["x"] + 150, middle)
    visit.page.mouse.down()
    visit.page.mouse.move(box["x"] + 250, middle, steps=4)
    assert plot.locator(".brush").count() == 1
    visit.page.mouse.up()
    zoomed = visit.marks("loss")
    assert zoomed != before
    assert visit.page.locator("#reset-loss").is_visible()
    visit.page.mouse.dblclick(box["x"] + 200, middle)
    assert visit.marks("loss") == before
    assert visit.page.locator("#reset-loss").is_hidden()


def test_keys_read_values_and_zoom(visit: Visit) -> None:
    plot, before = visit.chart("loss"), visit.marks("loss")
    plot.focus()
    visit.page.keyboard.press("ArrowRight")
    assert "step 1\n" in plot.locator(".readout").inner_text()
    visit.page.keyboard.press("Shift+ArrowRight")
    assert "step 11\n" in plot.locator(".readout").inner_text()
    assert "step 11" in visit.page.locator("#live").inner_text(), "said to a screen reader"
    visit.page.keyboard.press("End")
    assert "step 300\n" in plot.locator(".readout").inner_text()
    visit.page.keyboard.press("+")
    assert visit.marks("loss") != before
    visit.page.keyboard.press("0")
    assert visit.marks("loss") == before
    heat = visit.page.locator(".map").first
    heat.focus()
    visit.page.keyboard.press("ArrowRight")
    assert re.search(r"part 0, step \d+: \d", heat.locator(".readout").inner_text())


def test_the_legend_hides_a_scheme_or_a_run_in_every_chart(visit: Visit) -> None:
    def shown(key: str) -> int:
        return visit.chart(key).locator("path[data-group]").count()

    button = visit.page.get_by_role("button", name="periodic", exact=True)
    button.focus()
    visit.page.keyboard.press("Enter")
    assert button.get_attribute("aria-pressed") == "false"
    assert [shown(key) for key in ("loss", "accuracy", "discrepancy")] == [4, 4, 4]
    assert visit.page.get_by_role("button", name="periodic, seed 0").is_disabled()
    visit.page.get_by_role("button", name="partial, seed 1").click()
    assert [shown(key) for key in ("loss", "accuracy", "discrepancy")] == [3, 3, 3]
    visit.page.get_by_role("button", name="hide all").click()
    assert shown("loss") == 0
    visit.page.get_by_role("button", name="show all").click()
    assert shown("loss") == 7


def test_a_logarithmic_scale(visit: Visit) -> None:
    before = visit.marks("test_loss")
    visit.page.locator("#log-test_loss").click()
    assert {"0.1", "0.2", "0.5"} <= set(visit.marks("test_loss"))
    visit.page.locator("#log-test_loss").click()
    assert visit.marks("test_loss") == before


def test_a_chart_of_a_run_that_diverged_begins_logarithmic(browser: Any, tmp_path: Path) -> None:
    path = make(tmp_path / "wild", steps=40, finished=False) / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 41, "loss": 1e28}\n')
    make(tmp_path / "tame")
    written = write_page(tmp_path / "report.html", gather([tmp_path]))
    with browser.new_context() as context:
        visit = Visit(context.new_page(), written)
        assert "1e+10" in visit.marks("loss")
        assert len(visit.marks("loss")) < 20, "of thirty powers of ten some"
        assert visit.page.locator("#log-loss").get_attribute("aria-pressed") == "true"
        visit.page.locator("#log-loss").click()
        assert "1e+10" not in visit.marks("loss")
        assert visit.page.locator("#log-test_loss").get_attribute("aria-pressed") == "false"


def test_one_point_is_a_dot_between_different_marks(browser: Any, tmp_path: Path) -> None:
    make(tmp_path / "run", steps=1, finished=False)
    make(tmp_path / "longer", steps=30)
    write_page(tmp_path / "report.html", gather([tmp_path]))
    with browser.new_context() as context:
        visit = Visit(context.new_page(), tmp_path / "report.html")
        marks = visit.marks("accuracy")
        assert len(set(marks)) == len(marks)
        dot = visit.chart("accuracy").locator("path.dot")
        assert dot.evaluate("e => getComputedStyle(e).strokeWidth") == "7px"
        assert visit.complaints == []


def test_a_logarithmic_axis_of_traffic(browser: Any, tmp_path: Path) -> None:
    make(tmp_path / "partial")
    make(tmp_path / "synchronous", sends=20_000)
    path = write_page(tmp_path / "report.html", gather([tmp_path]))
    with browser.new_context(viewport={"width": 1200, "height": 900}) as context:
        visit = Visit(context.new_page(), path)
        assert {"0.01", "0.1", "1"} <= set(visit.marks("accuracy_bytes"))
        plot = visit.chart("accuracy_bytes")
        box = plot.bounding_box()
        visit.page.mouse.move(box["x"] + box["width"] * 0.97, box["y"] + box["height"] * 0.5)
        assert re.search(r"\) 2\s", plot.locator(".readout").inner_text()), "the last: 2 MB"
        plot.focus()
        visit.page.keyboard.press("+")
        assert "0.01" not in visit.marks("accuracy_bytes")
        visit.page.keyboard.press("0")
        assert "0.01" in visit.marks("accuracy_bytes")
        assert visit.complaints == []


def test_a_phone_is_told_that_a_table_has_more(browser: Any, tmp_path: Path) -> None:
    make(tmp_path / "run")
    written = write_page(tmp_path / "report.html", gather([tmp_path]))
    for width, wider in ((390, True), (1600, False)):
        with browser.new_context(viewport={"width": width, "height": 844}) as context:
            visit = Visit(context.new_page(), written)
            table = visit.page.locator(".scroll").first
            script = "e => new Promise(done => setTimeout(() => done(e.className), 100))"
            assert ("wider" in table.evaluate(script)) is wider


def test_no_letters_touch_on_a_phone(browser: Any, tmp_path: Path) -> None:
    for seed in range(3):
        make(tmp_path / f"periodic-seed{seed}", seed=seed, parts=1)
        make(tmp_path / f"partial-seed{seed}", seed=seed)
    written = write_page(tmp_path / "report.html", gather([tmp_path]))
    for width in (420, 1300):
        with browser.new_context(viewport={"width": width, "height": 844}) as context:
            visit = Visit(context.new_page(), written)
            texts = visit.page.locator("#chart-pareto-bytes .plot text").all()
            boxes = [text.bounding_box() for text in texts]
            touching = [
                (texts[i].text_content(), texts[k].text_content())
                for i, one in enumerate(boxes)
                for k, other in enumerate(boxes[:i])
                if one["x"] < other["x"] + other["width"] and other["x"] < one["x"] + one["width"]
                if one["y"] + 2 < other["y"] + other["height"]
                and other["y"] + 2 < one["y"] + one["height"]
            ]
            assert touching == []


def test_a_watched_page_refreshes_and_keeps_what_was_chosen(browser: Any, tmp_path: Path) -> None:
    from playwright.sync_api import expect

    path = make(tmp_path / "one", finished=False)
    make(tmp_path / "two", seed=1, interval=20)
    with (
        server(Watcher(tmp_path, 0.2).page, 0) as served,
        browser.new_context(viewport={"width": 1200, "height": 900}) as context,
    ):
        serving = {"poll_interval": 0.05}
        Thread(target=served.serve_forever, kwargs=serving, daemon=True).start()
        page = context.new_page()
        complaints: list[str] = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.set_default_timeout(1000 * seconds())
        page.goto(f"http://127.0.0.1:{served.server_port}/")
        page.get_by_role("button", name="two", exact=True).click()
        plot, reset = page.locator("#chart-loss .plot"), page.locator("#reset-loss")
        while not reset.is_visible():  # a page that is drawn anew meanwhile hears no key
            plot.focus()
            page.keyboard.press("+")
            page.wait_for_timeout(100)
        page.locator("summary").first.click()
        plot.focus()
        plot.locator("clipPath").wait_for(state="attached")
        before = plot.locator("svg > text").all_text_contents()
        with (path / "metrics.jsonl").open("a") as file:
            file.write('{"step": 101, "loss": 0.1}\n')
        page.get_by_text("unfinished, step 101").first.wait_for()
        plot.locator("clipPath").wait_for(state="attached")
        assert plot.locator("path[data-group]").count() == 1, "two is still hidden"
        # Still zoomed; the page may be drawing it at this moment.
        expect(plot.locator("svg > text")).to_have_text(before, timeout=1000 * seconds())
        assert page.locator("details").first.get_attribute("open") is not None
        assert plot.evaluate("e => e === document.activeElement"), "the focus stays"
        served.shutdown()
        served.server_close()
        page.get_by_text("partavg watch has stopped").wait_for()
        assert complaints == []
