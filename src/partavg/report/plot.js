// A line chart with a crosshair, zoom and a read-out. The page has drawn it once; here it is drawn
// again from the data, as wide as it is shown.

const LEFT = 56, RIGHT = 22, TOP = 12, BOTTOM = 40;
const MOST_READ = 12;

// What a reader chose, by names, so that it outlives a refresh.
const state = { groups: new Set(), runs: new Set(), zoom: new Map(), log: new Set(), begun: new Set(), at: null };
const byId = (id) => document.getElementById(id);
let data, brushing = false;

const runName = (line) => data.names[line.run];
const groupName = (line) => data.groups[line.group].name;
const isShown = (line) => !state.groups.has(groupName(line))
  && (line.run === null || !state.runs.has(runName(line)));

class Plot {
  constructor(figure) {
    this.key = figure.dataset.chart;
    this.figure = figure;
    this.box = figure.querySelector(".plot");
    this.svg = this.box.querySelector("svg");
    this.space = this.svg.namespaceURI;
    this.chart = data.charts[this.key];
    this.drawn = false;
    this.tapped = -Infinity;
    this.title = figure.querySelector("h3").textContent;
    this.box.classList.add("live");
    this.box.tabIndex = 0;
    this.box.setAttribute("role", "group");
    this.box.setAttribute("aria-label",
      `${this.title}: chart. Arrow keys read values, plus and minus zoom, zero resets.`);
    this.readout = document.createElement("div");
    this.readout.className = "readout";
    this.readout.hidden = true;
    this.box.append(this.readout);
    this.resetButton = figure.querySelector(".reset");
    this.resetButton.addEventListener("click", () => { this.zoom(null); this.box.focus(); });
    this.logButton = figure.querySelector(".log");
    if (this.chart.exploded && !state.begun.has(this.key)) state.log.add(this.key);
    state.begun.add(this.key);
    this.logButton?.addEventListener("click", () => {
      if (!state.log.delete(this.key)) state.log.add(this.key);
      this.draw();
    });
    this.svg.addEventListener("pointermove", (event) => this.onMove(event));
    this.svg.addEventListener("pointerdown", (event) => this.onDown(event));
    this.svg.addEventListener("pointerup", (event) => this.onUp(event));
    this.svg.addEventListener("pointercancel", () => this.endBrush());
    this.svg.addEventListener("pointerleave", (event) => {
      if (!this.brush && event.pointerType !== "touch") this.unpoint();  // a finger was lifted
    });
    this.box.addEventListener("keydown", (event) => this.onKey(event));
    this.box.addEventListener("blur", () => this.unpoint());
  }

  get log() { return state.log.has(this.key); }
  get lines() { return this.chart.lines.filter(isShown); }

  extent() {
    const shown = this.lines, all = shown.length ? shown : this.chart.lines;
    const low = Math.min(...all.map((line) => line.x[0]));
    const high = Math.max(...all.map((line) => line.x[line.x.length - 1]));
    if (high > low) return [low, high];
    return this.chart.logX ? [low / 2, low * 2] : [low - 1, low + 1];
  }

  heights(lines) {
    let low = Infinity, high = -Infinity;
    for (const { x, y } of lines) {
      const from = Math.max(0, search(x, this.x0) - (this.zoomed ? 1 : 0));
      for (let i = from; i < x.length; i++) {
        if ((!this.log || y[i] > 0)) { low = Math.min(low, y[i]); high = Math.max(high, y[i]); }
        if (x[i] > this.x1) break;
      }
    }
    return low <= high ? [low, high] : [this.log ? 0.1 : 0, 1];
  }

  draw() {
    const lines = this.lines, width = Math.max(240, this.box.clientWidth);
    const height = Math.max(230, Math.round(width * 300 / 640));
    this.width = width;
    this.height = height;
    this.drawn = true;
    this.zoomed = state.zoom.get(this.key);
    [this.x0, this.x1] = this.zoomed ?? this.extent();
    const [low, high] = this.heights(lines);
    const marks = this.log ? decades(low, high) : ticks(low, high, 6);
    this.y0 = marks[0];
    this.y1 = marks[marks.length - 1];
    if (this.log && this.y1 <= this.y0) this.y1 = this.y0 * 10;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const clip = `clip-${this.key}`, parts = [];
    parts.push(this.make("clipPath", { id: clip }, this.make("rect", {
      x: LEFT, y: TOP - 4, width: width - LEFT - RIGHT, height: height - TOP - BOTTOM + 8 })));
    const every = Math.ceil(marks.length / 10);
    for (const mark of marks.filter((_, place) => place % every === 0)) {
      const y = this.placeY(mark).toFixed(1);
      parts.push(this.make("path", { class: "grid", d: `M${LEFT} ${y}H${width - RIGHT}` }));
      parts.push(this.label(text(mark), LEFT - 6, Number(y) + 4, "end"));
    }
    const across = this.chart.logX ? decades(this.x0, this.x1, width < 480 ? 100 : 1000)
      : ticks(this.x0, this.x1, width < 480 ? 4 : 7);
    for (const mark of across) {
      const x = this.placeX(mark);
      if (x < LEFT - 1 || x > width - RIGHT + 1) continue;
      parts.push(this.label(text(mark), x, height - BOTTOM + 18, "middle"));
    }
    parts.push(this.label(this.chart.x, (LEFT + width - RIGHT) / 2, height - 4, "middle"));
    for (const line of [...lines].sort((a, b) => b.seed - a.seed)) {
      const kind = (line.seed ? " seed" : "") + (line.x.length === 1 ? " dot" : "");
      parts.push(this.make("path", { class: line.look + kind,
        "clip-path": `url(#${clip})`, d: this.path(line), "data-group": line.group }));
    }
    this.marks = this.make("g", {});
    parts.push(this.marks);
    this.svg.replaceChildren(...parts);
    this.resetButton.hidden = !this.zoomed;
    this.logButton?.setAttribute("aria-pressed", String(this.log));
    if (state.at?.key === this.key) this.point(state.at.x);
  }

  make(name, attributes, ...children) {
    const element = document.createElementNS(this.space, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  }

  label(words, x, y, anchor) {
    return this.make("text", { x: x.toFixed(1), y: y.toFixed(1), "text-anchor": anchor }, words);
  }

  // How far along its axis a value lies, from 0 to 1, and back.
  share(x) {
    return this.chart.logX ? Math.log(x / this.x0) / Math.log(this.x1 / this.x0)
      : (x - this.x0) / (this.x1 - this.x0);
  }

  atShare(share) {
    return this.chart.logX ? this.x0 * (this.x1 / this.x0) ** share
      : this.x0 + share * (this.x1 - this.x0);
  }

  placeX(x) {
    return LEFT + this.share(x) * (this.width - LEFT - RIGHT);
  }

  placeY(y) {
    const share = this.log
      ? Math.log(Math.max(y, this.y0 / 10) / this.y0) / Math.log(this.y1 / this.y0)
      : (y - this.y0) / (this.y1 - this.y0);
    return this.height - BOTTOM - share * (this.height - TOP - BOTTOM);
  }

  // The points between the edges and one beyond each; of many in one pixel the lowest and highest.
  path({ x, y }) {
    const from = Math.max(0, search(x, this.x0) - 1);
    const to = Math.min(x.length - 1, search(x, this.x1) + 1);
    const all = to - from < 2 * this.width;
    let d = "", pixel = NaN, low = 0, high = 0;
    const add = (i) => {
      d += `${d ? " " : "M"}${this.placeX(x[i]).toFixed(1)},${this.placeY(y[i]).toFixed(1)}`;
    };
    const flush = () => {
      add(Math.min(low, high));
      if (low !== high) add(Math.max(low, high));
    };
    for (let i = from; i <= to; i++) {
      if (all) { add(i); continue; }
      const here = Math.round(this.placeX(x[i]));
      if (here !== pixel) {
        if (!Number.isNaN(pixel)) flush();
        pixel = here;
        low = high = i;
      } else {
        if (y[i] < y[low]) low = i;
        if (y[i] > y[high]) high = i;
      }
    }
    if (!all) flush();
    return from === to ? `${d}h.01` : d;
  }

  zoom(range) {
    const [low, high] = this.extent();
    if (range) {
      range = [Math.max(low, range[0]), Math.min(high, range[1])];
      if (range[1] - range[0] < (high - low) * 1e-5) return;
      if (range[0] <= low && range[1] >= high) range = null;
    }
    if (range) state.zoom.set(this.key, range); else state.zoom.delete(this.key);
    this.draw();
  }

  valueAt(event) {
    const box = this.svg.getBoundingClientRect();
    const pixel = (event.clientX - box.left) * this.width / box.width;
    const share = (pixel - LEFT) / (this.width - LEFT - RIGHT);
    return this.atShare(Math.min(1, Math.max(0, share)));
  }

  onDown(event) {
    if (event.button !== 0) return;
    this.svg.setPointerCapture(event.pointerId);
    this.brush = { from: this.valueAt(event), pixel: event.clientX };
    brushing = true;
    this.onMove(event);
  }

  onMove(event) {
    const x = this.valueAt(event);
    this.point(x);
    if (!this.brush) return;
    const [a, b] = [this.brush.from, x].sort((one, other) => one - other).map((v) => this.placeX(v));
    this.marks.prepend(this.make("rect", { class: "brush", x: a, y: TOP, width: b - a,
      height: this.height - TOP - BOTTOM }));
  }

  onUp(event) {
    const brush = this.brush;
    this.endBrush();
    if (!brush) return;
    if (Math.abs(event.clientX - brush.pixel) < 6) {
      // Two taps or clicks; dblclick does not come where what was clicked is drawn anew.
      if (event.timeStamp - this.tapped < 400) this.zoom(null);
      this.tapped = event.timeStamp;
      return;
    }
    this.zoom([brush.from, this.valueAt(event)].sort((one, other) => one - other));
  }

  endBrush() {
    this.brush = null;
    brushing = false;
  }

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const keys = {
      ArrowLeft: () => this.step(event.shiftKey ? -10 : -1),
      ArrowRight: () => this.step(event.shiftKey ? 10 : 1),
      Home: () => this.step(-Infinity),
      End: () => this.step(Infinity),
      "+": () => this.scale(0.5), "=": () => this.scale(0.5),
      "-": () => this.scale(2), "−": () => this.scale(2),
      0: () => this.zoom(null),
      Escape: () => { this.unpoint(); this.zoom(null); },
    };
    if (!keys[event.key] || event.target !== this.box) return;
    event.preventDefault();
    keys[event.key]();
  }

  scale(factor) {
    const middle = this.at === undefined ? 0.5 : this.share(this.at);
    this.zoom([middle - factor / 2, middle + factor / 2].map((share) => this.atShare(share)));
    byId("live").textContent = `${this.title}: ${this.chart.x} ${text(this.x0)} to ${text(this.x1)}`;
  }

  // Move the crosshair along the line that has most points.
  step(count) {
    const { x } = this.lines.reduce((a, b) => (b.x.length > a.x.length ? b : a), { x: [] });
    if (!x.length) return;
    const low = search(x, this.x0), high = Math.max(low, search(x, this.x1 + 1e-9) - 1);
    const begin = this.at === undefined ? (count > 0 ? low - 1 : high + 1) : nearest(x, this.at);
    this.point(x[Math.min(high, Math.max(low, begin + count))]);
    byId("live").textContent = this.readout.innerText;
  }

  unpoint() {
    this.at = undefined;
    state.at = null;
    this.readout.hidden = true;
    this.marks?.replaceChildren();
  }

  // Show what all lines have at the measured x nearest to the one given.
  point(wanted) {
    if (!this.drawn) this.draw();
    const near = this.lines.map((line) => line.x[nearest(line.x, wanted)])
      .filter((x) => x >= this.x0 && x <= this.x1);
    if (!near.length) { this.unpoint(); return; }
    const x = near.reduce((a, b) => (Math.abs(b - wanted) < Math.abs(a - wanted) ? b : a));
    this.at = x;
    state.at = { key: this.key, x };
    const place = this.placeX(x);
    const marks = [this.make("path", { class: "cross",
      d: `M${place.toFixed(1)} ${TOP}V${this.height - BOTTOM}` })];
    const rows = [];
    for (const line of this.lines) {
      const i = nearest(line.x, x);
      if (Math.abs(this.placeX(line.x[i]) - place) > 12) continue;
      if (line.seed) continue;
      rows.push({ line, y: line.y[i], range: this.range(line, x) });
      marks.push(this.make("path", { class: `${line.look} dot`,
        d: `M${this.placeX(line.x[i])},${this.placeY(line.y[i])}h.01` }));
    }
    this.marks.replaceChildren(...marks);
    this.show(`${this.chart.x} ${text(x)}`, rows.sort((a, b) => b.y - a.y));
    this.readout.style.left = place < this.width / 2 ? "auto" : `${LEFT + 8}px`;
    this.readout.style.right = place < this.width / 2 ? `${RIGHT + 8}px` : "auto";
  }

  range(mean, x) {
    const seeds = this.lines.filter((line) => line.seed && line.group === mean.group
      && line.other === mean.other).map((line) => line.y[nearest(line.x, x)]);
    return mean.run === null && seeds.length > 1
      ? ` (${text(Math.min(...seeds), 4)}–${text(Math.max(...seeds), 4)})` : "";
  }

  show(heading, rows) {
    const items = rows.slice(0, MOST_READ).map(({ line, y, range }) => {
      const row = document.createElement("p"), name = document.createElement("bdi");
      const value = document.createElement("b");
      const swatch = this.make("svg", { viewBox: "0 0 28 8", "aria-hidden": "true" },
        this.make("path", { class: line.look, d: "M1 4H27" }));
      name.textContent = groupName(line) + (line.other ? `, ${this.chart.second}` : "");
      value.textContent = `${text(y, 4)}${this.chart.unit && ` ${this.chart.unit}`}${range}`;
      row.append(swatch, name, value);
      return row;
    });
    const head = document.createElement("p");
    head.textContent = heading;
    if (rows.length > MOST_READ) {
      const more = document.createElement("p");
      more.textContent = `and ${rows.length - MOST_READ} more`;
      items.push(more);
    }
    this.readout.replaceChildren(head, ...items);
    this.readout.hidden = false;
  }
}
