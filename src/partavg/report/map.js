// A heat map whose cells can be read.

const readable = (figure) => {
  const map = data.heat[Number(figure.dataset.heat)];
  const box = figure.querySelector(".map"), svg = box.querySelector("svg");
  const rows = map.values.length, columns = map.values[0].length;
  const readout = document.createElement("div");
  readout.className = "readout";
  readout.hidden = true;
  box.append(readout);
  box.tabIndex = 0;
  box.setAttribute("role", "group");
  box.setAttribute("aria-label", `${map.name}: map of discrepancies. Arrow keys read values.`);
  let row = 0, column = 0;
  const show = () => {
    const part = Math.floor(row * map.parts / rows);
    const step = map.steps[0] + Math.floor(column / columns * (map.steps[1] - map.steps[0] + 1));
    const value = map.values[row][column];
    readout.textContent =
      `part ${part}, step ${step}: ${value === null ? "not measured" : text(value, 4)}`;
    readout.hidden = false;
    const right = column > columns / 2;
    readout.style.left = right ? "8px" : "auto";
    readout.style.right = right ? "auto" : "8px";
  };
  const clamp = (value, count) => Math.min(count - 1, Math.max(0, Math.floor(value)));
  svg.addEventListener("pointermove", (event) => {
    const place = svg.getBoundingClientRect();
    column = clamp((event.clientX - place.left) / place.width * columns, columns);
    row = clamp((event.clientY - place.top) / place.height * rows, rows);
    show();
  });
  svg.addEventListener("pointerleave", () => { readout.hidden = true; });
  box.addEventListener("blur", () => { readout.hidden = true; });
  box.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    row = clamp(row + move[0], rows);
    column = clamp(column + move[1], columns);
    show();
    byId("live").textContent = readout.textContent;
  });
};
