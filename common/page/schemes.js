// The catalogue of schemes, as in `Many-Workers/schemes.py`, which has the formulas and sources.
//
// w~ are the global parameters on the ps, w is a worker's copy. A scheme says what worker k sends
// after it has pulled w~ (`contribution`), and what the ps does with it (`update`; `updateRound`, if
// the workers wait for each other). New arrays are made; old ones do not change.

import { asynchronous, elastic, synchronous } from "./cluster.js";

/** An array like `w`, of value(i) for each i. */
function made(w, value) {
  const found = new w.constructor(w.length);
  for (let i = 0; i < found.length; i++) found[i] = value(i);
  return found;
}

/** The sum of the workers' contributions, in the order in which they came. */
function sum(pushes) {
  const [first, ...others] = pushes.values();
  return made(first, (i) => others.reduce((total, a) => total + a[i], first[i]));
}

class Scheme {
  constructor(flags, gradient, w) {
    Object.assign(this, { flags, gradient, eta: flags.learning_rate, window: flags.window ?? 1 });
    this.bits = 32;
    this.worker = asynchronous;
    this.perWorker = (value) => Array.from({ length: flags.workers }, () => made(w, () => value));
    this.slot = (value) => made(w, () => value);
  }

  /** Whether worker k may begin a step. `finished`: how many each worker has finished. */
  mayBegin() {
    return true;
  }

  contribution(k, pulled) {
    return this.gradient(k, pulled);
  }

  /** Calls use(g_t, w) for T local steps; it returns the next w. Returns the last one. */
  steps(k, pulled, use) {
    let w = pulled;
    for (let t = 0; t < this.window; t++) w = use(this.gradient(k, w), w);
    return w;
  }

  /** T local steps. Returns sum g_t. */
  localSteps(k, pulled) {
    let total = this.slot(0);
    this.steps(k, pulled, (g, w) => {
      total = made(w, (i) => total[i] + g[i]);
      return made(w, (i) => w[i] - this.eta * g[i]);
    });
    return total;
  }
}

class HogWild extends Scheme {
  update(w, g) {
    return made(w, (i) => w[i] - this.eta * g[i]);
  }
}

class StalenessAware extends HogWild {
  update(w, g, s) {
    return made(w, (i) => w[i] - (this.eta / Math.max(1, s)) * g[i]);
  }
}

class StaleSynchronous extends HogWild {
  mayBegin(k, finished) {
    return finished[k] - Math.min(...finished) <= this.flags.max_staleness;
  }
}

class DCASGD extends HogWild {
  constructor(flags, gradient, w) {
    super(flags, gradient, w);
    this.M = this.slot(0);
  }

  update(w, g, s, pulled) {
    let strength = () => this.flags.dc_lambda;
    if (this.flags.adaptive) {
      this.M = made(w, (i) => 0.95 * this.M[i] + 0.05 * g[i] * g[i]);
      strength = (i) => this.flags.dc_lambda / Math.sqrt(this.M[i] + 1e-7);
    }
    return made(w, (i) => w[i] - this.eta * (g[i] + strength(i) * g[i] * g[i] * (w[i] - pulled[i])));
  }
}

class AGN extends HogWild {
  contribution(k, pulled) {
    const total = this.localSteps(k, pulled);
    return made(total, (i) => total[i] / this.window);
  }
}

class PlainDownpour extends HogWild {
  contribution(k, pulled) {
    return this.localSteps(k, pulled);
  }
}

class DownpourEasy extends PlainDownpour {
  constructor(flags, gradient, w) {
    super(flags, gradient, w);
    this.G = this.slot(0.1);
  }

  update(w, a) {
    this.G = made(w, (i) => this.G[i] + a[i] * a[i]);
    return made(w, (i) => w[i] - (this.eta * a[i]) / Math.sqrt(this.G[i]));
  }
}

class Downpour extends DownpourEasy {
  constructor(flags, gradient, w) {
    super(flags, gradient, w);
    this.H = this.perWorker(0.1);
  }

  localSteps(k, pulled) {
    let total = this.slot(0);
    this.steps(k, pulled, (g, w) => {
      const H = (this.H[k] = made(w, (i) => this.H[k][i] + g[i] * g[i]));
      total = made(w, (i) => total[i] + g[i]);
      return made(w, (i) => w[i] - (this.eta * g[i]) / Math.sqrt(H[i]));
    });
    return total;
  }
}

class DynamicSGD extends Scheme {
  contribution(k, pulled) {
    const total = this.localSteps(k, pulled);
    return made(total, (i) => -this.eta * total[i]);
  }

  update(w, d, s) {
    return made(w, (i) => w[i] + d[i] / (s + 1));
  }
}

class AEASGD extends Scheme {
  constructor(flags, gradient, w) {
    super(flags, gradient, w);
    this.worker = elastic;
    this.w = Array(flags.workers).fill(w);
    this.v = this.perWorker(0);
    this.momentum = 0;
  }

  contribution(k, pulled) {
    const alpha = this.flags.moving_rate, momentum = this.momentum;
    let x = this.w[k], v = this.v[k];
    const e = made(x, (i) => alpha * (x[i] - pulled[i]));
    let w = made(x, (i) => x[i] - e[i]);
    for (let t = 0; t < this.window; t++) {
      const g = this.gradient(k, momentum ? made(x, (i) => x[i] + momentum * v[i]) : x), old = v;
      v = made(w, (i) => momentum * old[i] - this.eta * g[i]);
      const before = w;
      w = made(w, (i) => before[i] + v[i]);
      x = w; // only the first gradient is taken before the force moves w
    }
    [this.w[k], this.v[k]] = [w, v];
    return e;
  }

  update(w, e) {
    return made(w, (i) => w[i] + e[i]);
  }
}

class AEAMSGD extends AEASGD {
  constructor(flags, gradient, w) {
    super(flags, gradient, w);
    this.momentum = flags.momentum;
  }
}

class SynchronousSGD extends Scheme {
  constructor(flags, gradient, w) {
    super(flags, gradient, w);
    this.worker = synchronous;
  }

  updateRound(w, pushes) {
    const total = sum(pushes);
    return made(w, (i) => w[i] - (this.eta / pushes.size) * total[i]);
  }
}

class DifferentRates extends SynchronousSGD {
  updateRound(w, pushes) {
    const rates = this.flags.learning_rates ?? Array(this.flags.workers).fill(this.eta / this.flags.workers);
    const scaled = new Map([...pushes].map(([k, g]) => [k, made(g, (i) => rates[k] * g[i])]));
    const total = sum(scaled);
    return made(w, (i) => w[i] - total[i]);
  }
}

class SignSGD extends SynchronousSGD {
  constructor(flags, gradient, w) {
    super(flags, gradient, w);
    this.bits = 1;
    this.m = this.perWorker(0);
  }

  contribution(k, pulled) {
    const beta = this.flags.sign_momentum, g = this.gradient(k, pulled), m = this.m[k];
    this.m[k] = made(m, (i) => beta * m[i] + (1 - beta) * g[i]);
    return made(m, (i) => (this.m[k][i] >= 0 ? 1 : -1));
  }

  updateRound(w, pushes) {
    const total = sum(pushes), first = pushes.get(Math.min(...pushes.keys()));
    return made(w, (i) => w[i] - this.eta * Math.sign(total[i] + first[i] / 2));
  }
}

class SAGN extends SynchronousSGD {
  contribution(k, pulled) {
    return AGN.prototype.contribution.call(this, k, pulled);
  }
}

class LocalSGD extends SynchronousSGD {
  contribution(k, pulled) {
    return DynamicSGD.prototype.contribution.call(this, k, pulled);
  }

  updateRound(w, pushes) {
    const total = sum(pushes);
    return made(w, (i) => w[i] + total[i] / pushes.size);
  }
}

/** T local steps of AdamW; with inner "sgd", of plain SGD. Returns w_pulled - w. */
function inner(scheme, k, pulled) {
  const f = scheme.flags, { m, v } = scheme;
  const w = scheme.steps(k, pulled, (g, w) => {
    if (f.inner === "sgd") return made(w, (i) => w[i] - scheme.eta * g[i]);
    const count = ++scheme.i[k], [oldM, oldV] = [m[k], v[k]];
    m[k] = made(w, (i) => f.inner_beta1 * oldM[i] + (1 - f.inner_beta1) * g[i]);
    v[k] = made(w, (i) => f.inner_beta2 * oldV[i] + (1 - f.inner_beta2) * g[i] * g[i]);
    const first = 1 - f.inner_beta1 ** count, second = 1 - f.inner_beta2 ** count;
    return made(w, (i) => w[i] - scheme.eta * (m[k][i] / first
      / (Math.sqrt(v[k][i] / second) + f.inner_epsilon) + f.weight_decay * w[i]));
  });
  return made(w, (i) => pulled[i] - w[i]);
}

function innerState(scheme) {
  Object.assign(scheme, { m: scheme.perWorker(0), v: scheme.perWorker(0), u: scheme.slot(0) });
  scheme.i = Array(scheme.flags.workers).fill(0);
}

class DiLoCo extends SynchronousSGD {
  constructor(flags, gradient, w) {
    super(flags, gradient, w);
    innerState(this);
  }

  contribution(k, pulled) {
    return inner(this, k, pulled);
  }

  updateRound(w, pushes) {
    const { outer, outer_rate: rate, outer_momentum: mu } = this.flags, u = this.u, total = sum(pushes);
    const moved = made(total, (i) => total[i] / pushes.size);
    if (outer === "momentum") {
      this.u = made(u, (i) => mu * u[i] + moved[i] / this.eta);
      return made(w, (i) => w[i] - rate * this.eta * this.u[i]);
    }
    this.u = made(u, (i) => mu * u[i] + moved[i]);
    return made(w, (i) => w[i] - rate * (moved[i] + mu * this.u[i]));
  }
}

class AsyncDiLoCo extends Scheme {
  constructor(flags, gradient, w) {
    super(flags, gradient, w);
    innerState(this);
    [this.B, this.number] = [this.slot(0), 0];
  }

  contribution(k, pulled) {
    return inner(this, k, pulled);
  }

  update(w, d) {
    const { outer_rate: rate, outer_momentum: beta } = this.flags, { B, u } = this;
    const period = this.flags.delay_period ?? this.flags.workers;
    this.B = made(B, (i) => B[i] + d[i]);
    if (++this.number % period) return made(w, (i) => w[i] - (rate * d[i]) / period);
    this.u = made(u, (i) => beta * u[i] + this.B[i] / period);
    this.B = this.slot(0);
    return made(w, (i) => w[i] - rate * (beta * this.u[i] + d[i] / period));
  }
}

export const SCHEMES = {
  "HogWild": HogWild,
  "Staleness-Aware": StalenessAware,
  "Stale-Synchronous-Parallel": StaleSynchronous,
  "DC-ASGD": DCASGD,
  "AGN": AGN,
  "Plain-DOWNPOUR": PlainDownpour,
  "DOWNPOUR-Easy": DownpourEasy,
  "DOWNPOUR": Downpour,
  "Dynamic-SGD": DynamicSGD,
  "AEASGD": AEASGD,
  "AEAMSGD": AEAMSGD,
  "Synchronous-SGD": SynchronousSGD,
  "Synchronous-SGD-different-learning-rates": DifferentRates,
  "Sign-SGD": SignSGD,
  "SAGN": SAGN,
  "Local-SGD": LocalSGD,
  "DiLoCo": DiLoCo,
  "Async-DiLoCo": AsyncDiLoCo,
};
