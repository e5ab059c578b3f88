// The page of a run that really happened.

import { Lanes, ROW } from "./lanes.js";
import { losses, staleness } from "./plots.js";
import { Recorded } from "./recorded.js";

const $ = (id) => document.getElementById(id);
const run = new Recorded(RUN);
let time = 0, playing = false, before = 0;
const lanes = new Lanes($("runs"), null);

/** Seconds that the lanes show: from 20 steps to all of the run. */
function span() {
  const steps = Math.max(1, ...run.steps.map((mine) => mine.length));
  const least = Math.min(run.end, (20 * run.end) / steps) || 1;
  return least * (run.end / least) ** (+$("span").value / 100);
}

function draw() {
  lanes.draw(run, time, span());
  losses($("loss"), [{ ...run, losses: run.losses.filter((each) => each.time <= time) }], "time", run.end);
  staleness($("staleness"), [run]);
  const made = run.updates.filter((update) => update.time <= time).length;
  $("clock").textContent = `${time.toFixed(2)} of ${run.end.toFixed(1)} s, ${made} updates`;
  $("time").value = run.end ? (1000 * time) / run.end : 0;
  $("time").setAttribute("aria-valuetext", `${time.toFixed(2)} seconds`);
}

function frame(now) {
  if (playing) {
    time = Math.min(run.end, time + (Math.min(now - before, 100) / 6000) * span());
    if (time === run.end) pause();
  }
  before = now;
  draw();
  requestAnimationFrame(frame);
}

function pause(on = true) {
  playing = !on;
  if (playing && time >= run.end) time = 0;
  $("play").textContent = playing ? "❚❚ Pause" : "▶ Play";
}

/** Says what a worker did at some time. */
function tell(k, when) {
  const step = run.at(k, when);
  if (!step) return;
  const ms = (from, to) => `${((to - from) * 1000).toFixed(1)} ms`;
  const stale = step.pulledAt === null ? "" : ` It had pulled the parameters after update ${step.pulledAt}; others made `
    + `${step.staleness} in between, its staleness.`;
  $("words").textContent = `Worker ${k}, update ${step.number}, at ${step.counted.toFixed(3)} s: loss ${step.loss === null ? "no number" : step.loss.toPrecision(3)}.${stale} `
    + `It waited ${ms(step.began, step.asked)}, pulled ${ms(step.asked, step.got)}, computed ${ms(step.got, step.computed)}, `
    + `pushed ${ms(step.computed, step.told)}.`;
}

$("title").textContent = RUN.title;
$("about").textContent = RUN.about;
document.title = RUN.title;
lanes.label(run.flags, "");
lanes.grid.querySelectorAll("input, .lane button").forEach((each) => each.remove());
lanes.canvas.onpointerdown = (event) => {
  const start = Math.max(0, time - span() * 0.97);
  tell(Math.floor(event.offsetY / ROW), start + (event.offsetX / lanes.canvas.clientWidth) * span());
  pause();
};
lanes.canvas.onpointermove = null;
document.onkeydown = ({ key }) => key >= "0" && key <= "7" && tell(+key, time);
$("play").onclick = () => pause(playing);
$("time").oninput = () => {
  pause();
  time = ($("time").value / 1000) * run.end;
};
if (RUN.running) { // the launcher writes this file again while the run goes on
  time = run.end;
  setTimeout(() => location.reload(), 5000);
} else if (!matchMedia("(prefers-reduced-motion: reduce)").matches) pause(false);
pause(!playing);
if (self !== top) { // in another page, which makes room for it, and says whether it is dark
  window.addEventListener("message", ({ data }) => data.theme && (document.documentElement.dataset.theme = data.theme));
  new ResizeObserver(() => parent.postMessage({ height: document.body.offsetHeight + 8 }, "*")).observe(document.body);
}
requestAnimationFrame(frame);
