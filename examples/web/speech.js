// What the two families that speak have in common.
import {Decoder} from "./decoder.js";

const uniform = () => 1 - Math.random(); // above 0
export const normal = () => Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform());
export const gumbel = () => -Math.log(-Math.log(Math.random() || 0.5));
const PAUSE_S = 0.2, PARAGRAPH = 20; // between sentences; characters

// Parts of a text: sentences below `least` characters, or PARAGRAPH at the end of one, join the next one.
export function sentences(text, least) {
  const parts = [], plain = text.replace(/\s+/gu, gap => (gap.split("\n").length > 2 ? "\n" : " ")).trim();
  for (const paragraph of plain.split("\n")) {
    for (const [i, each] of paragraph.split(/(?<=[.!?\u2026])\s+|(?<=[\u3002\uff01\uff1f])\s*/u).entries()) {
      const marked = each.replace(/[\p{L}\p{N}]$/u, "$&."), fewest = i ? least : Math.min(least, PARAGRAPH);
      parts.push(parts.at(-1)?.length < fewest ? `${parts.pop()} ${marked}` : marked);
    }
  }
  return parts.filter(part => /[\p{L}\p{N}]/u.test(part));
}

// Frames after which a model has missed the end of a text, whose speech usually has `usual` frames
export function mostFrames(text, usual) {
  const words = text.match(/[\p{N}\p{S}\p{Lu}]/gu)?.length ?? 0;
  return Math.ceil(3 * usual) + Math.min(40, 10 + 4 * words + Math.round(usual));
}

// Subclasses have prepare(), promptOf(text, options), frame() and step(codes).
export class Speaker extends Decoder {
  // Yields samples float32, those of `chunk` frames at a time.
  async *speak(text, {chunk = 5, ...options} = {}) {
    const parts = sentences(text, this.leastCharacters ?? 60);
    for (const [index, part] of parts.entries()) {
      if (index) yield new Float32Array(PAUSE_S * this.constants.sample_rate);
      await this.start(part, options);
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

  // Begins to speak a text
  async start(text, options) {
    this.position = this.frames = 0;
    this.prompt = await this.promptOf(text, options);
    await this.read("prefill", this.prompt);
  }

  // The samples of the next frames. How frames are divided into calls changes roundings only.
  async decode(codes) {
    const shape = [1, codes.length, codes[0].length];
    const inputs = {codes: [codes.flat(), shape], position: [[this.frames], [1]]};
    this.frames += codes.length;
    return (await this.engine.run("codec_step", inputs)).audio.data;
  }
}
