// Parameter servers, workers and the links between them: `Many-Workers/cluster.py` and `workers.py`
// line for line. Only what is marked "here" is not there.

import { Clock, Event } from "./clock.js";
import { Random } from "./random.js";

// A full packet carries 1,448 bytes in 1,514, and three of four are acknowledged with 66. The calls
// around a transfer have so many bytes, whatever its size.
const WIRE = (1514 + (3 / 4) * 66) / 1448, CALL = 1250, MESSAGE = 300, AHEAD = 2 * 65_536;

/** A link that carries one transfer after another. `mbit` null: no limit. */
class Link {
  constructor(clock, mbit) {
    this.clock = clock;
    this.secondsPerByte = mbit ? 8e-6 / mbit : 0;
    this.waiting = [];
    [this.until, this.ahead, this.sending, this.totalBytes] = [0, 0, false, 0];
  }

  send(count, done) {
    this.totalBytes += count;
    if (!this.secondsPerByte) return done();
    this.waiting.push([count, done]);
    this.ahead += Math.min(count, AHEAD);
    if (!this.sending) this.next();
  }

  /** Seconds until a message that comes now has passed. */
  delay() {
    if (!this.sending) return 0;
    const rest = Math.min(this.until - this.clock.now, this.secondsPerByte * AHEAD);
    return rest + this.secondsPerByte * (this.ahead + MESSAGE);
  }

  next() {
    this.sending = this.waiting.length > 0;
    if (!this.sending) return;
    const [count, done] = this.waiting.shift();
    this.ahead -= Math.min(count, AHEAD);
    this.until = this.clock.now + count * this.secondsPerByte;
    this.clock.timeout(count * this.secondsPerByte).callbacks.push(() => {
      done();
      this.next();
    });
  }
}

export class Cluster {
  /**
   * @param flags of `settings.js`
   * @param scheme of `schemes.js`
   * @param w the initial global parameters
   * @param size how many parameters a pull or a push transfers
   * @param journal its `stepped`, `update` and `drop` are called
   */
  constructor(flags, scheme, w, size, journal) {
    Object.assign(this, { flags, scheme, w, journal });
    const n = flags.workers, zeros = () => Array(n).fill(0);
    this.clock = new Clock();
    [this.updates, this.finished] = [0, false];
    this.transferBytes = (scheme.bits / 8) * WIRE * size;
    this.random = new Random(flags.seed);
    const links = () => Array.from({ length: flags.ps }, () => new Link(this.clock, flags.link_mbit));
    this.down = links();
    this.up = flags.duplex ? links() : this.down;
    this.busyUntil = 0;
    this.window = flags.window ?? 1;
    [this.began, this.asked, this.read, this.got, this.computed] = Array.from({ length: 5 }, zeros);
    [this.pushed, this.held] = [zeros(), []];
    [this.lastToken, this.round] = [Array(n).fill(-1), new Map()];
    this.released = this.clock.event();
    // Here: each has a handle, so that `simulation.js` can end it.
    this.processes = Array.from({ length: n }, (_, k) => this.clock.process(scheme.worker(this, k)));
  }

  // What takes time.

  wait(seconds) {
    return this.clock.timeout(seconds);
  }

  message(links) {
    return Math.max(...links.map((link) => link.delay())) + this.flags.latency;
  }

  ask() {
    return this.wait(this.message(this.up));
  }

  *travel(links) {
    const arrived = this.clock.event();
    let parts = links.length;
    for (const link of links) {
      link.send(this.transferBytes / links.length + CALL, () => --parts || arrived.succeed());
    }
    if (parts) yield arrived; // 0 without a limit: then all have passed already
    yield this.wait(this.flags.latency);
  }

  computing(k, begun = null) {
    const { compute, spread, delay } = this.flags;
    let seconds = this.window * compute;
    if (spread && seconds) {
      const shape = this.window / spread ** 2;
      seconds = this.random.gamma(shape, seconds / shape);
    }
    const late = delay[k] ?? 0;
    seconds += this.window * late;
    if (begun !== null) seconds -= Math.min(this.clock.now - begun, seconds / this.window);
    else if (late) seconds -= Math.min(this.clock.now - this.began[k], late);
    this.computed[k] = this.clock.now + seconds;
    return this.wait(seconds);
  }

  serve(seconds) {
    this.busyUntil = Math.max(this.clock.now, this.busyUntil) + seconds / this.flags.ps;
    return this.wait(this.busyUntil - this.clock.now);
  }

  // What a worker does.

  *pull(k) {
    this.began[k] = this.asked[k] = this.clock.now;
    yield this.ask();
    const arrived = this.clock.now;
    while (!this.scheme.mayBegin(k, this.pushed)) {
      const event = this.clock.event();
      this.held.push(event);
      yield event;
    }
    this.asked[k] += this.clock.now - arrived;
    return yield* this.fetch(k);
  }

  *fetch(k) {
    if (this.flags.request) yield this.serve(this.flags.request);
    this.read[k] = this.clock.now;
    const found = [this.w, this.updates];
    yield* this.travel(this.down);
    this.got[k] = this.clock.now;
    return found;
  }

  *push(k, a, pulled, pulledAt) {
    yield* this.travel(this.up);
    yield this.serve(this.flags.request);
    if (this.finished) return;
    const staleness = this.updates - pulledAt;
    this.update(this.scheme.update(this.w, a, staleness, pulled), [k]);
    this.pushed[k]++;
    const number = this.updates, held = this.held;
    this.held = [];
    for (const event of held) event.succeed();
    yield* this.answer(k, number, pulledAt, staleness, held.length > 0);
  }

  *token(k) {
    this.began[k] = this.asked[k] = this.clock.now;
    yield this.ask();
    const arrived = this.clock.now;
    while (this.lastToken[k] === this.updates) yield this.released;
    this.asked[k] += this.clock.now - arrived;
    this.lastToken[k] = this.updates;
    return this.updates;
  }

  *pushToRound(k, a, token) {
    yield* this.travel(this.up);
    yield this.serve(this.flags.request);
    if (this.finished) return;
    let complete = false;
    if (token !== this.updates) this.journal.drop(k, this.clock.now);
    else {
      this.round.set(k, a);
      complete = this.round.size === this.flags.workers - (this.flags.backup_workers ?? 0);
    }
    if (complete) {
      const workers = [...this.round.keys()].sort((a, b) => a - b);
      this.update(this.scheme.updateRound(this.w, this.round), workers);
      const before = this.released;
      [this.round, this.released] = [new Map(), this.clock.event()];
      before.succeed();
    }
    yield* this.answer(k, token + 1, token, 0, complete);
  }

  update(w, workers) {
    [this.w, this.updates] = [w, this.updates + 1];
    this.journal.update(this, workers);
    if (this.updates === this.flags.steps) this.finish();
  }

  /** In Python `finished` is an event; here the run also knows at once. */
  finish() {
    this.finished = true;
    const event = new Event(this.clock);
    event.callbacks.push(() => (this.over = true));
    event.succeed();
  }

  *answer(k, number, pulledAt, staleness, woke) {
    if (woke && !this.finished) {
      yield this.wait(0);
      if (this.flags.request) yield this.serve(0);
    }
    const told = this.message(this.down);
    this.journal.stepped(this, k, number, pulledAt, staleness, told);
    yield this.wait(told);
  }
}

// What a worker does, as a process in virtual time: each `yield` lets time pass.

export function* asynchronous(cluster, k) {
  for (;;) {
    const [w, pulledAt] = yield* cluster.pull(k);
    yield cluster.computing(k); // the time that T mini-batches take
    const a = cluster.scheme.contribution(k, w);
    yield* cluster.push(k, a, w, pulledAt);
  }
}

export function* elastic(cluster, k) {
  for (;;) {
    const begun = cluster.clock.now;
    const [center, pulledAt] = yield* cluster.pull(k);
    const localSteps = cluster.computing(k, begun);
    const e = cluster.scheme.contribution(k, center);
    yield* cluster.push(k, e, center, pulledAt);
    yield localSteps;
  }
}

export function* synchronous(cluster, k) {
  for (;;) {
    const token = yield* cluster.token(k);
    const [w] = yield* cluster.fetch(k);
    yield cluster.computing(k);
    const a = cluster.scheme.contribution(k, w);
    yield* cluster.pushToRound(k, a, token);
  }
}
