// Speech to text with Qwen3-ASR, of whole recordings.
import {Decoder, named} from "./decoder.js";
import {melOfRecording} from "./mel.js";
import {openQwen} from "./tokenizer.js";

const TAG = "<asr_text>"; // between the language and the text of an answer
const NO_SPACES = ["Chinese", "Cantonese", "Japanese", "Thai"]; // are written without them
const TOKENS_PER_SECOND = 16, OTHER_ROWS = 64; // of an answer; of a prompt beside sound and context
const SEARCH_S = 10, PAUSE_S = 0.1; // where a long recording is divided

export class QwenASR extends Decoder {
  async prepare() {
    const {bundle, constants: c} = this;
    if (c.kind === "aligner") throw new Error("an aligner gives times to words, this example does not");
    this.tokenizer = await openQwen(bundle);
    this.languages = c.languages;
    this.takesContext = this.textComesLast = true;
    this.mostRows = this.most("prefill", "S");
  }

  // Yields the text so far, after the last of `parts`; `language` is then the one that was found.
  // language: a name, or "auto". context: words that may occur
  async *transcribe(parts, {language = "auto", context = ""} = {}) {
    const {sample_rate: rate, chunk_rows: perSecond} = this.constants, received = [];
    const forced = language === "auto" ? undefined : named("language", language, this.languages);
    const room = this.rows - OTHER_ROWS - this.tokenizer.encode(context).length;
    const longest = room / (perSecond + TOKENS_PER_SECOND);
    if (longest < 2 * SEARCH_S) throw new Error("context: too long for the caches; give a shorter one");
    for await (const samples of parts) received.push(samples);
    const recording = new Float32Array(await new Blob(received).arrayBuffer());
    this.samples = recording.length;
    let text = "";
    for (const piece of divide(recording, longest, rate)) {
      const before = text;
      for await (const answer of this.answer(piece, context, forced)) {
        const isSpaced = before && answer && !NO_SPACES.includes(this.language);
        yield (text = before + (isSpaced ? " " : "") + answer);
      }
    }
  }

  // Yields the text of an answer while it grows
  async *answer(samples, context, forced) {
    const {constants: c} = this, sound = [], tokens = [];
    for await (const rows of this.encode(samples)) {
      sound.push(...rows);
      yield ""; // the caller may stop here
    }
    this.position = 0;
    await this.readIds("prefill", this.prompt(sound.length, context, forced), sound);
    const limit = Math.round((1 + samples.length / c.sample_rate) * TOKENS_PER_SECOND);
    for (let token = this.next(); !c.end_ids.includes(token); token = this.next()) {
      if (tokens.length === limit || this.position === this.rows) break;
      tokens.push(token);
      yield this.textOf(tokens, forced, false);
      await this.readIds("decode_step", [token]);
    }
    yield this.textOf(tokens, forced, true);
  }

  // Yields rows of sound, those of one window of the encoder at a time
  async *encode(samples) {
    const {constants: c} = this, frames = await melOfRecording(samples, c);
    const size = c.window_chunks * c.chunk_frames, isShort = frames.length < c.chunk_frames;
    for (let first = 0; first < frames.length; first += size) {
      const window = frames.slice(first, first + size), chunks = Math.ceil(window.length / c.chunk_frames);
      const mel = new Float32Array(chunks * c.chunk_frames * c.n_mels);
      window.forEach((frame, i) => mel.set(frame, i * c.n_mels));
      const {embeddings} = await this.engine.run("audio_encoder", {
        mel: [mel, [1, chunks, c.chunk_frames, c.n_mels]],
        frames: [[window.length], [1]],
        is_short: [[Number(isShort)], [1]],
      });
      const whole = Math.floor(window.length / c.chunk_frames), rest = window.length % c.chunk_frames;
      yield this.rowsOf(embeddings, whole * c.chunk_rows + Math.ceil(rest / 8));
    }
  }

  // Ids around `rows` rows of sound. A language that is forced begins the answer.
  prompt(rows, context = "", forced = undefined) {
    const {constants: c} = this, encode = text => this.tokenizer.encode(text);
    const answer = forced ? `language ${forced}` : "";
    return [
      ...[c.im_start_id, ...encode(`system\n${context}`), c.im_end_id, ...encode("\n")],
      ...[c.im_start_id, ...encode("user\n"), c.audio_start_id, ...Array(rows).fill(c.audio_pad_id)],
      ...[c.audio_end_id, c.im_end_id, ...encode("\n")],
      ...[c.im_start_id, ...encode(`assistant\n${answer}`), ...(forced ? [c.asr_text_id] : [])],
    ];
  }

  // Rows of sound take the places of their ids.
  async readIds(component, ids, sound = []) {
    const {audio_pad_id: pad, dim} = this.constants;
    let taken = 0; // rows of sound
    for (let at = 0; at < ids.length; at += this.mostRows) {
      const part = ids.slice(at, at + this.mostRows), rows = await this.embed("embed_tokens", part);
      part.forEach((id, i) => id === pad && rows.set(sound[taken++] ?? [], i * dim));
      await this.read(component, rows);
    }
  }

  // The text of an answer. What it says before its tag becomes `language`.
  textOf(tokens, forced, isWhole) {
    const tag = new TextEncoder().encode(TAG), {asr_text_id: tagId} = this.constants;
    const bytes = tokens.flatMap(id => Array.from(id === tagId ? tag : this.tokenizer.bytes(id)));
    const decoded = new TextDecoder().decode(Uint8Array.from(bytes), {stream: !isWhole});
    const answer = withoutRepetitions(decoded.trim()), [head, ...rest] = answer.split(TAG);
    this.language = forced ?? (/^\s*language (?!none)(.*)$/im.exec(head)?.[1].trim() ?? "");
    if (forced) return answer;
    return rest.length || !isWhole ? rest.join(TAG).trim() : answer;
  }
}

// A model that loops repeats a character more than 20 times, or up to 20 of them 20 times. They stand once.
const withoutRepetitions = text =>
  text.replace(/(.)\1{20,}/gsu, "$1").replace(/(?=.{40})(.{1,20}?)\1{19,}/gsu, "$1");

// Pieces of a recording of at most `longest` seconds, cut where the end of one is quietest
export function* divide(samples, longest, rate) {
  const limit = Math.floor(longest * rate), search = SEARCH_S * rate, size = PAUSE_S * rate;
  while (samples.length > limit) {
    let end = limit, least = Infinity;
    for (let at = limit - search; at <= limit - 2 * size; at += size) {
      const level = samples.subarray(at, at + size).reduce((sum, each) => sum + Math.abs(each), 0);
      if (level < least) [end, least] = [at + size / 2, level];
    }
    yield samples.subarray(0, end);
    samples = samples.subarray(end);
  }
  yield samples;
}
