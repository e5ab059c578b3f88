// The small plots: losses of one or two runs, staleness, and the ball.

import { colours, pencil } from "./lanes.js";

const LEFT = 34, BOTTOM = 18;
const RIM = 1.3; // of the parabola
const LIMITED = ["HogWild", "Stale-Synchronous-Parallel", "Synchronous-SGD"]; // plain SGD: it has a limit

/** Test loss over `what` ("time" or "bytes"), on a logarithmic axis; up to `until`, if given. */
export function losses(canvas, runs, what, until = 0) {
  const { context, width, height } = pencil(canvas), colour = colours();
  const points = runs.flatMap((run) => run.losses).filter(({ loss }) => Number.isFinite(loss));
  const [low, high] = [Math.min(0.1, ...points.map(({ loss }) => loss)), Math.max(3, ...points.map(({ loss }) => loss))];
  const end = (until || Math.max(what === "time" ? 5 : 1, ...points.map((point) => point[what]))) * 1.02;
  const x = (value) => LEFT + (value / end) * (width - LEFT - 4);
  const y = (loss) => (height - BOTTOM) * (1 - Math.log(loss / low) / Math.log(high / low)) * 0.95 + 6;
  axes(context, colour, width, height);
  context.textAlign = "right";
  if (high > 4) mark(context, colour, String(+high.toPrecision(2)), LEFT - 4, y(high) + 4);
  for (const tick of [0.01, 0.1, 0.3, 1, 3, 10, 100, 1e4]) {
    if (tick >= low * 0.99 && (tick <= high / 1.8 || high <= 4)) mark(context, colour, String(tick), LEFT - 4, y(tick) + 4);
  }
  context.textAlign = "center";
  const least = nice(end / 2.1), step = end / least > 3.5 ? 2 * least : least, unit = what === "time" ? " s" : " MB";
  for (let value = step; value <= end; value += step) {
    mark(context, colour, `${+value.toPrecision(3)}${unit}`, Math.min(x(value), width - 20), height - 4);
  }
  runs.forEach((run, k) => {
    context.strokeStyle = colour["ab"[k]];
    context.lineWidth = 2;
    context.setLineDash(k ? [5, 3] : []);
    context.beginPath();
    run.losses.forEach((point) => {
      if (Number.isFinite(point.loss)) context.lineTo(x(point[what]), y(Math.min(point.loss, high)));
    });
    context.stroke();
    context.setLineDash([]);
    if (run.diverged) mark(context, { quiet: colour.dead }, "NaN", x(run.losses.at(-1)[what]) - 14, 14);
  });
}

/** How many updates had which staleness, and the means. */
export function staleness(canvas, runs) {
  const { context, width, height } = pencil(canvas), colour = colours();
  const last = Math.max(7, ...runs.map((run) => run.staleness.length - 1));
  const step = (width - LEFT - 4) / (last + 1);
  axes(context, colour, width, height);
  runs.forEach((run, k) => {
    const total = run.staleness.reduce((a, b) => a + (b ?? 0), 0) || 1, bar = step / (runs.length + 0.4);
    run.staleness.forEach((count = 0, s) => {
      context.fillStyle = colour["ab"[k]];
      const size = (count / total) * (height - BOTTOM - 6);
      context.fillRect(LEFT + s * step + k * bar + 0.2 * bar, height - BOTTOM - size, bar * 0.9, size);
    });
  });
  context.textAlign = "center";
  const every = Math.ceil(last / 10);
  for (let s = 0; s <= last; s += every) mark(context, colour, s, LEFT + (s + 0.5) * step, height - 4);
  context.textAlign = "right";
  mark(context, colour, "all", LEFT - 4, 14);
  mark(context, colour, "0", LEFT - 4, height - BOTTOM);
}

/** The ball at w on the parabola, and where it has been. */
export function ball(canvas, run, stale, name = "") {
  const { context, width, height } = pencil(canvas), colour = colours();
  const middle = width / 2, floor = height - BOTTOM - 6, scale = width * 0.35;
  const w = run.cluster.w[0], x = (value) => middle + value * scale;
  const y = (value) => floor - value * value * (floor - 18) / RIM ** 2;
  context.strokeStyle = colour.quiet;
  context.lineWidth = 1.5;
  context.beginPath();
  for (let value = -RIM; value <= RIM; value += 0.05) context.lineTo(x(value), y(value));
  context.stroke();
  run.trail ??= [];
  if (run.trail.at(-1) !== w) run.trail.push(w);
  if (run.trail.length > 24) run.trail.shift();
  run.trail.forEach((value, k) => {
    if (!(Math.abs(value) <= RIM)) return;
    context.globalAlpha = (k + 1) / run.trail.length / 3;
    disc(context, colour.ps, x(value), y(value) - 5, 4);
  });
  context.globalAlpha = 1;
  const gone = !(Math.abs(w) <= RIM), side = Math.sign(w || 1);
  disc(context, gone ? colour.dead : colour.ps, x(gone ? side * RIM : w), Math.max(9, y(gone ? RIM : w) - 7), 7);
  context.textAlign = "center";
  let said = `${name}${gone ? "explodes: " : ""}rate ${run.flags.learning_rate}`;
  if (LIMITED.includes(run.flags.scheme)) {
    said += `, limit about ${(2 * Math.sin(Math.PI / (2 * (2 * stale + 1)))).toFixed(2)}`;
  }
  mark(context, gone ? { quiet: colour.dead } : colour, said, middle, height - 4);
}

function axes(context, colour, width, height) {
  context.strokeStyle = colour.line;
  context.lineWidth = 1;
  context.strokeRect(LEFT, 2, width - LEFT - 4, height - BOTTOM - 2);
}

function mark(context, colour, text, x, y) {
  context.fillStyle = colour.quiet;
  context.fillText(text, x, y);
}

function disc(context, fill, x, y, radius) {
  context.fillStyle = fill;
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.fill();
}

/** A round number that is not larger. */
function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value)), first = value / power;
  return +((first >= 5 ? 5 : first >= 2.5 ? 2.5 : first >= 2 ? 2 : 1) * power).toPrecision(3);
}
