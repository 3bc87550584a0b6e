// Speech to text with Voxtral-Realtime.
import {LogMel} from "./mel.js";
import {argmax} from "./speech.js";
import {Tekken} from "./tokenizer.js";

export class Listener {
  static async open(bundle, engine) {
    const tokenizer = new Tekken(JSON.parse(await bundle.text("tekken.json")));
    const listener = Object.assign(new Listener(), {bundle, engine, tokenizer, constants: bundle.constants});
    const most = (name, dim) => bundle.number(dim, bundle.component(name).signature.dims[dim][1], 1, 2 ** 24);
    [listener.mostTokens, listener.mostRows] = [most("audio_encoder", "T"), most("prefill", "S")];
    const hasChunk = bundle.manifest.job.components.some(each => each.name === "encode_chunk");
    listener.live = hasChunk ? "encode_chunk" : "audio_encoder"; // for one token
    return listener;
  }

  // delay: index into `delays`. isLive: text comes with each token of 80 ms, not with the most of a call.
  // tokens: fed back in place of those that the model chooses
  async begin({isLive = false, delay = isLive ? 0 : this.constants.delays.length - 1, tokens: forced} = {}) {
    const {constants: c} = this;
    Object.assign(this, {delay, forced, chunk: isLive ? 1 : this.mostTokens, frames: [], embeddings: []});
    Object.assign(this, {encoded: 0, position: 0, samples: 0, tokens: [], mel: new LogMel(c)});
    this.prompt = c.left_pad_tokens + this.bundle.number("delays", c.delays[delay], 0, 256) + 1;
    this.decoder = new TextDecoder();
    this.isFirst = true;
    this.frames.push(...this.mel.feed(new Float32Array(c.left_pad_tokens * c.samples_per_token)));
    await this.encode(1, this.mostTokens);
  }

  async feed(samples) {
    this.samples += samples.length;
    this.frames.push(...this.mel.feed(samples));
    await this.encode(this.chunk, this.chunk);
    return this.decode();
  }

  async finish() {
    const {constants: c} = this, size = c.samples_per_token, rest = (size - (this.samples % size)) % size;
    const silent = (c.delays[this.delay] + c.flush_tokens + 1) * size + c.window_size / 2 - c.hop_length;
    this.frames.push(...this.mel.feed(new Float32Array(rest + silent)));
    await this.encode(1, this.chunk);
    return (await this.decode()) + this.decoder.decode();
  }

  async encode(least, most) {
    const {constants: c} = this, size = c.samples_per_token / c.hop_length;
    while (this.frames.length >= least * size) {
      const count = Math.min(most, Math.floor(this.frames.length / size));
      const mel = new Float32Array(count * size * c.n_mels);
      this.frames.splice(0, count * size).forEach((frame, i) => mel.set(frame, i * c.n_mels));
      const inputs = {mel: [mel, [1, count, size, c.n_mels]], position: [[this.encoded], [1]]};
      const {embeddings} = await this.engine.run(count === 1 ? this.live : "audio_encoder", inputs);
      for (let i = 0; i < count; i++) this.embeddings.push(embeddings.data.slice(i * c.dim, (i + 1) * c.dim));
      this.encoded += count;
    }
  }

  // Runs the decoder on the embeddings so far; the text of its tokens
  async decode() {
    const {constants: c} = this;
    let text = "";
    if (this.position === 0 && this.embeddings.length >= this.prompt) {
      const count = Math.min(this.prompt, this.mostRows);
      const ids = Array.from({length: this.prompt}, (_, i) => (i ? c.pad_id : c.bos_id));
      await this.step("prefill", ids.slice(0, count));
      for (const id of ids.slice(count)) await this.step("decode_step", [id]);
      text += this.take();
    }
    while (this.position && this.embeddings.length) {
      await this.step("decode_step", [this.forced?.[this.tokens.length - 1] ?? this.tokens.at(-1)]);
      text += this.take();
    }
    return text;
  }

  async step(component, ids) {
    const {constants: c, engine} = this;
    const rows = (await engine.run("embed_tokens", {ids: [ids, [1, ids.length]]})).embeddings.data.slice();
    for (const [i, sound] of this.embeddings.splice(0, ids.length).entries()) {
      for (let k = 0; k < c.dim; k++) rows[i * c.dim + k] += sound[k];
    }
    const inputs = {embeddings: [rows, [1, ids.length, c.dim]], position: [[this.position], [1]]};
    this.logits = (await engine.run(component, {...inputs, delay: [[this.delay], [1]]})).logits;
    this.position += ids.length;
  }

  // Takes the next token; its text without the space before the first word
  take() {
    const token = argmax(this.logits.data), {first_text_id: first} = this.constants;
    this.tokens.push(token);
    if (token < first) return "";
    const text = this.decoder.decode(this.tokenizer.bytes(token), {stream: true});
    const shown = this.isFirst ? text.trimStart() : text;
    this.isFirst &&= !shown;
    return shown;
  }
}

// A recording without its offset, as loud as the model expects
export function amplified(recording) {
  const mean = recording.reduce((sum, each) => sum + each, 0) / recording.length;
  const samples = recording.map(each => each - mean);
  const peak = samples.reduce((most, each) => Math.max(most, Math.abs(each)), 0);
  const isQuiet = peak >= 10 ** (-60 / 20) && peak < 10 ** (-6 / 20);
  const factor = isQuiet ? Math.min(10 ** (40 / 20), 10 ** (-1 / 20) / peak) : 1;
  return samples.map(each => Math.min(Math.max(factor * each, -1), 1));
}
