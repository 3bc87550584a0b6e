// Text to speech with Voxtral-TTS.
import {BundleError} from "./bundle.js";
import {Generator} from "./random.js";
import {Speaker, argmax, roundHalfEven} from "./speech.js";
import {Tekken} from "./tokenizer.js";

const END = 1, FIRST = 2; // codes: the end of the speech, and the first with a sound
const FRAMES_PER_CHARACTER = 0.68;

export class VoxtralTTS extends Speaker {
  async prepare() {
    const {bundle} = this;
    this.tokenizer = new Tekken(JSON.parse(await bundle.text("tekken.json")));
    this.voices = Object.keys(bundle.manifest.voices);
    this.voice = this.voices.find(name => name === "neutral_female") ?? this.voices[0];
    this.languages = [];
  }

  // float32 rows of a voice: the tensor `embedding` of a file of safetensors
  async voiceRows(name) {
    const path = this.bundle.manifest.voices[name];
    if (!path) throw new BundleError(`voice ${name}: unknown, this bundle has ${this.voices.join(", ")}`);
    const bytes = (await this.bundle.read(path)).slice();
    const length = Number(new DataView(bytes.buffer).getBigUint64(0, true));
    const {embedding} = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + length)));
    const [first, end] = embedding.data_offsets;
    return new Float32Array(bytes.slice(8 + length + first, 8 + length + end).buffer);
  }

  async start(text, {voice = this.voice, seed = 0}) {
    this.begin();
    const {constants: c, tokenizer} = this, rows = await this.voiceRows(voice), count = rows.length / c.dim;
    const [next, repeat] = ["[NEXT_AUDIO_TEXT]", "[REPEAT_AUDIO_TEXT]"].map(name => tokenizer.special.get(name));
    const head = [c.bos_id, c.begin_audio_id, ...Array(count).fill(c.audio_id), next];
    const ids = [...head, ...tokenizer.encode(text), repeat, c.begin_audio_id];
    this.ids = ids;
    this.generator = new Generator(seed);
    this.limit = Math.ceil(3 * FRAMES_PER_CHARACTER * text.length) + 50;
    const given = c.first_frame === "audio_token" ? [...ids, c.audio_id] : ids;
    const {embeddings} = await this.engine.run("embed_text", {ids: [given, [1, given.length]]});
    const whole = embeddings.data.slice();
    whole.set(rows, 2 * c.dim);
    await this.read("prefill", whole);
    this.isFirst = true;
  }

  noise() {
    return Float32Array.from({length: this.constants.n_codebooks - 1}, () => this.generator.normal());
  }

  // The codes of the next frame; null if the model ends the speech
  async frame(noise = this.noise()) {
    const {constants: c, outputs} = this;
    const barred = this.isFirst ? FIRST : FIRST - 1; // the first frame may not be the end
    this.isFirst = false;
    const logits = outputs.semantic_logits.data.subarray(0, FIRST + c.semantic_codes);
    const semantic = argmax(logits, code => code >= barred);
    if (semantic === END) return null;
    let x = noise;
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

  // What vectors.json has for a request
  async vectors(request) {
    const values = {noise: [], semantic_logits: [], condition: [], codes: [], samples: []};
    await this.start(request.text, request);
    values.ids = this.ids;
    const noise = request.codes.map(() => this.noise());
    for (const [index, given] of request.codes.entries()) {
      values.noise.push(...noise[index]);
      values.semantic_logits.push(...this.outputs.semantic_logits.data);
      values.condition.push(...this.outputs.condition.data);
      values.codes.push(...(await this.frame(noise[index])));
      values.samples.push(...(await this.decode([given])));
      await this.step(given);
    }
    return values;
  }
}

// The level of an acoustic value, in float32
function level(value, levels) {
  const f32 = Math.fround, shifted = f32(Math.min(Math.max(value, -1), 1) + 1) / 2;
  return roundHalfEven(f32(shifted * (levels - 1)));
}
