// Text to speech with Voxtral-TTS.
import {argmax, named} from "./decoder.js";
import {Speaker, mostFrames, normal} from "./speech.js";
import {openTekken} from "./tokenizer.js";

const END = 1, FIRST = 2; // codes: the end of the speech, and the first with a sound
const FRAMES_PER_CHARACTER = 0.68, SMALL = 10_000; // a vocabulary below it: trained on single sentences

export class VoxtralTTS extends Speaker {
  async prepare() {
    const {bundle} = this;
    this.tokenizer = await openTekken(bundle);
    this.embeddings = new Map(); // by voice
    for (const [name, path] of Object.entries(bundle.manifest.voices)) {
      this.embeddings.set(name, readEmbedding(path, await bundle.read(path), bundle.constants.dim));
    }
    [this.voices, this.languages] = [[...this.embeddings.keys()], []];
    this.leastCharacters = bundle.constants.vocab_size < SMALL ? 0 : undefined;
    this.voice = this.voices.find(name => name === "neutral_female") ?? this.voices[0];
  }

  // The rows that the decoder reads before the first frame
  async promptOf(text, {voice = this.voice}) {
    const {constants: c, tokenizer} = this, rows = this.embeddings.get(named("voice", voice, this.voices));
    const [next, repeat] = ["NEXT", "REPEAT"].map(each => tokenizer.special.get(`[${each}_AUDIO_TEXT]`));
    const head = [c.bos_id, c.begin_audio_id, ...Array(rows.length / c.dim).fill(c.audio_id), next];
    const ids = (this.ids = [...head, ...tokenizer.encode(text), repeat, c.begin_audio_id]);
    this.limit = mostFrames(text, FRAMES_PER_CHARACTER * text.length);
    const given = c.first_frame === "audio_token" ? [...ids, c.audio_id] : ids;
    const whole = await this.embed("embed_text", given);
    whole.set(rows, 2 * c.dim);
    this.isFirst = true;
    return whole;
  }

  // The codes of the next frame; null if the model ends the speech. draw: gives one value of noise
  async frame(draw = normal) {
    const {constants: c, outputs} = this;
    const barred = this.isFirst ? FIRST : FIRST - 1; // the first frame may not be the end
    this.isFirst = false;
    const logits = outputs.semantic_logits.data.subarray(0, FIRST + c.semantic_codes);
    const semantic = argmax(logits, code => code >= barred);
    if (semantic === END) return null;
    let x = Float32Array.from({length: c.n_codebooks - 1}, draw);
    const condition = [outputs.condition.data, outputs.condition.dims];
    for (let step = 0; step < c.euler_steps; step++) {
      const inputs = {x: [x, [1, x.length]], step: [[step], [1]], condition};
      x = (await this.engine.run("acoustic_step", inputs)).next_x.data;
    }
    return [semantic, ...Array.from(x, value => FIRST + level(value, c.acoustic_levels))];
  }

  async step(codes) {
    const {embeddings} = await this.engine.run("embed_codes", {codes: [codes, [1, codes.length]]});
    await this.read("decode_step", embeddings.data);
  }
}

// The tensor `embedding`, float32, of a file of safetensors
function readEmbedding(path, bytes, dim) {
  try {
    const length = Number(new DataView(bytes.buffer, bytes.byteOffset).getBigUint64(0, true));
    const {embedding} = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + length)));
    const [first, end] = embedding.data_offsets.map(each => 8 + length + each);
    const rows = new Float32Array(bytes.slice(first, end).buffer);
    if (first >= 8 + length && first < end && end <= bytes.length && rows.length % dim === 0) return rows;
  } catch {} // what is missing
  throw new Error(`${path}: no rows of ${dim} numbers float32 at its offsets; copy the bundle again`);
}

// The level of an acoustic value, in float32
function level(value, levels) {
  const f32 = Math.fround, shifted = f32(Math.min(Math.max(value, -1), 1) + 1) / 2;
  const scaled = f32(shifted * (levels - 1)), nearest = Math.round(scaled);
  return nearest - scaled === 0.5 && nearest % 2 ? nearest - 1 : nearest; // half to even
}
