// A run of the page: a cluster, what it does, and who dies.

import { Cluster, synchronous } from "./cluster.js";
import { Parabola, Problem } from "./learning.js";
import { SCHEMES } from "./schemes.js";

const SHOWN = 300; // test examples of a look at the loss, at most
const APART = 0.02; // of the time: how far apart two looks are
export const DOWN = 1; // seconds until a ps that died is back

export class Simulation {
  /**
   * @param flags of `settings.js`, complete
   * @param data of `digits.js`; not needed for model "none"
   *
   * Attributes:
   *   steps: of each worker, its finished steps: times (`began`, `asked`, `got`, `computed`,
   *     `counted`, `told`), `number`, `pulledAt`, `staleness`, `loss`
   *   updates: `{ time, number, workers }`; losses: `{ time, bytes, number, loss }`
   *   staleness: how many updates had 0, 1, 2, ...
   *   falls: `{ time, back, who }`, from a death until it is back
   */
  constructor(flags, data) {
    Object.assign(this, { flags, data, updates: [], losses: [], staleness: [], falls: [] });
    this.steps = Array.from({ length: flags.workers }, () => []);
    this.dropped = [];
    [this.next, this.before, this.diverged] = [0, 0, false];
    const exists = ({ who }) => who === "ps" || +who.slice(1) < flags.workers;
    this.deaths = (flags.deaths ?? []).filter(exists).sort((a, b) => a.at - b.at);
    this.problem = flags.model === "none" ? new Parabola(flags) : new Problem(flags, data);
    this.#start(this.problem.initial());
    this.saved = this.#checkpoint();
  }

  #start(w) {
    const gradient = this.problem.gradient.bind(this.problem);
    const scheme = new SCHEMES[this.flags.scheme](this.flags, gradient, w);
    const size = this.flags.parameters || this.problem.size;
    this.cluster = new Cluster(this.flags, scheme, w, size, this);
  }

  get now() {
    return this.cluster.clock.now;
  }

  get over() {
    return this.cluster.over || this.diverged;
  }

  /** Megabytes through the links of the ps so far. */
  get megabytes() {
    const links = new Set([...this.cluster.down, ...this.cluster.up]);
    return [...links].reduce((sum, link) => sum + link.totalBytes, this.before) / 1e6;
  }

  /** Simulates until `time`, for at most `budget` milliseconds. Returns whether it got there. */
  advance(time, budget = Infinity) {
    const until = performance.now() + budget;
    while (!this.over) {
      const death = this.deaths.length ? this.deaths[0].at : Infinity;
      const next = Math.min(this.cluster.clock.next(), death);
      if (next > time) return true;
      if (death === next) this.#fall(this.deaths.shift());
      else this.cluster.clock.step();
      if (performance.now() > until) return false;
    }
    return true;
  }

  /** The next event that a reader sees happens. */
  step() {
    const seen = () => this.steps.reduce((sum, mine) => sum + mine.length, this.updates.length)
      + this.cluster.got.reduce((a, b) => a + b) + this.cluster.computed.reduce((a, b) => a + b);
    const before = seen();
    while (!this.over && seen() === before && this.cluster.clock.next() < Infinity) {
      this.advance(this.cluster.clock.next());
    }
  }

  // What dies.

  #fall({ at, who }) {
    this.cluster.clock.now = at;
    if (who.startsWith("w")) return this.#fallOfWorker(+who.slice(1), at);
    this.falls.push({ time: at, back: at + DOWN, who, to: this.saved.updates, from: this.cluster.updates });
    const old = this.cluster;
    old.processes.forEach((process) => (process.dead = true));
    this.before = this.megabytes * 1e6; // bytes
    this.#start(this.saved.w);
    const cluster = this.cluster;
    Object.assign(cluster.scheme, this.saved.state);
    [cluster.updates, cluster.random] = [this.saved.updates, old.random];
    cluster.clock.now = at;
    // The processes have not begun yet; they do when the ps is back.
    cluster.clock.queue.forEach((item) => (item[0] = at + DOWN));
    const dead = (k) => this.falls.some((fall) => fall.who === `w${k}` && fall.back === Infinity);
    cluster.processes.forEach((process, k) => (process.dead = dead(k)));
  }

  /** It dies, or comes back if it is dead. */
  #fallOfWorker(k, at) {
    const fall = this.falls.find(({ who, back }) => who === `w${k}` && back === Infinity);
    if (!fall) {
      this.falls.push({ time: at, back: Infinity, who: `w${k}` });
      this.cluster.processes[k].dead = true;
      return;
    }
    fall.back = at;
    const { cluster, flags } = this, { scheme, clock, w } = cluster;
    // What a worker keeps dies with it; the new one begins at w~, and with no token.
    const fresh = new SCHEMES[flags.scheme](flags, scheme.gradient, w);
    for (const name of ["w", "v", "H", "m", "i"]) if (name in scheme) scheme[name][k] = fresh[name][k];
    cluster.lastToken[k] = -1;
    const back = Math.max(at, ...this.falls.filter(({ who }) => who === "ps").map((each) => each.back));
    function* reborn() {
      yield clock.timeout(back - at);
      yield* scheme.worker(cluster, k);
    }
    cluster.processes[k] = clock.process(reborn());
  }

  /** What the ps would read after it died. */
  #checkpoint() {
    const { scheme, w, updates, clock } = this.cluster, state = {};
    for (const name of ["G", "M", "u", "B", "number"]) if (name in scheme) state[name] = scheme[name];
    return { w, updates, state, time: clock.now };
  }

  // What it shows.

  /** Whether it has died, and is not back. */
  isDead(who) {
    return this.falls.some((fall) => fall.who === who && fall.back === Infinity);
  }

  /** Whether the ps has died, and is not back yet. */
  isDown() {
    return this.falls.some(({ who, back }) => who === "ps" && this.now < back && back < Infinity);
  }

  /** Whether worker k waits for others: for a token, or until it may begin a step. */
  waits(k) {
    const { began, got, lastToken, updates, pushed, scheme } = this.cluster;
    if (got[k] > began[k]) return false;
    return scheme.worker === synchronous ? lastToken[k] === updates : !scheme.mayBegin(k, pushed);
  }

  /** The times of worker k's step so far. */
  current(k, time) {
    const { began, asked, got, computed } = this.cluster;
    const step = { began: began[k], asked: time, got: time, computed: time, told: time };
    if (this.steps[k].at(-1)?.began === began[k]) step.began = time; // it is over
    else if (!this.waits(k)) {
      step.asked = asked[k];
      if (got[k] > began[k]) [step.got, step.computed] = [got[k], computed[k]];
    }
    return step;
  }

  // What the cluster tells.

  update(cluster, workers) {
    const now = cluster.clock.now;
    this.updates.push({ time: now, number: cluster.updates, workers });
    if (now >= this.saved.time + this.flags.checkpoint_seconds) this.saved = this.#checkpoint();
    if (now < this.next) return;
    this.next = Math.max(now + 0.1, now * (1 + APART));
    const { loss } = this.problem.evaluate(cluster.w, SHOWN);
    this.losses.push({ time: now, bytes: this.megabytes, number: cluster.updates, loss });
    this.diverged = !Number.isFinite(loss);
  }

  stepped(cluster, k, number, pulledAt, staleness, told) {
    const { now } = cluster.clock, { began, asked, got, computed } = cluster;
    this.steps[k].push({ began: began[k], asked: asked[k], got: got[k], computed: computed[k],
      counted: now, told: Math.max(now + told, computed[k]), number, pulledAt, staleness,
      loss: this.problem.loss[k], pushed: this.steps[k].length + 1 });
    this.staleness[staleness] = (this.staleness[staleness] ?? 0) + 1;
  }

  drop(k, time) {
    this.dropped.push({ time, k });
  }
}
