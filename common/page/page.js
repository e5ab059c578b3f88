// The page "Who waits?": what the reader sets, the clock, and what is drawn.

import { CASES } from "./cases.js";
import { DIGITS } from "./digits.js";
import { FORMULAS } from "./formulas.js";
import { Lanes } from "./lanes.js";
import { ball, losses, staleness } from "./plots.js";
import { complete, fromAddress, has, SETTINGS, toAddress } from "./settings.js";
import { Simulation } from "./simulation.js";

const FRAME = 11, SECONDS = 120; // milliseconds of simulating in a frame; until the run ends
const $ = (id) => document.getElementById(id);
const { root, pages } = document.documentElement.dataset; // of the collection; on its site, of pages
const page = (path) => root + (pages ? path.replace(/\.(md|ipynb)(?=#|$)/, ".html") : path);
const TREE = { // what each scheme changes in the one above it
  "Nobody waits": ["HogWild", "each gradient at once", [
    ["Staleness-Aware", "rate / staleness"], ["DC-ASGD", "corrects the delay"],
    ["Stale-Synchronous-Parallel", "but at most s steps ahead"],
    ["AGN", "mean of T local steps", [["Plain-DOWNPOUR", "their sum", [
      ["DOWNPOUR-Easy", "Adagrad on the ps", [["DOWNPOUR", "and in the workers"]]],
      ["Dynamic-SGD", "the sum / (staleness + 1)"]]]]],
    ["AEASGD", "each worker has its own w", [["AEAMSGD", "with momentum"]]]]],
  "All wait for each other": ["Synchronous-SGD", "the mean of all gradients", [
    ["Synchronous-SGD-different-learning-rates", "a rate for each"], ["Sign-SGD", "one bit for each parameter"],
    ["SAGN", "means of T local steps"],
    ["Local-SGD", "T local steps, then the mean of w", [["DiLoCo", "AdamW inside, momentum outside", [
      ["Async-DiLoCo", "nobody waits"]]]]]]],
};

let set = {}; // what differs from the defaults
let other = null; // the one difference of the second run: a name and a value
let runs = [], balls = [], lanes = [];
let dirty = false; // whether the reader changed something that is not simulated yet
let ready = true;
let time = 0, playing = !matchMedia("(prefers-reduced-motion: reduce)").matches, before = 0, said = 0;

// The runs.

function simulate() {
  const all = [set, ...(other ? [{ ...set, ...other }] : [])].map(complete);
  runs = all.map((flags) => new Simulation(flags, DIGITS));
  balls = all.map((flags) => new Simulation({ ...flags, model: "none" }));
  [dirty, said] = [false, 0];
}

/** The reader changed something: the same seconds again, with it. */
function change(more) {
  set = { ...set, ...more };
  history.replaceState(null, "", address());
  arrange();
}

function address() {
  return toAddress(set) + (other ? `&other=${toAddress({ scheme: set.scheme, ...other }).split("&").at(-1).replace("#", "").replace("=", ":")}` : "");
}

function arrange() {
  const titles = other ? ["A", `B: ${describe(other)}`] : [""];
  if (lanes.length !== titles.length) {
    $("runs").replaceChildren();
    $("runs").className = other ? "two" : "";
    lanes = titles.map((title, k) => {
      const place = document.createElement("div");
      place.className = `run ${"ab"[k]}`;
      $("runs").append(place);
      return new Lanes(place, title, { slow, kill });
    });
  }
  lanes.forEach((each, k) => (each.heading.textContent = titles[k]));
  lanes.forEach((each, k) => each.label([set, { ...set, ...other }].map(complete)[k]));
  dirty = true;
  show();
}

function slow(k, factor) {
  const { workers } = complete(set), factors = Array.from({ length: workers }, (_, i) => set.slow?.[i] ?? 1);
  factors[k] = factor;
  change({ slow: factors.some((each) => each > 1) ? factors : [] });
}

/** It dies now; what would happen later does not. */
function kill(who) {
  const at = Math.ceil(time * 100) / 100;
  change({ deaths: [...(set.deaths ?? []).filter((death) => death.at < at), { who, at }] });
}

// The clock.

function span() {
  return 2.5 * Math.sqrt(complete(set).window ?? 1);
}

function frame(now) {
  const passed = before ? Math.min(now - before, 100) / 1000 : 0;
  before = now;
  const speed = 2 ** +$("speed").value;
  const wanted = Math.min(SECONDS, time + (playing ? passed * speed * (span() / 6) : 0));
  if (dirty && ready) simulate();
  const until = performance.now() + FRAME;
  ready = true; // once all runs have got there
  for (const run of [...runs, ...balls]) {
    ready = run.advance(wanted, Math.max(1, until - performance.now())) && ready;
  }
  if (ready) { // until then, the old picture stays
    time = wanted;
    if (time === SECONDS) pause();
    draw();
  }
  requestAnimationFrame(frame);
}

function pause(on = true) {
  playing = !on;
  $("play").textContent = playing ? "❚❚ Pause" : "▶ Play";
  $("words").setAttribute("aria-live", playing ? "off" : "polite"); // not ten times a second
}

function nextEvent() {
  pause();
  if (!ready || dirty) return;
  runs[0].step();
  time = Math.max(time, runs[0].now);
}

// What is drawn.

function draw() {
  lanes.forEach((each, k) => each.draw(runs[k], time, span()));
  losses($("loss"), runs, "time");
  losses($("bytes"), runs, "bytes");
  staleness($("staleness"), runs);
  ball($("ball"), balls[0], mean(runs[0]));
  $("clock").textContent = `${time.toFixed(1)} s, ${runs[0].cluster.updates} updates`;
  if (Math.abs(time - said) > 0.5 || !said) words();
}

function mean({ staleness: counts }) {
  const total = counts.reduce((a, b) => a + (b ?? 0), 0);
  return total ? counts.reduce((sum, count, s) => sum + s * (count ?? 0), 0) / total : 0;
}

/** In words: what the pictures show. */
function words() {
  said = time || 0.01;
  $("words").textContent = runs.map((run, k) => (runs.length > 1 ? `${"AB"[k]}: ` : "") + told(run)).join(" ");
}

function told(run) {
  const shares = run.steps.map((mine) => {
    const spent = { wait: 0, link: 0, all: 0 };
    for (const { began, asked, got, computed, told } of mine) {
      spent.wait += asked - began;
      spent.link += got - asked + Math.max(0, told - computed);
      spent.all += told - began;
    }
    return spent;
  });
  const share = (what) => Math.round(100 * shares.reduce((sum, each) => sum + each[what], 0)
    / Math.max(1e-9, shares.reduce((sum, each) => sum + each.all, 0)));
  const loss = run.losses.at(-1);
  const slowest = run.flags.slow.indexOf(Math.max(1.0001, ...run.flags.slow));
  const words = [`${run.flags.workers} workers have made ${run.cluster.updates} updates in ${time.toFixed(0)} s.`];
  if (slowest >= 0) words.push(`Worker ${slowest} takes ${run.flags.slow[slowest]} times as long.`);
  words.push(`The workers wait for others ${share("wait")}% of their time, and for the link ${share("link")}%.`);
  words.push(`An update is ${mean(run).toFixed(1)} updates old on average.`);
  for (const fall of run.falls) {
    if (fall.who !== "ps") words.push(`Worker ${fall.who.slice(1)} is ${fall.back < Infinity ? "back" : "dead"}.`);
    else words.push(`The ps died after update ${fall.from} and went back to ${fall.to}.`);
  }
  if (run.diverged) words.push("The loss is no number any more: the rate is too high.");
  else if (loss) words.push(`The test loss is ${loss.loss.toPrecision(2)}.`);
  return words.join(" ");
}

// Menus.

function show() {
  const flags = complete(set), { formula, source, folder } = FORMULAS[flags.scheme];
  $("formula").innerHTML = "<strong></strong> <code></code> <span></span>";
  const [name, code, from] = $("formula").children;
  name.textContent = flags.scheme;
  code.textContent = formula.replaceAll("<-", "←").replaceAll(" eta", " η").replaceAll("alpha", "α").replaceAll("lambda", "λ").replaceAll("w~", "w̃");
  from.innerHTML = folder ? `<a href="${page(`${flags.scheme}/README.md`)}"></a>` : "<span></span>";
  from.firstChild.textContent = source.split(": ")[0].split(". ")[0];
  document.querySelectorAll("#schemes button").forEach((button) =>
    button.setAttribute("aria-pressed", String(button.dataset.scheme === flags.scheme)));
  const controls = Object.entries(SETTINGS).filter(([each, { label }]) => label && has(flags.scheme, each));
  $("settings").replaceChildren(...controls.map(([each, setting]) =>
    control(each, setting, flags[each], (value) => change({ [each]: value }))));
  compareMenu(flags, controls);
}

/** A slider or a menu for one setting. It keeps the focus while it is used. */
function control(name, setting, value, on) {
  const label = document.createElement("label"), shown = document.createElement("output");
  const text = (each) => (name === "link_mbit" ? (each ? `${each} Mbit/s` : "no limit") : String(each));
  label.append(setting.label, shown);
  if (setting.options) {
    const menu = document.createElement("select");
    for (const [key, told] of Object.entries(setting.options)) menu.add(new Option(told, key, false, key === value));
    menu.onchange = () => on(menu.value);
    label.append(menu);
    return label;
  }
  const slider = document.createElement("input"), { values } = setting;
  slider.type = "range";
  slider.id = `set-${name}`;
  [slider.min, slider.max] = values ? [0, values.length - 1] : [setting.min, setting.max];
  slider.value = values ? nearest(values, value) : value;
  const now = () => (values ? values[+slider.value] : +slider.value);
  shown.textContent = text(value);
  slider.setAttribute("aria-valuetext", text(value));
  slider.oninput = () => {
    on(now());
    $(slider.id)?.focus();
  };
  label.append(slider);
  return label;
}

function nearest(values, value) {
  if (value === null) return values.indexOf(null);
  const away = (each) => (each ? Math.abs(Math.log(each / value)) : Infinity);
  return values.reduce((best, each, k) => (away(each) < away(values[best]) ? k : best), 0);
}

function compareMenu(flags, controls) {
  const menu = document.createElement("select"), [chosen] = Object.keys(other ?? {});
  menu.add(new Option("nothing", ""));
  menu.add(new Option("another scheme", "scheme", false, chosen === "scheme"));
  for (const [name, { label, options }] of controls) if (!options) menu.add(new Option(`another ${label}`, name, false, chosen === name));
  menu.onchange = () => {
    other = menu.value ? { [menu.value]: different(menu.value, flags) } : null;
    change({});
  };
  const label = document.createElement("label");
  label.append("Compare with ", menu);
  $("compare").replaceChildren(label);
  if (chosen === "scheme") {
    const schemes = document.createElement("select");
    for (const name of Object.keys(FORMULAS)) schemes.add(new Option(name, name, false, name === other.scheme));
    schemes.setAttribute("aria-label", "the other scheme");
    schemes.onchange = () => ((other = { scheme: schemes.value }), change({}));
    $("compare").append(schemes);
  } else if (chosen) {
    $("compare").append(control(chosen, { ...SETTINGS[chosen], label: `B: ${SETTINGS[chosen].label}` }, other[chosen],
      (value) => ((other = { [chosen]: value }), change({}))));
  }
}

function different(name, flags) {
  if (name === "scheme") return flags.scheme === "Synchronous-SGD" ? "HogWild" : "Synchronous-SGD";
  const { values, min, max } = SETTINGS[name];
  if (!values) return flags[name] * 2 <= max ? Math.max(min, flags[name] * 2) || 1 : min;
  const k = nearest(values, flags[name]);
  return values[k + 3 < values.length ? k + 3 : k - 3];
}

function describe(difference) {
  const [[name, value]] = Object.entries(difference);
  if (name === "scheme") return value;
  return `${SETTINGS[name].label} ${name === "link_mbit" ? (value ? `${value} Mbit/s` : "no limit") : value}`;
}

function choose(scheme) {
  const { slow, workers, ps, link_mbit, model, seed } = set; // the rest is of the old scheme
  const kept = Object.fromEntries(Object.entries({ slow, workers, ps, link_mbit, model, seed }).filter(([, value]) => value !== undefined));
  set = {};
  if (other && !has(scheme, Object.keys(other)[0])) other = null;
  change({ scheme, ...kept });
}

function branch([scheme, text, children = []]) {
  const item = document.createElement("li"), button = document.createElement("button"), small = document.createElement("small");
  Object.assign(button, { type: "button", textContent: scheme.replace("-different-learning-rates", ", own rates") });
  button.dataset.scheme = scheme;
  button.onclick = () => choose(scheme);
  small.textContent = text;
  item.append(button, document.createElement("br"), small);
  if (children.length) {
    const list = document.createElement("ul");
    list.append(...children.map(branch));
    item.append(list);
  }
  return item;
}

function build() {
  const groups = document.createElement("div");
  for (const [title, root] of Object.entries(TREE)) {
    const heading = document.createElement("h2"), list = document.createElement("ul");
    heading.textContent = title;
    list.append(branch(root));
    groups.append(heading, list);
  }
  $("schemes").append(groups);
  for (const { title, address: where, text, explained } of CASES) {
    const item = document.createElement("li"), button = document.createElement("button"), more = document.createElement("a");
    Object.assign(button, { type: "button", textContent: title });
    button.onclick = () => {
      history.replaceState(null, "", where);
      read();
      pause(false);
      $("stage").scrollIntoView({ behavior: "smooth", block: "start" });
    };
    Object.assign(more, { href: page(explained), textContent: "More" });
    item.append(button, document.createElement("br"), `${text} `, more);
    $("cases").append(item);
  }
  $("play").onclick = () => pause(playing);
  $("event").onclick = nextEvent;
  $("again").onclick = () => ((time = 0), arrange());
  $("copy").onclick = async () => {
    await navigator.clipboard?.writeText(location.href).catch(() => {});
    $("copied").textContent = "copied";
  };
  window.addEventListener("hashchange", read);
}

/** What the address says. */
function read() {
  const words = new URLSearchParams(location.hash.replace(/^#/, "")), [name, value] = (words.get("other") ?? "").split(":");
  set = fromAddress(location.hash);
  if (!location.hash) set = { scheme: "Synchronous-SGD", slow: [1, 1, 1, 3] };
  const found = fromAddress(`#${name}=${value}`);
  other = name in found ? found : null;
  time = 0;
  arrange();
  simulate();
}

if (new URLSearchParams(location.search).has("frame")) document.body.className = "frame";
build();
pause(!playing);
read();
if (!playing) time = 4; // a full picture, which stands still
requestAnimationFrame(frame);
