// Text to speech with Qwen3-TTS: speakers of the model, and voices by description.
import {BundleError, concatenate} from "./bundle.js";
import {Generator} from "./random.js";
import {Speaker, argmax} from "./speech.js";
import {QwenTokenizer} from "./tokenizer.js";

const FRAMES_PER_CHARACTER = 0.83, MIN_FRAMES = 2;
const SMALLEST = 2 ** -126; // float32, so that no noise is infinite

export class QwenTTS extends Speaker {
  async prepare() {
    const {bundle, constants: c} = this;
    if (c.kind === "base") throw new BundleError("a Base model clones voices, which this example does not do");
    const vocabulary = JSON.parse(await bundle.text("vocab.json"));
    this.tokenizer = new QwenTokenizer(vocabulary, await bundle.text("merges.txt"));
    this.voices = Object.keys(c.speakers);
    this.languages = Object.keys(c.codec_language_id);
    this.padding = await this.text([c.tts_pad_id]);
  }

  // Rows of ids of text
  async text(ids) {
    if (!ids.length) return new Float32Array(0);
    return (await this.engine.run("embed_text", {ids: [ids, [1, ids.length]]})).embeddings.data;
  }

  // Rows of frames of codes; a code below 0 adds nothing
  async codes(frames) {
    const shape = [1, frames.length, this.constants.n_codebooks];
    return (await this.engine.run("embed_codes", {codes: [frames.flat(), shape]})).embeddings.data;
  }

  languageIds(language, voice) {
    const {constants: c} = this, name = language.toLowerCase();
    const dialect = ["auto", "chinese"].includes(name) ? c.dialects[voice] : undefined;
    const id = c.codec_language_id[dialect ?? name];
    if (id === undefined && name !== "auto") {
      throw new BundleError(`language ${language}: unknown, this bundle has ${this.languages.join(", ")}`);
    }
    return id === undefined
      ? [c.codec_nothink_id, c.codec_think_bos_id, c.codec_think_eos_id]
      : [c.codec_think_id, c.codec_think_bos_id, id, c.codec_think_eos_id];
  }

  async start(text, {voice = this.voices[0], language = "auto", instruct, seed = 0, sampling = {}}) {
    this.begin();
    const {constants: c, tokenizer, padding} = this;
    const speaker = this.voices.length ? [c.speakers[voice.toLowerCase()]] : [];
    if (speaker.includes(undefined)) throw new BundleError(`voice ${voice}: this bundle has ${this.voices.join(", ")}`);
    Object.assign(this, {generator: new Generator(seed), sampling: {...c.sampling_defaults, ...sampling}, first: []});
    this.limit = Math.ceil(3 * FRAMES_PER_CHARACTER * text.length) + 50;
    this.ids = tokenizer.encode(text);
    const newline = tokenizer.encode("\n"), follows = instruct && !(c.kind === "custom_voice" && c.size === "0b6");
    const user = follows ? [c.im_start_id, ...tokenizer.encode("user\n"), ...tokenizer.encode(instruct), c.im_end_id, ...newline] : [];
    const controls = [...this.languageIds(language, voice?.toLowerCase()), ...speaker, c.codec_pad_id, c.codec_bos_id];
    const codes = await this.codes(controls.map(id => [id, ...Array(c.n_codebooks - 1).fill(-1)]));
    const [pad, bos] = [codes.slice(-2 * c.dim, -c.dim), codes.slice(-c.dim)];
    // beside the controls: padding and tts_bos; beside pad: the text; beside bos: padding
    const head = await this.text([...Array(controls.length - 2).fill(c.tts_pad_id), c.tts_bos_id]);
    const body = await this.text([...this.ids, c.tts_eos_id]);
    this.prompt = concatenate([
      await this.text([...user, c.im_start_id, c.assistant_id, ...newline]),
      head.map((value, i) => value + codes[i]),
      body.map((value, i) => value + pad[i % c.dim]),
      bos.map((value, i) => value + padding[i]),
    ]);
    await this.read("prefill", this.prompt);
  }

  noise(count) {
    const draw = () => -Math.log(Math.max(this.generator.exponential(), SMALLEST));
    return Float32Array.from({length: count}, draw);
  }

  // The codes of the next frame; null if the model ends the speech
  async frame() {
    const {constants: c, outputs, sampling: s} = this, books = c.n_codebooks - 1;
    const first = this.firstCode(outputs.logits.data, s.temperature && this.noise(c.vocab_size));
    if (first === c.codec_eos_token_id) return null;
    const draws = s.others_temperature > 0, size = books * c.other_codes;
    const topK = s.others_top_k > 0 && s.others_top_k < c.other_codes ? s.others_top_k : c.other_codes;
    const inputs = {
      hidden: [outputs.hidden.data.slice(-c.dim), [1, 1, c.dim]],
      codes: [[first, ...Array(books).fill(-1)], [1, c.n_codebooks]],
      noise: [draws ? this.noise(size) : new Float32Array(size), [1, books, c.other_codes]],
      temperature: [[draws ? s.others_temperature : 1], [1]],
      top_k: [[topK], [1]],
      top_p: [[s.others_top_p], [1]],
    };
    this.first.push(first);
    return Array.from((await this.engine.run("code_predictor", inputs)).chosen.data, Number);
  }

  firstCode(logits, noise) {
    const {constants: c, sampling: s} = this, end = c.codec_eos_token_id, earlier = new Set(this.first);
    const isAllowed = id => id < c.first_codes || (id === end && this.first.length >= MIN_FRAMES);
    const scores = Float64Array.from(logits, (value, id) => {
      if (!earlier.has(id) || s.repetition_penalty === 1) return value;
      return value > 0 ? value / s.repetition_penalty : value * s.repetition_penalty;
    });
    if (!s.temperature) return argmax(scores, isAllowed);
    const most = scores[argmax(scores, isAllowed)];
    const order = [...scores.keys()].filter(isAllowed).sort((a, b) => scores[b] - scores[a] || a - b);
    const scaled = scores.map(value => (value - most) / s.temperature);
    const least = s.top_k > 0 && s.top_k < order.length ? scaled[order[s.top_k - 1]] : -Infinity;
    const kept = order.filter(id => scaled[id] >= least), weights = kept.map(id => Math.exp(scaled[id]));
    const total = weights.reduce((a, b) => a + b, 0);
    let before = 0;
    const nucleus = new Set(kept.filter((_, i) => (before += weights[i]) - weights[i] < s.top_p * total));
    return argmax(scaled.map((value, id) => value + noise[id]), id => nucleus.has(id));
  }

  async step(codes) {
    const frame = await this.codes([codes]);
    await this.read("decode_step", frame.map((value, i) => value + this.padding[i]));
  }

  // What vectors.json has for a request: greedy
  async vectors({text, language, speaker, instruct, codes: given}) {
    const values = {hidden: [], codes: [], samples: []};
    const sampling = {temperature: 0, others_temperature: 0};
    await this.start(text, {language, voice: speaker, instruct, sampling});
    for (const codes of given) {
      values.hidden.push(...this.outputs.hidden.data.slice(-this.constants.dim));
      values.codes.push(...(await this.frame()));
      values.samples.push(...(await this.decode([codes])));
      await this.step(codes);
    }
    return {ids: this.ids, prefill: [...this.prompt], ...values};
  }
}
