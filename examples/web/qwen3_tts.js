// Text to speech with Qwen3-TTS: speakers of the model, and voices by description.
import {argmax, named} from "./decoder.js";
import {Speaker, gumbel, mostFrames} from "./speech.js";
import {openQwen} from "./tokenizer.js";

const FRAMES_PER_CHARACTER = 0.83, FRAMES_PER_WIDE = 2.8, MIN_FRAMES = 2;
const SMALL = "0b6"; // the size whose CustomVoice model follows no instruction

export class QwenTTS extends Speaker {
  async prepare() {
    const {bundle, constants: c} = this;
    if (c.kind === "base") throw new Error("a Base model clones voices, this example does not");
    this.tokenizer = await openQwen(bundle);
    this.followsInstructions = !(c.kind === "custom_voice" && c.size === SMALL);
    [this.voices, this.languages] = [c.speakers, c.codec_language_id, c.dialects].map(Object.keys);
    this.padding = await this.embed("embed_text", [c.tts_pad_id]);
  }

  // frames: lists of codes; a code below 0 adds nothing
  async codeRows(frames) {
    const shape = [1, frames.length, this.constants.n_codebooks];
    return (await this.engine.run("embed_codes", {codes: [frames.flat(), shape]})).embeddings.data;
  }

  // Ids of the talker's vocabulary that say who speaks, and in which language
  controls(voice, language) {
    const {constants: c} = this, speaker = this.voices.length && named("voice", voice, this.voices);
    const name = (["auto", "chinese"].includes(language) && c.dialects[speaker]) || language;
    const id = name === "auto" ? undefined : c.codec_language_id[named("language", name, this.languages)];
    const head = id === undefined ? [c.codec_nothink_id] : [c.codec_think_id];
    const spoken = [c.codec_think_bos_id, ...(id === undefined ? [] : [id]), c.codec_think_eos_id];
    return [...head, ...spoken, ...(speaker ? [c.speakers[speaker]] : []), c.codec_pad_id, c.codec_bos_id];
  }

  // The rows that the decoder reads before the first frame
  async promptOf(text, {voice = this.voices[0], language = "auto", instruct, sampling}) {
    const {constants: c, tokenizer} = this, [newline] = tokenizer.encode("\n");
    this.sampling = {...c.sampling_defaults, ...sampling};
    this.first = []; // codes 0 so far
    const wide = text.match(/[\u3000-\uffff]/g)?.length ?? 0;
    this.limit = mostFrames(text, FRAMES_PER_CHARACTER * (text.length - wide) + FRAMES_PER_WIDE * wide);
    this.ids = tokenizer.encode(text);
    const follows = instruct && this.followsInstructions;
    const asked = follows ? [...tokenizer.encode("user\n"), ...tokenizer.encode(instruct)] : [];
    const user = follows ? [c.im_start_id, ...asked, c.im_end_id, newline] : [];
    const controls = this.controls(voice, language.toLowerCase());
    const codes = await this.codeRows(controls.map(id => [id, ...Array(c.n_codebooks - 1).fill(-1)]));
    const [pad, bos] = [codes.slice(-2 * c.dim, -c.dim), codes.slice(-c.dim)];
    const embed = ids => this.embed("embed_text", ids);
    const beside = await embed([...Array(controls.length - 2).fill(c.tts_pad_id), c.tts_bos_id]);
    const body = await embed([...this.ids, c.tts_eos_id]);
    return Float32Array.from([
      ...(await embed([...user, c.im_start_id, c.assistant_id, newline])),
      ...beside.map((value, i) => value + codes[i]),
      ...body.map((value, i) => value + pad[i % c.dim]),
      ...bos.map((value, i) => value + this.padding[i]),
    ]);
  }

  // The codes of the next frame; null if the model ends the speech. draw: gives one value of noise
  async frame(draw = gumbel) {
    const {constants: c, outputs, sampling: s} = this, books = c.n_codebooks - 1;
    const first = this.firstCode(outputs.logits.data, draw);
    if (first < 0) throw new Error("manifest.json: sampling_defaults or logits that leave no code");
    if (first === c.codec_eos_token_id) return null;
    this.first.push(first);
    const draws = s.others_temperature > 0, topK = Math.min(s.others_top_k || c.other_codes, c.other_codes);
    const noise = Float32Array.from({length: books * c.other_codes}, () => (draws ? draw() : 0));
    const inputs = {
      hidden: [outputs.hidden.data.slice(-c.dim), [1, 1, c.dim]],
      codes: [[first, ...Array(books).fill(-1)], [1, c.n_codebooks]],
      noise: [noise, [1, books, c.other_codes]],
      temperature: [[draws ? s.others_temperature : 1], [1]],
      top_k: [[topK], [1]],
      top_p: [[s.others_top_p], [1]],
    };
    return Array.from((await this.engine.run("code_predictor", inputs)).chosen.data, Number);
  }

  firstCode(logits, draw) {
    const {constants: c, sampling: s} = this, end = c.codec_eos_token_id, earlier = new Set(this.first);
    const isAllowed = id => id < c.first_codes || (id === end && this.first.length >= MIN_FRAMES);
    const penalty = value => (value > 0 ? value / s.repetition_penalty : value * s.repetition_penalty);
    const scores = Float64Array.from(logits, (value, id) => (earlier.has(id) ? penalty(value) : value));
    if (!s.temperature) return argmax(scores, isAllowed);
    const order = [...scores.keys()].filter(isAllowed).sort((a, b) => scores[b] - scores[a] || a - b);
    const scaled = scores.map(value => (value - scores[order[0]]) / s.temperature);
    const least = scaled[order[Math.min(s.top_k || order.length, order.length) - 1]];
    const kept = order.filter(id => scaled[id] >= least), weights = kept.map(id => Math.exp(scaled[id]));
    const total = weights.reduce((sum, each) => sum + each, 0);
    let before = 0; // probability of the ids in front of each, times the total
    const nucleus = new Set(kept.filter((_, i) => (before += weights[i]) - weights[i] < s.top_p * total));
    return argmax(scaled.map(value => value + draw()), id => nucleus.has(id));
  }

  async step(codes) {
    const rows = await this.codeRows([codes]);
    await this.read("decode_step", rows.map((value, i) => value + this.padding[i]));
  }
}
