// What is learned: the digits, as in `Many-Workers/learning.py`, or a parabola.

import { Generator } from "./random.js";

/** A network, "linear" or "mlp" with one hidden layer, and the data, `{ train, test }` of
 * `{ x, labels }`: x has a row of `width` numbers for each example. */
export class Problem {
  constructor(flags, { width, classes, train, test }) {
    Object.assign(this, { flags, train, test });
    this.layers = flags.model === "mlp" ? [[width, flags.hidden], [flags.hidden, classes]]
      : [[width, classes]];
    let size = 0; // weights [from, to], then biases [to], layer by layer
    this.parts = this.layers.map(([from, to]) => [size, (size += from * to), (size += to)]);
    this.size = size;
    this.loss = Array(flags.workers).fill(0);
    this.batches = Array.from({ length: flags.workers }, (_, k) => this.#batches(k));
  }

  /** Zeros; the weights of "mlp" are He normal. */
  initial() {
    const random = new Generator(this.flags.seed), w = new Float32Array(this.size);
    if (this.flags.model === "mlp") {
      this.layers.forEach(([from], l) => {
        const scale = Math.sqrt(2 / from), [begin, end] = this.parts[l];
        for (let i = begin; i < end; i++) w[i] = scale * random.normal();
      });
    }
    return w;
  }

  /** Indices of worker k's mini-batches: its shard, reshuffled in every epoch. */
  *#batches(k) {
    const shard = [], { workers, batch_size: size, seed } = this.flags;
    for (let i = k; i < this.train.labels.length; i += workers) shard.push(i);
    const random = new Generator(seed, k), epochs = Math.max(1, Math.ceil(size / shard.length));
    const several = Array.from({ length: epochs }, () => [...shard]);
    let left = [];
    for (;;) {
      while (left.length < size) {
        left = left.concat(...several.map((epoch) => random.shuffle([...epoch])));
      }
      yield left.slice(0, size);
      left = left.slice(size);
    }
  }

  /** The inputs of each layer, and the probabilities, of one example at `offset` in x. */
  #forward(w, x, offset) {
    let inputs = x.subarray(offset, offset + this.layers[0][0]);
    const all = [inputs];
    this.layers.forEach(([from, to], l) => {
      const [weights, biases, end] = this.parts[l], out = new Float64Array(w.subarray(biases, end));
      for (let i = 0; i < from; i++) {
        const value = inputs[i], row = weights + i * to;
        if (value) for (let j = 0; j < to; j++) out[j] += value * w[row + j];
      }
      inputs = l < this.layers.length - 1 ? out.map((value) => Math.max(value, 0)) : out;
      all.push(inputs);
    });
    const largest = Math.max(...inputs), p = inputs.map((score) => Math.exp(score - largest));
    const total = p.reduce((a, b) => a + b);
    all[all.length - 1] = p.map((each) => each / total);
    return all;
  }

  /** The gradient of the mean softmax cross-entropy of worker k's next mini-batch, at w. */
  gradient(k, w) {
    const chosen = this.batches[k].next().value, { x, labels } = this.train;
    const found = new Float64Array(this.size), last = this.layers.length - 1;
    let loss = 0;
    for (const example of chosen) {
      const values = this.#forward(w, x, example * this.layers[0][0]), p = values[last + 1];
      loss -= Math.log(Math.max(p[labels[example]], 1e-30));
      p[labels[example]] -= 1;
      let back = p.map((each) => each / chosen.length);
      for (let l = last; l >= 0; l--) {
        const [from, to] = this.layers[l], [weights, biases] = this.parts[l], inputs = values[l];
        const before = new Float64Array(from);
        for (let j = 0; j < to; j++) found[biases + j] += back[j];
        for (let i = 0; i < from; i++) {
          if (!inputs[i]) continue; // also where a hidden unit is off: its gradient is 0
          const row = weights + i * to;
          for (let j = 0; j < to; j++) {
            found[row + j] += inputs[i] * back[j];
            if (l) before[i] += w[row + j] * back[j];
          }
        }
        back = before;
      }
    }
    this.loss[k] = loss / chosen.length;
    return new Float32Array(found);
  }

  /** The accuracy and the mean loss on the first `count` test examples. */
  evaluate(w, count = this.test.labels.length) {
    const { x, labels } = this.test, width = this.layers[0][0];
    let right = 0, loss = 0;
    for (let example = 0; example < count; example++) {
      const p = this.#forward(w, x, example * width).at(-1), label = labels[example];
      right += p.indexOf(Math.max(...p)) === label;
      loss -= Math.log(Math.max(p[label], 1e-30));
    }
    return { accuracy: right / count, loss: loss / count };
  }
}

/** The loss w^2 / 2: the gradient is w, and the curvature 1. w starts at 1. */
export class Parabola {
  constructor(flags) {
    this.size = 1;
    this.loss = Array(flags.workers).fill(0);
  }

  initial() {
    return Float64Array.of(1);
  }

  gradient(k, w) {
    return w;
  }

  evaluate(w) {
    return { accuracy: NaN, loss: (w[0] * w[0]) / 2 };
  }
}
