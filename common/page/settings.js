// What a reader can set: ranges, defaults, and the address that keeps it all.

import { FORMULAS } from "./formulas.js";
import { LONGEST } from "./lanes.js";
import { SCHEMES } from "./schemes.js";

export const MBIT = [null, 1000, 100, 10, 1];
// A network of 25,000 parameters is on a link of 100 Mbit/s for 8.6 ms.
const FIXED = { batch_size: 20, hidden: 16, compute: 0.1, spread: 0.1, latency: 0.0005, request: 0,
  duplex: false, steps: Infinity, checkpoint_seconds: 1, parameters: 25_000 };
const DEFAULT = { scheme: "HogWild", workers: 4, ps: 1, link_mbit: 100, model: "mlp", seed: 0,
  slow: [], deaths: [] };

const roundTo3 = (x) => +x.toPrecision(3);
export const RATES = Array.from({ length: 29 }, (_, k) => roundTo3(10 ** (-4 + k / 4.667)));

/** The page's settings: of a name with its number, text or list. */
export const SETTINGS = {
  scheme: { read: (text) => Object.keys(SCHEMES).find((name) => name.toLowerCase() === text.toLowerCase()) },
  workers: { label: "workers", min: 1, max: 8, read: whole(1, 8) },
  ps: { label: "parameter servers", min: 1, max: 4, read: whole(1, 4) },
  window: { label: "window T", min: 1, max: 50, read: whole(1, 50) },
  learning_rate: { label: "learning rate", values: RATES, read: positive },
  max_staleness: { label: "may be ahead by s steps", min: 0, max: 10, read: whole(0, 10) },
  backup_workers: { label: "backup workers", min: 0, max: 4, read: whole(0, 4) },
  link_mbit: { label: "link of each ps", values: MBIT, read: (text) => oneOf(MBIT, text === "none" ? null : positive(text)) },
  model: { label: "it learns", options: { mlp: "digits, with an mlp", linear: "digits, linear" },
    read: (text) => oneOf(["mlp", "linear"], text) },
  seed: { label: "seed", min: 0, max: 9, read: whole(0, 9) },
  slow: { read: list((text) => (+text >= 1 && +text <= LONGEST ? +text : undefined)), write: (slow) => slow.join(",") },
  deaths: { read: list(death), write: (deaths) => deaths.map(({ at, who }) => `${who}@${at}`).join(",") },
};

function whole(min, max) {
  return (text) => (/^\d+$/.test(text) && +text >= min && +text <= max ? +text : undefined);
}

function positive(text) {
  return +text > 0 && Number.isFinite(+text) ? +text : undefined;
}

function oneOf(values, value) {
  return values.includes(value) ? value : undefined;
}

function list(each) {
  return (text) => {
    const found = text ? text.split(",").map(each) : [];
    return found.includes(undefined) ? undefined : found;
  };
}

function death(text) {
  const [, who, at] = /^(w[0-7]|ps)@(\d+(?:\.\d+)?)$/.exec(text) ?? [];
  return who && { who, at: +at };
}

/** Whether two runs can be compared that differ in this. */
export function canDiffer(scheme, name) {
  const setting = Object.hasOwn(SETTINGS, name) ? SETTINGS[name] : {};
  return name === "scheme" || Boolean(setting.label && !setting.options && has(scheme, name));
}

/** Whether a scheme has this setting. */
export function has(scheme, name) {
  const own = ["window", "max_staleness", "backup_workers"];
  return !own.includes(name) || name in FORMULAS[scheme].defaults;
}

/** All flags of a simulation, from what the reader has set. */
export function complete(set) {
  const own = FORMULAS[set.scheme ?? DEFAULT.scheme].defaults;
  const given = Object.entries(set).filter(([, value]) => value !== undefined);
  const flags = { ...FIXED, ...DEFAULT, ...own, ...Object.fromEntries(given) };
  for (const name of ["window", "max_staleness", "backup_workers"]) {
    if (!has(flags.scheme, name)) delete flags[name];
  }
  if (flags.backup_workers >= flags.workers) flags.backup_workers = flags.workers - 1;
  if ("moving_rate" in own) flags.moving_rate ??= 0.9 / flags.workers;
  flags.slow = flags.slow.slice(0, flags.workers);
  flags.delay = {};
  flags.slow.forEach((factor, k) => {
    if (factor > 1) flags.delay[k] = (factor - 1) * flags.compute;
  });
  return flags;
}

/** The settings in an address such as `#scheme=AGN&workers=8`. What is wrong is left out, and goes into
 * `wrong`. */
export function fromAddress(hash, wrong = []) {
  const found = {};
  for (const [name, text] of new URLSearchParams(hash.replace(/^#/, ""))) {
    const value = Object.hasOwn(SETTINGS, name) ? SETTINGS[name].read(text) : undefined;
    if (value !== undefined) found[name] = value;
    else if (name !== "other") wrong.push(`${name}=${text}`);
  }
  return found;
}

/** A setting's value as a word of the address. */
export function inAddress(name, value) {
  return value === null ? "none" : (SETTINGS[name].write ?? String)(value);
}

/** The address of settings; what has its default is left out. */
export function toAddress(set) {
  const words = new URLSearchParams(), usual = complete({ scheme: set.scheme });
  for (const name of Object.keys(SETTINGS)) {
    if (set[name] === undefined) continue;
    const text = inAddress(name, set[name]);
    if (text !== "" && (name === "scheme" || text !== inAddress(name, usual[name]))) words.set(name, text);
  }
  return `#${words.toString().replaceAll("%2C", ",").replaceAll("%40", "@")}`;
}
