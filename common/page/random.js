// Random numbers, bit for bit those of NumPy (default_rng: PCG64) and of Python's `random`.

const LOW = 0xffffffffffffffffn, ALL = (1n << 128n) - 1n;
const MULTIPLIER = 0x2360ed051fc65da44385df649fccf645n;

/** What NumPy's SeedSequence makes of whole numbers below 2^32: `count` 32-bit words. */
function words(entropy, count) {
  let factor = 0x43b0d7e5;
  const hash = (value) => {
    value ^= factor;
    factor = Math.imul(factor, 0x931e8875);
    value = Math.imul(value, factor);
    return value ^ (value >>> 16);
  };
  const mix = (a, b) => {
    const mixed = Math.imul(0xca01f9dd, a) - Math.imul(0x4973f715, b);
    return mixed ^ (mixed >>> 16);
  };
  const pool = [0, 1, 2, 3].map((k) => hash(entropy[k] ?? 0));
  for (let from = 0; from < 4; from++) {
    for (let to = 0; to < 4; to++) if (from !== to) pool[to] = mix(pool[to], hash(pool[from]));
  }
  for (const word of entropy.slice(4)) {
    for (let to = 0; to < 4; to++) pool[to] = mix(pool[to], hash(word));
  }
  factor = 0x8b51f9dd;
  return Array.from({ length: count }, (_, k) => {
    let value = pool[k % 4] ^ factor;
    factor = Math.imul(factor, 0x58f38ded);
    value = Math.imul(value, factor);
    return (value ^ (value >>> 16)) >>> 0;
  });
}

/** NumPy's `default_rng(entropy)`, as far as it is used here. */
export class Generator {
  constructor(...entropy) {
    const [a, b, c, d] = [0, 2, 4, 6].map((k, _, __, found = words(entropy, 8)) =>
      BigInt(found[k]) | (BigInt(found[k + 1]) << 32n));
    this.increment = ((((c << 64n) | d) << 1n) | 1n) & ALL;
    this.state = 0n;
    this.half = null; // the upper half of 64 bits, for the next 32
    this.advance();
    this.state += (a << 64n) | b;
    this.advance();
  }

  advance() {
    this.state = (this.state * MULTIPLIER + this.increment) & ALL;
  }

  next64() {
    this.advance();
    const mixed = (this.state >> 64n) ^ (this.state & LOW), turn = this.state >> 122n;
    return ((mixed >> turn) | (mixed << (64n - turn))) & LOW;
  }

  next32() {
    if (this.half !== null) {
      const half = this.half;
      this.half = null;
      return half;
    }
    const both = this.next64();
    this.half = Number(both >> 32n);
    return Number(both & 0xffffffffn);
  }

  /** At least 0, below 1. */
  random() {
    return Number(this.next64() >> 11n) / 2 ** 53;
  }

  /** A whole number from 0 to `largest`: as many bits as it needs, until they are small enough. */
  upTo(largest) {
    const mask = 2 ** (32 - Math.clz32(largest)) - 1;
    for (;;) {
      const found = (this.next32() & mask) >>> 0;
      if (found <= largest) return found;
    }
  }

  /** Shuffles an array in place. */
  shuffle(array) {
    for (let k = array.length - 1; k > 0; k--) {
      const other = this.upTo(k);
      [array[k], array[other]] = [array[other], array[k]];
    }
    return array;
  }

  /** A normally distributed number (a ziggurat of 256 layers). */
  normal() {
    for (;;) {
      const bits = this.next64(), layer = Number(bits & 0xffn), negative = (bits >> 8n) & 1n;
      const distance = Number((bits >> 9n) & 0xfffffffffffffn);
      const found = (negative ? -1 : 1) * distance * WIDTHS[layer];
      if (distance < INSIDE[layer]) return found;
      if (layer === 0) {
        for (;;) {
          const x = -Math.log1p(-this.random()) / EDGE, y = -Math.log1p(-this.random());
          if (y + y > x * x) return (distance >> 8) & 1 ? -(EDGE + x) : EDGE + x;
        }
      }
      const height = (HEIGHTS[layer - 1] - HEIGHTS[layer]) * this.random() + HEIGHTS[layer];
      if (height < Math.exp(-0.5 * found * found)) return found;
    }
  }
}

const EDGE = 3.6541528853610088, AREA = 0.004928673233974655; // of the ziggurat's lowest layer
const [WIDTHS, INSIDE, HEIGHTS] = (() => {
  const density = (x) => Math.exp(-0.5 * x * x), scale = 2 ** 52;
  const [widths, inside, heights] = [0, 0, 0].map(() => new Float64Array(256));
  let x = EDGE, above = EDGE;
  const lowest = AREA / density(EDGE);
  [inside[0], widths[0], widths[255]] = [(EDGE / lowest) * scale, lowest / scale, EDGE / scale];
  [heights[0], heights[255]] = [1, density(EDGE)];
  for (let k = 254; k > 0; k--) {
    x = Math.sqrt(-2 * Math.log(AREA / x + density(x)));
    inside[k + 1] = (x / above) * scale;
    above = x;
    [heights[k], widths[k]] = [density(x), x / scale];
  }
  return [widths, inside, heights];
})();

/** Python's `random.Random(seed)` (MT19937), for a seed from 0 to 2^32 - 1. */
export class Random {
  constructor(seed) {
    const state = (this.state = new Uint32Array(624));
    state[0] = 19650218;
    const mixed = (k) => state[k - 1] ^ (state[k - 1] >>> 30);
    for (let k = 1; k < 624; k++) state[k] = Math.imul(1812433253, mixed(k)) + k;
    let at = 1;
    const next = () => {
      if (++at >= 624) [state[0], at] = [state[623], 1];
    };
    for (let k = 0; k < 624; k++, next()) {
      state[at] = (state[at] ^ Math.imul(mixed(at), 1664525)) + seed;
    }
    for (let k = 0; k < 623; k++, next()) {
      state[at] = (state[at] ^ Math.imul(mixed(at), 1566083941)) - at;
    }
    state[0] = 0x80000000;
    this.at = 624;
  }

  next32() {
    const state = this.state;
    if (this.at === 624) {
      for (let k = 0; k < 624; k++) {
        const y = (state[k] & 0x80000000) | (state[(k + 1) % 624] & 0x7fffffff);
        state[k] = state[(k + 397) % 624] ^ (y >>> 1) ^ (y & 1 ? 0x9908b0df : 0);
      }
      this.at = 0;
    }
    let y = state[this.at++];
    y ^= y >>> 11;
    y ^= (y << 7) & 0x9d2c5680;
    y ^= (y << 15) & 0xefc60000;
    return (y ^ (y >>> 18)) >>> 0;
  }

  /** At least 0, below 1. */
  random() {
    const high = this.next32() >>> 5, low = this.next32() >>> 6;
    return (high * 67108864 + low) / 2 ** 53;
  }

  /** A gamma-distributed number, with mean shape x scale; as Python 3.10 to 3.13 draws it. */
  gamma(shape, scale) {
    if (shape === 1) return -Math.log(1 - this.random()) * scale;
    return (shape > 1 ? this.#large(shape) : this.#small(shape)) * scale;
  }

  #large(shape) { // Cheng 1977
    const root = Math.sqrt(2 * shape - 1);
    for (;;) {
      const u = this.random();
      if (!(1e-7 < u && u < 0.9999999)) continue;
      const z = u * u * (1 - this.random()), v = Math.log(u / (1 - u)) / root;
      const x = shape * Math.exp(v), r = shape - Math.log(4) + (shape + root) * v - x;
      if (r + 1 + Math.log(4.5) - 4.5 * z >= 0 || r >= Math.log(z)) return x;
    }
  }

  #small(shape) { // Ahrens and Dieter 1974
    for (;;) {
      const b = (Math.E + shape) / Math.E, p = b * this.random();
      const x = p <= 1 ? p ** (1 / shape) : -Math.log((b - p) / shape), u = this.random();
      if (p > 1 ? u <= x ** (shape - 1) : u <= Math.exp(-x)) return x;
    }
  }
}
