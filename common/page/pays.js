// When more devices pay: the calculation of Basics-Tutorial/pays.py, which says what the letters mean.

import { DEVICES, LINKS, LONGEST, MODELS } from "./presets.js";

/** Of one round: seconds of computing and of sending in a ring, how many times one device all are, and
 * how many a ps feeds. */
export function pays({ model, device, link, workers: n, window: T }) {
  const { size, flops, batch } = MODELS[model], [speed, latency] = LINKS[link], bytes = speed / 8;
  const computing = (T * batch * flops) / DEVICES[device];
  const sending = 2 * (n - 1) * (latency + size / (n * bytes));
  const fed = (computing + 2 * latency + (2 * size) / bytes) / (size / bytes);
  return { computing, sending, fed, gain: (n * computing) / (computing + sending) };
}

/** The smallest window with which the devices compute for nine tenths of the time. */
export function enough(set) {
  const { computing, sending } = pays({ ...set, window: 1 });
  return Math.max(1, Math.ceil((sending * 0.9) / 0.1 / computing - 1e-9));
}

/** The calculation in one sentence. */
export function answer(set) {
  const { gain } = pays(set), much = gain < 1 ? "are slower than one" : "beat one";
  return `${set.workers} devices ${much}: at most ${shown(Math.max(gain, 0.01))} times as fast.`;
}

/** What the answer comes from, and what would change it. */
export function why(set) {
  const { computing, sending, fed } = pays(set), least = enough(set);
  const { batch, examples } = MODELS[set.model];
  let then = "The link takes less than a tenth of the time.";
  if (set.window < least) {
    then = least > LONGEST ? "No usual number of local steps makes up for that: send less."
      : `With an exchange every ${count(least)} steps: ${shown(pays({ ...set, window: least }).gain)} times.`;
  }
  return `Between two exchanges, each computes for ${duration(computing)} (${count(set.window * batch)} ${examples}), `
    + `and a ring sends for ${duration(sending)}. ${then} One parameter server could feed ${shown(fed)}.`;
}

function count(value) {
  return Math.round(value).toLocaleString("en-US");
}

function shown(value) {
  if (value < 0.01) return "under 0.01";
  if (value >= 9.95) return count(value);
  return value >= 0.995 ? value.toFixed(1) : String(+value.toPrecision(2));
}

function duration(seconds) {
  return seconds >= 0.995 ? `${shown(seconds)} s` : `${shown(1e3 * seconds)} ms`;
}

/** Puts the menus and the answer into `place`. */
export function build(place) {
  const set = { model: "an 8B language model", device: "H100", link: "100 Gbit/s", workers: 8, window: 1 };
  const menus = { model: ["I train", MODELS], device: ["on devices like", DEVICES], link: ["over", LINKS],
    workers: ["devices", [2, 4, 8, 16, 64, 256, 1024]], window: ["an exchange every ... steps", [1, 2, 5, 10, 30, 100, 500]] };
  const told = document.createElement("p"), sentence = document.createElement("strong"), reason = document.createElement("span");
  told.setAttribute("role", "status");
  told.append(sentence, " ", reason);
  const tell = () => [sentence.textContent, reason.textContent] = [answer(set), why(set)];
  for (const [name, [text, values]] of Object.entries(menus)) {
    const label = document.createElement("label"), menu = document.createElement("select");
    for (const value of Array.isArray(values) ? values : Object.keys(values)) menu.add(new Option(value, value));
    menu.value = set[name];
    menu.onchange = () => {
      set[name] = Array.isArray(values) ? +menu.value : menu.value;
      tell();
    };
    label.append(`${text} `, menu);
    place.append(label);
  }
  tell();
  place.append(told);
}
