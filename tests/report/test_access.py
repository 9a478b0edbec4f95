"""A report for everyone: contrast, phones, keyboards, no scripts, and text that is only text."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.report.folders import make
from tests.report.test_page import HOSTILE
from tests.report.visit import Visit

from partavg.report.page import write_page
from partavg.report.runs import gather

pytestmark = pytest.mark.slow

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
