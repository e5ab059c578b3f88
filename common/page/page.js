// The page "Who waits?": what the reader sets, the clock, and what is drawn.

import { CASES } from "./cases.js";
import { DIGITS } from "./digits.js";
import { FORMULAS } from "./formulas.js";
import { build as buildMine } from "./pays.js";
import { Lanes } from "./lanes.js";
import { ball, losses, staleness } from "./plots.js";
import { canDiffer, complete, fromAddress, has, inAddress, SETTINGS, toAddress } from "./settings.js";
import { Simulation } from "./simulation.js";

const FRAME = 11, SECONDS = 120; // milliseconds of simulating in a frame; until the run ends
const FRAMED = new URLSearchParams(location.search).get("frame"); // in another page; "plots": with them
const FIRST = 4; // seconds that the picture shows if nothing should move
const $ = (id) => document.getElementById(id);
const still = matchMedia("(prefers-reduced-motion: reduce)");
const { root, pages } = document.documentElement.dataset; // of the collection; on its site, of pages
const slug = (anchor) => anchor.toLowerCase().replace(/[^\w#-]/g, ""); // as on the site
const page = (path) => root + (pages ? path.replace(/\.(md|ipynb)(?=#|$)/, ".html").replace(/#.*/, slug) : path);
const TREE = { // what each scheme changes in the one above it
  "HogWild!, and what came of it": ["HogWild", "each gradient at once", [
    ["Staleness-Aware", "rate / staleness"], ["DC-ASGD", "corrects the delay"],
    ["Stale-Synchronous-Parallel", "but at most s steps ahead"],
    ["AGN", "mean of T local steps", [["Plain-DOWNPOUR", "their sum", [
      ["DOWNPOUR-Easy", "Adagrad on the ps", [["DOWNPOUR", "and in the workers"]]],
      ["Dynamic-SGD", "the sum / (staleness + 1)"]]]]],
    ["AEASGD", "each worker has its own w", [["AEAMSGD", "with momentum"]]]]],
  "Synchronous SGD, and what came of it": ["Synchronous-SGD", "the mean of all gradients", [
    ["Synchronous-SGD-different-learning-rates", "a rate for each"], ["Sign-SGD", "one bit for each parameter"],
    ["SAGN", "means of T local steps"],
    ["Local-SGD", "T local steps, then the mean of w", [["DiLoCo", "AdamW inside, momentum outside", [
      ["Async-DiLoCo", "nobody waits"]]]]]]],
};

let set = {}; // what differs from the defaults
let other = null; // the one difference of the second run: a name and a value
let runs = [], balls = [], lanes = [];
let dirty = false; // whether the reader changed something that is not simulated yet
let ready = true; // whether all runs have come to `time`
let time = 0, playing = !still.matches, before = 0, said = -1, saved = 0;

// The runs.

/** Both runs' flags. */
function both() {
  return [set, ...(other ? [{ ...set, ...other }] : [])].map(complete);
}

function simulate() {
  const all = both(), first = other?.scheme ? `A: ${all[0].scheme}` : "A";
  const titles = other ? [first, `B: ${describe(other)}`] : [""];
  runs = all.map((flags) => new Simulation(flags, DIGITS));
  balls = all.map((flags) => new Simulation({ ...flags, model: "none" }));
  if (lanes.length !== all.length) {
    $("runs").replaceChildren();
    $("runs").className = other ? "two" : "";
    lanes = titles.map((_, k) => {
      const place = document.createElement("div");
      place.className = `run ${"ab"[k]}`;
      $("runs").append(place);
      return new Lanes(place, { slow, kill });
    });
  }
  lanes.forEach((each, k) => each.label(all[k], titles[k]));
  [dirty, ready, said] = [false, false, -1];
}

/** The reader changed something: the same seconds again, with it. */
function change(more) {
  set = { ...set, ...more };
  dirty = true;
  $("copied").textContent = "";
  show();
  clearTimeout(saved); // a browser refuses too many changes of the address
  saved = setTimeout(() => history.replaceState(null, "", address()), 200);
}

function address() {
  const [name] = Object.keys(other ?? {});
  return toAddress(set) + (other ? `&other=${name}:${inAddress(name, other[name])}` : "");
}

function slow(k, factor) {
  const count = Math.max(k + 1, set.slow?.length ?? 0);
  const factors = Array.from({ length: count }, (_, i) => set.slow?.[i] ?? 1);
  factors[k] = factor;
  change({ slow: factors.some((each) => each > 1) ? factors : undefined });
}

/** It dies now, or comes back; what would happen later does not. A second click takes it back. */
function kill(who) {
  const at = Math.floor(time * 100) / 100, past = (set.deaths ?? []).filter((death) => death.at <= at);
  const last = past.at(-1);
  if (last && last.who === who && last.at === at) past.pop();
  else past.push({ who, at });
  change({ deaths: past.length ? past : undefined });
}

// The clock.

function span() {
  return 2.5 * Math.sqrt(complete(set).window ?? 1);
}

function frame(now) {
  requestAnimationFrame(frame);
  const passed = before ? Math.min(now - before, 100) / 1000 : 0;
  before = now;
  const wanted = Math.min(SECONDS, time + (playing && !dirty ? passed * pace() * (span() / 6) : 0));
  if (dirty && ready) simulate();
  const until = performance.now() + FRAME;
  ready = true;
  for (const run of [...runs, ...balls]) {
    ready = run.advance(wanted, Math.max(1, until - performance.now())) && ready;
  }
  if (!ready) return; // until then, the old picture stays
  time = wanted;
  if (time === SECONDS && playing) pause();
  draw();
}

function pace() {
  return 2 ** +$("speed").value;
}

function pause(on = true) {
  if (!on && time >= SECONDS) restart();
  playing = !on;
  $("play").textContent = playing ? "❚❚ Pause" : "▶ Play";
  $("words").setAttribute("aria-live", playing ? "off" : "polite"); // not ten times a second
  said = -1;
}

function restart() {
  time = still.matches ? FIRST : 0;
  dirty = true;
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
  ball($("ball"), balls[0], mean(runs[0]), other ? "A: " : "");
  write($("clock"), `${time.toFixed(2)} s, ${runs[0].cluster.updates} updates`);
  if (said < 0 || Math.abs(time - said) > (playing ? 0.5 : 0)) words();
}

function write(place, text) {
  if (place.textContent !== text) place.textContent = text;
}

function mean({ staleness: counts }) {
  const total = counts.reduce((a, b) => a + (b ?? 0), 0);
  return total ? counts.reduce((sum, count, s) => sum + s * (count ?? 0), 0) / total : 0;
}

/** In words: what the pictures show. */
function words() {
  said = time;
  write($("words"), runs.map((run, k) => (runs.length > 1 ? `${"AB"[k]}: ` : "") + told(run)).join(" "));
}

/** The parts of all workers' time in which they wait for others, and for the link; of the steps
 * that go on, too. */
function shares(run) {
  const spent = { wait: 0, link: 0, all: 0 };
  run.steps.forEach((mine, k) => {
    const living = !run.isDead(`w${k}`) && !run.isDown();
    for (const { began, asked, got, computed, told } of [...mine, ...(living ? [run.current(k, time)] : [])]) {
      spent.wait += asked - began;
      spent.link += Math.max(0, got - asked) + Math.max(0, told - Math.max(got, computed));
      spent.all += told - began;
    }
    for (const { time: from, back, who } of run.falls) {
      if (who !== "ps") continue;
      spent.wait += Math.min(back, time) - from;
      spent.all += Math.min(back, time) - from;
    }
  });
  return ["wait", "link"].map((what) => Math.round((100 * spent[what]) / Math.max(1e-9, spent.all)));
}

function told(run) {
  const [wait, link] = shares(run), loss = run.losses.at(-1), { slow, workers } = run.flags;
  const many = workers > 1 ? `${workers} workers have` : "One worker has", old = mean(run);
  const found = [`${many} made ${run.cluster.updates} updates in ${time.toFixed(1)} s.`];
  slow.forEach((factor, k) => factor > 1 && found.push(`Worker ${k} takes ${factor} times as long.`));
  found.push(`The workers wait for others ${wait}% of their time, and for the link ${link}%.`);
  found.push(`A gradient is ${old ? old.toFixed(1) : "0"} updates old on average.`);
  for (const { who, back, from, to } of run.falls) {
    const round = isSynchronous(run.flags.scheme) && !run.flags.backup_workers ? ", so the round cannot end" : "";
    if (who !== "ps") found.push(`Worker ${who.slice(1)} is ${back < Infinity ? "back" : `dead${round}`}.`);
    else if (back > time) found.push(`The ps is dead: all wait for it.`);
    else found.push(`The ps died after update ${from} and went back to ${to}.`);
  }
  if (run.diverged) found.push("The loss is no number any more: the rate is too high.");
  else if (loss) found.push(`The test loss is ${loss.loss.toPrecision(2)}${loss.loss > 2.2 && loss.loss < 2.5 ? ", as if it guessed" : ""}.`);
  return found.join(" ");
}

// Menus. They are built again only if there are other settings, so that a slider can be dragged.

let built = "", controls = {};

function show() {
  const flags = complete(set), [chosen = ""] = Object.keys(other ?? {});
  describeScheme(flags.scheme);
  $("pick").value = flags.scheme;
  $("whole").firstChild.href = `index.html${address()}`;
  document.querySelectorAll("#schemes button").forEach((button) =>
    button.setAttribute("aria-pressed", String(button.dataset.scheme === flags.scheme)));
  $("spare").hidden = !set.deaths?.length;
  const names = Object.keys(SETTINGS).filter((name) => SETTINGS[name].label && has(flags.scheme, name));
  if (built !== [...names, chosen].join()) {
    const focused = document.activeElement?.id;
    built = [...names, chosen].join();
    controls = Object.fromEntries(names.map((name) =>
      [name, control(name, "", (value) => change({ [name]: value }))]));
    $("settings").replaceChildren(...names.map((name) => controls[name].place));
    compareMenu(flags, chosen);
    if (focused) $(focused)?.focus();
  }
  for (const name of names) controls[name].update(flags[name]);
  if (chosen) controls[`other-${chosen}`].update(other[chosen]);
}

function isSynchronous(scheme) {
  return Object.values(TREE)[1].flat(Infinity).includes(scheme) && scheme !== "Async-DiLoCo";
}

function describeScheme(scheme) {
  const { formula, cite, folder } = FORMULAS[scheme], place = $("formula");
  if (place.dataset.scheme === scheme) return;
  place.dataset.scheme = scheme;
  place.innerHTML = "<strong></strong> <code></code> <span></span> <a></a>";
  const [name, code, from, link] = place.children;
  [name.textContent, code.textContent, from.textContent] = [scheme, formula, cite];
  if (folder) Object.assign(link, { href: page(`${scheme}/README.md`), textContent: "Run it", target: "_top" });
  else link.remove();
}

function shownAs(name, value) {
  return name === "link_mbit" ? (value ? `${value} Mbit/s` : "no limit") : String(value);
}

/** A slider or a menu for one setting; `on(value)` is called, and `update(value)` shows one. */
function control(name, prefix, on) {
  const setting = SETTINGS[name], id = `set-${prefix}${name}`, { values } = setting;
  const place = document.createElement("div"), label = document.createElement("label");
  const shown = document.createElement("span");
  place.className = "setting";
  Object.assign(label, { htmlFor: id, textContent: prefix ? `B: ${setting.label ?? "scheme"}` : setting.label });
  const options = name === "scheme" ? Object.fromEntries(Object.keys(FORMULAS).map((each) => [each, each]))
    : setting.options;
  if (options) {
    const menu = document.createElement("select");
    menu.id = id;
    for (const [key, text] of Object.entries(options)) menu.add(new Option(text, key));
    menu.onchange = () => on(menu.value);
    place.append(label, menu);
    return { place, update: (value) => (menu.value = value) };
  }
  const slider = document.createElement("input");
  Object.assign(slider, { type: "range", id });
  [slider.min, slider.max] = values ? [0, values.length - 1] : [setting.min, setting.max];
  slider.oninput = () => on(values ? values[+slider.value] : +slider.value);
  place.append(label, shown, slider);
  const update = (value) => {
    slider.value = values ? nearest(values, value) : value;
    shown.textContent = shownAs(name, value);
    slider.setAttribute("aria-valuetext", shownAs(name, value));
  };
  return { place, update };
}

function nearest(values, value) {
  if (value === null) return values.indexOf(null);
  const away = (each) => (each ? Math.abs(Math.log(each / value)) : Infinity);
  return values.reduce((best, each, k) => (away(each) < away(values[best]) ? k : best), 0);
}

function compareMenu(flags, chosen) {
  const label = document.createElement("label"), menu = document.createElement("select");
  Object.assign(label, { htmlFor: "set-compare", textContent: "Compare with" });
  menu.id = "set-compare";
  menu.add(new Option("nothing", ""));
  menu.add(new Option("another scheme", "scheme"));
  for (const [name, { label: text }] of Object.entries(SETTINGS)) {
    if (text && canDiffer(flags.scheme, name)) menu.add(new Option(`another ${text}`, name));
  }
  menu.value = chosen;
  menu.onchange = () => {
    other = menu.value ? { [menu.value]: different(menu.value, complete(set)) } : null;
    change({});
  };
  $("compare").replaceChildren(label, menu);
  if (!chosen) return;
  const second = control(chosen, "other-", (value) => ((other = { [chosen]: value }), change({})));
  controls[`other-${chosen}`] = second;
  $("compare").append(second.place);
}

function different(name, flags) {
  if (name === "scheme") return flags.scheme === "Synchronous-SGD" ? "HogWild" : "Synchronous-SGD";
  const { values, min, max } = SETTINGS[name];
  if (!values) return flags[name] * 2 <= max ? Math.max(min, flags[name] * 2) || 1 : min;
  const k = nearest(values, flags[name]);
  return values[k + 3] ?? values[Math.max(0, k - 3)];
}

function describe(difference) {
  const [[name, value]] = Object.entries(difference);
  return name === "scheme" ? value : `${SETTINGS[name].label} ${shownAs(name, value)}`;
}

/** Another scheme: what only the old one has, and its rate, is forgotten. */
function choose(scheme) {
  const { slow, workers, ps, link_mbit, model, seed } = set;
  set = {};
  if (other && !canDiffer(scheme, Object.keys(other)[0])) other = null;
  change({ scheme, slow, workers, ps, link_mbit, model, seed });
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
  const groups = document.createElement("div"), hint = document.createElement("p");
  hint.textContent = "Indented: what a scheme changes in the one above it.";
  groups.append(hint);
  for (const scheme of Object.keys(FORMULAS)) $("pick").add(new Option(scheme, scheme));
  $("pick").onchange = () => choose($("pick").value);
  for (const [title, first] of Object.entries(TREE)) {
    const heading = document.createElement("h2"), list = document.createElement("ul");
    heading.textContent = title;
    list.append(branch(first));
    groups.append(heading, list);
  }
  $("schemes").append(groups);
  for (const { title, address: where, text, explained } of CASES) {
    const item = document.createElement("li"), button = document.createElement("button"), more = document.createElement("a");
    Object.assign(button, { type: "button", textContent: title });
    button.onclick = () => {
      history.replaceState(null, "", where);
      read();
      pause(still.matches);
      $("stage").scrollIntoView({ behavior: still.matches ? "auto" : "smooth", block: "start" });
    };
    Object.assign(more, { href: page(explained), textContent: "More" });
    item.append(button, document.createElement("br"), `${text} `, more);
    $("cases").append(item);
  }
  buildMine($("mine"));
  $("play").onclick = () => pause(playing);
  $("event").onclick = nextEvent;
  $("again").onclick = restart;
  $("spare").onclick = () => change({ deaths: undefined });
  $("speed").oninput = () => $("speed").setAttribute("aria-valuetext", `${pace()} times`);
  $("speed").oninput();
  $("copy").onclick = async () => {
    try {
      history.replaceState(null, "", address());
      await navigator.clipboard.writeText(location.href);
      $("copied").textContent = "copied";
    } catch {
      $("copied").textContent = "not copied: take it from the address bar";
    }
  };
  $("skip").onclick = (event) => { // the address belongs to the settings
    event.preventDefault();
    $("words").focus();
  };
  window.addEventListener("hashchange", read);
}

/** What the address says. */
function read() {
  const [name = "", value = ""] = (new URLSearchParams(location.hash.slice(1)).get("other") ?? "").split(/:(.*)/);
  clearTimeout(saved);
  const wrong = [];
  set = fromAddress(location.hash, wrong);
  if (!location.hash) set = { scheme: "Synchronous-SGD", slow: [1, 1, 1, 3] };
  const found = fromAddress(`#${name}=${value}`);
  other = name in found && canDiffer(complete(set).scheme, name) ? { [name]: found[name] } : null;
  restart();
  show();
  if (wrong.length) $("copied").textContent = `Left out, as it is not understood: ${wrong.join(", ")}`;
  const about = location.hash ? CASES.find((each) => each.address === location.hash)?.text ?? ""
    : "Synchronous SGD: worker 3 takes three times as long, and the others wait for it.";
  $("lead").textContent = `${about} Drag on a worker's lane to make it slower or faster; ☠ kills it.`;
}

if (FRAMED !== null) {
  document.body.className = `frame ${FRAMED}`;
  window.addEventListener("message", ({ data }) => { // the other page is light or dark
    if (data.theme) document.documentElement.dataset.theme = data.theme;
  });
  new ResizeObserver(() => parent.postMessage({ height: document.body.offsetHeight + 8 }, "*")).observe(document.body);
}
build();
pause(!playing);
read();
requestAnimationFrame(frame);
