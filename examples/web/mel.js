// Log-mel frames of sound that arrives, and of whole recordings.
const RANGE = 2; // of the values of a recording below its loudest one: 8 decades, divided by 4

// Triangular filters on Slaney's mel scale: band -> [bin, weight] pairs
function melFilters(bins, bands, highest, rate) {
  const mel = f => (f < 1000 ? (3 * f) / 200 : 15 + (27 * Math.log(f / 1000)) / Math.log(6.4));
  const hertz = m => (m < 15 ? (200 * m) / 3 : 1000 * Math.exp(((m - 15) * Math.log(6.4)) / 27));
  const edges = Array.from({length: bands + 2}, (_, i) => hertz((i * mel(highest)) / (bands + 1)));
  return Array.from({length: bands}, (_, band) => {
    const [low, middle, high] = edges.slice(band, band + 3), filter = [];
    for (let bin = 0; bin < bins; bin++) {
      const f = (bin * rate) / (2 * (bins - 1));
      const weight = Math.min((f - low) / (middle - low), (high - f) / (high - middle));
      if (weight > 0) filter.push([bin, (2 * weight) / (high - low)]);
    }
    return filter;
  });
}

export class LogMel {
  constructor({sample_rate: rate, n_mels: bands, window_size: size, hop_length: hop, log_mel_least: least}) {
    Object.assign(this, {size, hop, least, rest: new Float32Array(size / 2)});
    this.filters = melFilters(size / 2 + 1, bands, rate / 2, rate);
    this.cosine = Float64Array.from({length: size}, (_, i) => Math.cos((2 * Math.PI * i) / size));
  }

  // The frames that these samples complete, each of n_mels values. The sound is zero before its first sample.
  feed(samples) {
    const joined = new Float32Array(this.rest.length + samples.length), frames = [];
    joined.set(this.rest);
    joined.set(samples, this.rest.length);
    let start = 0;
    for (; start + this.size <= joined.length; start += this.hop) {
      frames.push(this.frame(joined.subarray(start, start + this.size)));
    }
    this.rest = joined.slice(start);
    return frames;
  }

  frame(samples) {
    const {size, cosine} = this, sine = i => cosine[(i + 3 * (size >> 2)) % size];
    const windowed = Float64Array.from(samples, (x, i) => x * (0.5 - 0.5 * cosine[i]));
    const power = Float64Array.from({length: size / 2 + 1}, (_, bin) => {
      let real = 0, imaginary = 0;
      for (let i = 0, turn = 0; i < size; i++, turn = (turn + bin) % size) {
        real += windowed[i] * cosine[turn];
        imaginary += windowed[i] * sine(turn);
      }
      return real * real + imaginary * imaginary;
    });
    return Float32Array.from(this.filters, filter => {
      const sum = filter.reduce((total, [bin, weight]) => total + power[bin] * weight, 0);
      return (Math.max(Math.log10(Math.max(sum, 1e-10)), this.least) + 4) / 4;
    });
  }
}

// The frames of a recording, which is reflected at both ends
export async function melOfRecording(samples, constants) {
  const {window_size: size, hop_length: hop, sample_rate: rate} = constants, half = size / 2;
  if (samples.length <= half) throw new Error(`recording: has ${samples.length} samples, too few for a word`);
  const mel = new LogMel({...constants, log_mel_least: -Infinity}), frames = [];
  mel.rest = samples.slice(1, half + 1).reverse();
  for (let at = 0; at < samples.length; at += rate) {
    frames.push(...mel.feed(samples.subarray(at, at + rate)));
    await new Promise(resolve => setTimeout(resolve)); // so that the page stays usable
  }
  frames.push(...mel.feed(samples.slice(-half - 1, -1).reverse()));
  frames.length = Math.floor(samples.length / hop);
  const most = frames.reduce((before, frame) => Math.max(before, ...frame), -Infinity);
  return frames.map(frame => frame.map(value => Math.max(value, most - RANGE)));
}
