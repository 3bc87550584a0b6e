// What the two families that speak have in common.

export function argmax(values, isAllowed = () => true) {
  let best = -1;
  values.forEach((value, i) => (best = isAllowed(i) && (best < 0 || value > values[best]) ? i : best));
  return best;
}

const uniform = () => 1 - Math.random(); // above 0
export const normal = () => Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform());
export const gumbel = () => -Math.log(-Math.log(Math.random() || 0.5));

export function roundHalfEven(value) {
  const down = Math.floor(value), rest = value - down;
  return rest > 0.5 || (rest === 0.5 && down % 2) ? down + 1 : down;
}

const SHORT = 60; // characters; shorter sentences are spoken with the next one

export function sentences(text) {
  const parts = [];
  for (const sentence of text.trim().split(/(?<=[.!?\u2026])\s+|(?<=[\u3002\uff01\uff1f])\s*|\n+/u)) {
    parts.push(parts.at(-1)?.length < SHORT ? `${parts.pop()} ${sentence}` : sentence);
  }
  return parts.filter(part => /[\p{L}\p{N}]/u.test(part));
}

// Subclasses have prepare(), start(text, options), frame() and step(codes).
export class Speaker {
  static async open(bundle, engine) {
    const rows = bundle.component("prefill").signature.states[0].shape[2]; // in the caches
    const speaker = Object.assign(new this(), {bundle, engine, constants: bundle.constants, rows});
    await speaker.prepare();
    return speaker;
  }

  // Yields samples float32, those of `chunk` frames at a time.
  async *speak(text, {chunk = 5, ...options} = {}) {
    for (const sentence of sentences(text)) {
      await this.start(sentence, options);
      const waiting = [];
      for (let codes; (codes = waiting.length + this.frames < this.limit && (await this.frame())); ) {
        waiting.push(codes);
        if (waiting.length === chunk) yield await this.decode(waiting.splice(0));
        if (this.position >= this.rows) break;
        await this.step(codes);
      }
      if (waiting.length) yield await this.decode(waiting);
    }
  }

  begin() {
    this.engine.states.clear();
    this.position = this.frames = 0; // rows of the caches, and frames
  }

  // Reads rows of the width of the model: `outputs` are those of the last one
  async read(component, values) {
    const rows = values.length / this.constants.dim;
    const inputs = {embeddings: [values, [1, rows, this.constants.dim]], position: [[this.position], [1]]};
    this.outputs = await this.engine.run(component, inputs);
    this.position += rows;
  }

  // The samples of the next frames. How frames are divided into calls changes roundings only.
  async decode(codes) {
    const shape = [1, codes.length, codes[0].length];
    const inputs = {codes: [codes.flat(), shape], position: [[this.frames], [1]]};
    this.frames += codes.length;
    return (await this.engine.run("codec_step", inputs)).audio.data;
  }
}
