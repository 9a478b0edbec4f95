// The legend, the start, and news while runs go on.

let plots;

const showLegend = () => {
  for (const button of document.querySelectorAll("[data-group][aria-pressed]")) {
    const name = data.groups[Number(button.dataset.group)].name;
    button.setAttribute("aria-pressed", String(!state.groups.has(name)));
  }
  for (const button of document.querySelectorAll("[data-run][aria-pressed]")) {
    const { of, run } = button.dataset;
    button.disabled = state.groups.has(data.groups[of].name);
    button.setAttribute("aria-pressed", String(!button.disabled && !state.runs.has(data.names[run])));
  }
  for (const plot of plots) if (plot.drawn) plot.draw();
};

const toggle = (set, name) => { if (!set.delete(name)) set.add(name); showLegend(); };

const start = () => {
  data = JSON.parse(byId("data").textContent);
  data.names = data.groups.flatMap((group) => group.runs);
  plots = [...document.querySelectorAll("[data-chart]")].map((figure) => new Plot(figure));
  for (const figure of document.querySelectorAll("[data-heat]")) readable(figure);
  for (const button of document.querySelectorAll("[data-group][aria-pressed]")) {
    const { name } = data.groups[Number(button.dataset.group)];
    button.addEventListener("click", () => toggle(state.groups, name));
  }
  for (const button of document.querySelectorAll("[data-run][aria-pressed]")) {
    const name = data.names[button.dataset.run];
    button.addEventListener("click", () => toggle(state.runs, name));
  }
  byId("show-all")?.addEventListener("click", () => {
    state.groups.clear();
    state.runs.clear();
    showLegend();
  });
  byId("show-none")?.addEventListener("click", () => {
    for (const { name } of data.groups) state.groups.add(name);
    showLegend();
  });
  // A chart is drawn when it comes near the window, and again when its width changes.
  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const plot = plots.find((one) => one.figure === entry.target);
      if (entry.isIntersecting && plot && !plot.drawn) plot.draw();
    }
  }, { rootMargin: "300px" });
  const wide = new ResizeObserver((entries) => {
    for (const entry of entries) {
      const plot = plots.find((one) => one.box === entry.target);
      if (plot?.drawn && plot.width !== Math.max(240, plot.box.clientWidth)) plot.draw();
    }
  });
  for (const plot of plots) {
    near.observe(plot.figure);
    wide.observe(plot.box);
  }
  // A table that is wider than its place says so; shadows alone are easily missed.
  const tables = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      target.classList.toggle("wider", target.scrollWidth > target.clientWidth + 1);
    }
  });
  for (const place of document.querySelectorAll(".scroll")) tables.observe(place);
  showLegend();
  return () => { near.disconnect(); wide.disconnect(); tables.disconnect(); };
};

document.documentElement.classList.add("scripted");
let stop = start();

// Only a page that `partavg watch` serves looks for news.
const every = Number(document.documentElement.dataset.refresh);
let tag = null;

const replace = (fresh) => {
  const open = [...document.querySelectorAll("details[open]")].map((one) => one.id);
  const focused = document.activeElement?.id
    || document.activeElement?.closest?.("[data-chart]")?.id;
  const { scrollX, scrollY } = window, { at } = state;
  stop();
  document.querySelector("main").replaceWith(fresh.querySelector("main"));
  byId("data").textContent = fresh.getElementById("data").textContent;
  document.title = fresh.title;
  for (const id of open) byId(id)?.setAttribute("open", "");
  state.at = at;
  stop = start();
  const target = focused && byId(focused);
  (target?.querySelector?.(".plot") ?? target)?.focus({ preventScroll: true });
  window.scrollTo(scrollX, scrollY);
};

const refresh = async () => {
  const news = byId("news");
  try {
    const headers = tag ? { "If-None-Match": tag } : {};
    const answer = await fetch(location.href, { cache: "no-store", headers });
    news.hidden = true;
    if (answer.status === 200) {
      tag = answer.headers.get("ETag");
      replace(new DOMParser().parseFromString(await answer.text(), "text/html"));
    } else if (answer.status !== 304) {
      throw new Error(await answer.text());
    }
  } catch (error) {
    news.textContent = error instanceof TypeError ? "partavg watch has stopped" : error.message;
    news.hidden = false;
  }
};

const follow = async () => {
  if (!brushing && !document.hidden) await refresh();
  setTimeout(follow, every * 1000);
};

if (every > 0) setTimeout(follow, every * 1000);
