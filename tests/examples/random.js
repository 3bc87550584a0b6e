// numpy.random.default_rng(seed): PCG64 and the ziggurats of its float32 values, so that codes are equal.

const f32 = Math.fround;
const MASK = (1n << 128n) - 1n, MULTIPLIER = 0x2360ed051fc65da44385df649fccf645n;

// The seed of PCG64 as NumPy's SeedSequence spreads it: four 64-bit numbers
function spread(seed) {
  let constant = 0x43b0d7e5;
  const xorShift = value => (value ^ (value >>> 16)) >>> 0;
  const hash = (value, factor) => {
    const mixed = value ^ constant;
    constant = Math.imul(constant, factor);
    return xorShift(Math.imul(mixed, constant));
  };
  const pool = [seed, 0, 0, 0].map(each => hash(each, 0x931e8875));
  for (let from = 0; from < 4; from++) {
    for (let to = 0; to < 4; to++) {
      if (from === to) continue;
      const found = hash(pool[from], 0x931e8875);
      pool[to] = xorShift(Math.imul(0xca01f9dd, pool[to]) - Math.imul(0x4973f715, found));
    }
  }
  constant = 0x8b51f9dd;
  const words = Array.from({length: 8}, (_, i) => BigInt(hash(pool[i % 4], 0x58f38ded)));
  return [0, 2, 4, 6].map(i => words[i] | (words[i + 1] << 32n));
}

// Tables of 256 layers of one area under a density that falls from 1, for integers of 23 bits
function ziggurat(radius, area, density, inverse) {
  const x = new Float64Array(256).fill(radius), integers = new Float64Array(256);
  const base = area / density(radius); // width of the layer that has the tail
  for (let i = 254; i > 0; i--) {
    x[i] = inverse(density(x[i + 1]) + area / x[i + 1]);
    integers[i + 1] = Math.round((x[i] / x[i + 1]) * 2 ** 23);
  }
  integers[0] = Math.round((radius / base) * 2 ** 23);
  const heights = Float32Array.from(x, density), widths = Float32Array.from(x, each => each / 2 ** 23);
  heights[0] = 1;
  widths[0] = base / 2 ** 23;
  return {radius: f32(radius), integers, heights, widths};
}

const NORMAL = ziggurat(
  3.6541528853610088, 0.00492867323399, x => Math.exp(-0.5 * x * x), y => Math.sqrt(-2 * Math.log(y)));
const EXPONENTIAL = ziggurat(
  7.69711747013105, 0.0039496598225815571993, x => Math.exp(-x), y => -Math.log(y));
EXPONENTIAL.widths[226] *= 1 + 2 ** -24; // the table of NumPy has the next number

export class Generator {
  constructor(seed) {
    const [high, low, incrementHigh, incrementLow] = spread(seed);
    this.increment = ((((incrementHigh << 64n) | incrementLow) << 1n) | 1n) & MASK;
    this.state = (this.increment + ((high << 64n) | low)) & MASK;
    this.step();
  }

  step() {
    this.state = (this.state * MULTIPLIER + this.increment) & MASK;
  }

  // 32 random bits: the lower half of a 64-bit output, then the upper half
  bits() {
    if (this.half !== undefined) {
      const kept = this.half;
      this.half = undefined;
      return kept;
    }
    this.step();
    const word = BigInt.asUintN(64, (this.state >> 64n) ^ this.state), turns = this.state >> 122n;
    const output = BigInt.asUintN(64, (word >> turns) | (word << (64n - turns)));
    this.half = Number(output >> 32n);
    return Number(output & 0xffffffffn);
  }

  uniform() {
    return (this.bits() >>> 8) / 2 ** 24;
  }

  // Whether a point of a layer that reaches beyond the density is below it
  isBelow({heights}, layer, density) {
    return f32(f32(heights[layer - 1] - heights[layer]) * this.uniform() + heights[layer]) < density;
  }

  normal() {
    for (;;) {
      const bits = this.bits(), layer = bits & 255, integer = (bits >>> 9) & 0x7fffff;
      const sign = bits & 256 ? -1 : 1, x = f32(sign * f32(integer * NORMAL.widths[layer]));
      if (integer < NORMAL.integers[layer]) return x;
      if (layer === 0) return this.normalTail((integer >> 8) & 1 ? -1 : 1);
      if (this.isBelow(NORMAL, layer, Math.exp(-0.5 * x * x))) return x;
    }
  }

  normalTail(sign) {
    for (;;) {
      const x = f32(f32(-1 / NORMAL.radius) * f32(Math.log1p(-this.uniform())));
      const y = f32(-Math.log1p(-this.uniform()));
      if (y + y > x * x) return f32(sign * (NORMAL.radius + x));
    }
  }

  exponential() {
    for (;;) {
      const bits = this.bits() >>> 1, layer = bits & 255, integer = bits >>> 8;
      const x = f32(integer * EXPONENTIAL.widths[layer]);
      if (integer < EXPONENTIAL.integers[layer]) return x;
      if (layer === 0) return f32(EXPONENTIAL.radius - f32(Math.log1p(-this.uniform())));
      if (this.isBelow(EXPONENTIAL, layer, f32(Math.exp(-x)))) return x;
    }
  }
}
