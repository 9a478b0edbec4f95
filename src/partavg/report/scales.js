// Numbers as text, marks on axes, and search in sorted values.

const text = (value, digits = 5) => {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(3).replace(/\.?0+e/, "e");
  return String(Number(value.toPrecision(digits)));
};

const ticks = (low, high, most) => {
  if (!(high > low)) [low, high] = [low - 0.5, high + 0.5];
  const rough = (high - low) / most, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((unit) => unit * power).find((size) => size >= rough * 0.999);
  const found = [];
  for (let i = Math.floor(low / step + 1e-9); i <= Math.ceil(high / step - 1e-9); i++) {
    found.push(Number((i * step).toPrecision(12)));
  }
  return found;
};

const decades = (low, high, wide = 100) => {
  const found = [], units = high / low > wide ? [1] : [1, 2, 5];
  for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++) {
    for (const unit of units) found.push(Number(`${unit}e${e}`));
  }
  const first = found.findLastIndex((tick) => tick <= low * 1.001);
  const last = found.findIndex((tick) => tick >= high * 0.999);
  return found.slice(Math.max(0, first), last < 0 ? undefined : last + 1);
};

// The index of the first value that is not below x.
const search = (values, x) => {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < x) low = middle + 1; else high = middle;
  }
  return low;
};

const nearest = (values, x) => {
  const after = search(values, x);
  if (after === 0) return 0;
  if (after === values.length) return after - 1;
  return values[after] - x < x - values[after - 1] ? after : after - 1;
};
