"""The page in a real browser: Debian's Chromium, driven by Playwright."""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from tests.report.folders import comparison, make
from tests.report.test_page import HOSTILE

from partavg.report.page import write_page
from partavg.report.runs import gather
from partavg.report.watch import Watcher, server

REQUIRED = os.environ.get("PARTAVG_BROWSER") == "required"

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking",
]  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One browser for all tests; where it is required, its absence is a failure."""
    found = shutil.which("chromium")
    if not found:
        if REQUIRED:
            pytest.fail("PARTAVG_BROWSER=required, but there is no chromium: install it")
        pytest.skip("there is no chromium on this machine")
    name = "playwright.sync_api"
    api = import_module(name) if REQUIRED else pytest.importorskip(name)
    with api.sync_playwright() as driver, tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "HOME": home}
        opened = driver.chromium.launch(executable_path=found, args=FLAGS, env=environment)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a comparison with two seeds, and a run that is not finished."""
    folder = tmp_path_factory.mktemp("report")
    comparison(folder / "runs", steps=300)
    make(folder / "runs" / "open", steps=300, finished=False)
    return write_page(folder / "report.html", gather([folder / "runs"]))


class Visit:
    """A page that was opened, and what it did that it should not."""

    def __init__(self, page: Any, path: Path) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.set_default_timeout(10_000)
        page.goto(path.as_uri())

    def chart(self, key: str) -> Any:
        """The chart, drawn by the script."""
        found = self.page.locator(f"#chart-{key} .plot")
        found.scroll_into_view_if_needed()
        found.locator("clipPath").wait_for(state="attached")
        return found

    def marks(self, key: str) -> list[str]:
        """The text on the axes."""
        return self.chart(key).locator("svg > text").all_text_contents()


@pytest.fixture
def visit(browser: Any, written: Path) -> Iterator[Visit]:
    with browser.new_context(viewport={"width": 1200, "height": 900}) as context:
        made = Visit(context.new_page(), written)
        yield made
        assert made.complaints == []
        assert made.requests == [written.as_uri()], "nothing but the page itself"


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


CONTRAST = """scheme => {
  const numbers = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = (color) => {
    const [r, g, b] = numbers(color).map((v) => v / 255)
      .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (one, other) => {
    const [low, high] = [light(one), light(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const ground = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const color = getComputedStyle(e).backgroundColor;
      if (numbers(color)[3] !== 0) return color;
    }
    return "rgb(255, 255, 255)";
  };
  const bad = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || element.closest("script, title")) continue;
    const style = getComputedStyle(element);
    const color = element.closest("svg") ? style.fill : style.color;
    const found = ratio(color, ground(element));
    if (found < 4.5) bad.push([element.textContent.slice(0, 40), color, found]);
  }
  for (let i = 0; i < 8; i++) {
    const line = document.createElementNS(document.querySelector("svg").namespaceURI, "path");
    line.setAttribute("class", `line c${i}`);
    document.querySelector("svg").append(line);
    const found = ratio(getComputedStyle(line).stroke, ground(document.body));
    if (found < 3) bad.push([`c${i}`, getComputedStyle(line).stroke, found]);
    line.remove();
  }
  return bad;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_lines_stand_out(browser: Any, written: Path, scheme: str) -> None:
    with browser.new_context(color_scheme=scheme) as context:
        page = Visit(context.new_page(), written).page
        page.evaluate("document.querySelectorAll('details').forEach(e => { e.open = true; })")
        page.get_by_role("button", name="partial", exact=True).click()
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
        assert page.evaluate(CONTRAST, scheme) == []


def test_a_phone_needs_no_sideways_scrolling(browser: Any, written: Path) -> None:
    size = {"width": 360, "height": 740}
    with browser.new_context(viewport=size, has_touch=True, is_mobile=True) as context:
        visit = Visit(context.new_page(), written)
        assert visit.page.evaluate("document.documentElement.scrollWidth") == 360
        sizes = (
            visit.chart("loss")
            .locator("text")
            .evaluate_all("all => all.map(e => e.getBoundingClientRect().height)")
        )
        assert min(sizes) > 10, "text is not shrunk with the chart"
        box = visit.chart("loss").bounding_box()
        visit.page.touchscreen.tap(box["x"] + 200, box["y"] + 80)
        readout = visit.chart("loss").locator(".readout")
        assert "step" in readout.inner_text()
        frame = visit.chart("loss").locator("svg").first.bounding_box()
        shown = readout.bounding_box()
        assert shown is not None, "it stays when the finger is lifted"
        assert shown["y"] >= frame["y"] + frame["height"], "below the chart, not over it"
        assert shown["x"] + shown["width"] <= 360
        assert visit.complaints == []


def test_one_point_is_a_dot_between_different_marks(browser: Any, tmp_path: Path) -> None:
    make(tmp_path / "run", steps=1, finished=False)
    write_page(tmp_path / "report.html", gather([tmp_path]))
    with browser.new_context() as context:
        visit = Visit(context.new_page(), tmp_path / "report.html")
        marks = visit.marks("accuracy")
        assert len(set(marks)) == len(marks)
        dot = visit.chart("accuracy").locator("path[data-group]")
        assert dot.evaluate("e => getComputedStyle(e).strokeWidth") == "7px"
        assert visit.complaints == []


ACCESS = """() => {
  const bad = [];
  const named = (e) => e.getAttribute("aria-label") || e.textContent.trim();
  for (const e of document.querySelectorAll("button, [role=group], [role=region], nav")) {
    if (!named(e)) bad.push(e.outerHTML.slice(0, 90));
  }
  for (const e of document.querySelectorAll("svg")) {
    if (!e.getAttribute("aria-label") && e.getAttribute("aria-hidden") !== "true") {
      bad.push(e.outerHTML.slice(0, 90));
    }
  }
  for (const e of document.querySelectorAll("table")) {
    if (!e.caption || e.querySelector("th:not([scope])")) bad.push(e.outerHTML.slice(0, 90));
  }
  for (const e of document.querySelectorAll(".scroll")) if (e.tabIndex !== 0) bad.push(e.className);
  const levels = [...document.querySelectorAll("h1, h2, h3")].map((e) => Number(e.tagName[1]));
  if (levels.filter((level) => level === 1).length !== 1) bad.push("not one h1");
  levels.forEach((level, i) => { if (i && level > levels[i - 1] + 1) bad.push(`heading ${i}`); });
  const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
  if (new Set(ids).size !== ids.length) bad.push("an id twice");
  if (!document.documentElement.lang || !document.title || !document.querySelector("main")) {
    bad.push("language, title or main");
  }
  return bad;
}"""


def test_what_accessibility_tools_ask_for(visit: Visit) -> None:
    assert visit.page.evaluate(ACCESS) == []
    visit.page.keyboard.press("Tab")
    outline = visit.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", "what has the focus is to be seen"


def test_hostile_names_are_text(browser: Any, tmp_path: Path) -> None:
    make(tmp_path / "run")
    run = gather([tmp_path])[0]
    runs = [replace(run, name=name, group=name) for name in HOSTILE]
    path = write_page(tmp_path / "report.html", runs)
    with browser.new_context(viewport={"width": 360, "height": 740}) as context:
        visit = Visit(context.new_page(), path)
        assert visit.page.locator("img, b:not(.readout b)").count() == 0
        names = visit.page.locator(".legend bdi").all_text_contents()
        assert names == HOSTILE
        assert visit.page.evaluate("document.documentElement.scrollWidth") == 360
        visit.chart("loss").focus()
        visit.page.keyboard.press("ArrowRight")
        assert HOSTILE[0] in visit.chart("loss").locator(".readout").inner_text()
        assert visit.complaints == []
        assert len(visit.requests) == 1


def test_without_scripts_the_page_shows_the_same(browser: Any, written: Path) -> None:
    with browser.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(written.as_uri())
        assert page.locator("#chart-loss svg path.line").count() == 7


def test_a_watched_page_refreshes_and_keeps_what_was_chosen(browser: Any, tmp_path: Path) -> None:
    path = make(tmp_path / "one", finished=False)
    make(tmp_path / "two", seed=1, interval=20)
    with (
        server(Watcher(tmp_path, 0.2).page, 0) as served,
        browser.new_context(viewport={"width": 1200, "height": 900}) as context,
    ):
        Thread(target=served.serve_forever, kwargs={"poll_interval": 0.05}).start()
        page = context.new_page()
        complaints: list[str] = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.set_default_timeout(10_000)
        page.goto(f"http://127.0.0.1:{served.server_port}/")
        page.get_by_role("button", name="two", exact=True).click()
        plot = page.locator("#chart-loss .plot")
        plot.focus()
        page.keyboard.press("+")
        page.locator("summary").first.click()
        plot.focus()
        before = plot.locator("svg > text").all_text_contents()
        with (path / "metrics.jsonl").open("a") as file:
            file.write('{"step": 101, "loss": 0.1}\n')
        page.get_by_text("unfinished, step 101").first.wait_for()
        plot.locator("clipPath").wait_for(state="attached")
        assert plot.locator("path[data-group]").count() == 1, "two is still hidden"
        assert plot.locator("svg > text").all_text_contents() == before, "still zoomed"
        assert page.locator("details").first.get_attribute("open") is not None
        assert plot.evaluate("e => e === document.activeElement"), "the focus stays"
        served.shutdown()
        served.server_close()
        page.get_by_text("partavg watch has stopped").wait_for()
        assert complaints == []
