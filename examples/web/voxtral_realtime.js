// Speech to text with Voxtral-Realtime.
import {Decoder} from "./decoder.js";
import {LogMel} from "./mel.js";
import {openTekken} from "./tokenizer.js";

export class VoxtralRealtime extends Decoder {
  async prepare() {
    const {bundle} = this;
    this.tokenizer = await openTekken(bundle);
    [this.mostTokens, this.mostRows] = [this.most("audio_encoder", "T"), this.most("prefill", "S")];
    const hasChunk = bundle.manifest.job.components.some(each => each.name === "encode_chunk");
    this.live = hasChunk ? "encode_chunk" : "audio_encoder"; // for one token
  }

  // Yields the text so far, for samples as they come.
  // delay: index into `delays`. isLive: text comes with each token of 80 ms, not with the most of a call.
  // tokens: fed back in place of those that the model chooses
  async *transcribe(parts, {isLive, delay, tokens: forced} = {}) {
    const {constants: c} = this, size = c.samples_per_token, chunk = isLive ? 1 : this.mostTokens;
    delay ??= isLive ? 0 : c.delays.length - 1;
    Object.assign(this, {delay, forced, mel: new LogMel(c), decoder: new TextDecoder(), text: ""});
    Object.assign(this, {frames: [], embeddings: [], tokens: [], encoded: 0, position: 0, samples: 0});
    this.prompt = c.left_pad_tokens + this.bundle.number("delays", c.delays[delay], 0, 256) + 1;
    await this.hear(new Float32Array(c.left_pad_tokens * size), 1, this.mostTokens);
    for await (const samples of parts) {
      this.samples += samples.length;
      yield await this.hear(samples, chunk, chunk);
    }
    const rest = (size - (this.samples % size)) % size + c.window_size / 2 - c.hop_length;
    const silence = new Float32Array(rest + (c.delays[delay] + c.flush_tokens + 1) * size);
    yield (await this.hear(silence, 1, chunk)) + this.decoder.decode();
  }

  // Encodes tokens of sound, from `least` to `most` in a call; the text so far
  async hear(samples, least, most) {
    this.frames.push(...this.mel.feed(samples));
    await this.encode(least, most);
    await this.decode();
    return this.text;
  }

  async encode(least, most) {
    const {constants: c} = this, size = c.samples_per_token / c.hop_length;
    while (this.frames.length >= least * size) {
      const count = Math.min(most, Math.floor(this.frames.length / size));
      const mel = new Float32Array(count * size * c.n_mels);
      this.frames.splice(0, count * size).forEach((frame, i) => mel.set(frame, i * c.n_mels));
      const inputs = {mel: [mel, [1, count, size, c.n_mels]], position: [[this.encoded], [1]]};
      const {embeddings} = await this.engine.run(count === 1 ? this.live : "audio_encoder", inputs);
      this.embeddings.push(...this.rowsOf(embeddings, count));
      this.encoded += count;
    }
  }

  // Runs the decoder on the embeddings so far
  async decode() {
    const {constants: c} = this;
    if (this.position === 0 && this.embeddings.length >= this.prompt) {
      const count = Math.min(this.prompt, this.mostRows);
      const ids = Array.from({length: this.prompt}, (_, i) => (i ? c.pad_id : c.bos_id));
      await this.step("prefill", ids.slice(0, count));
      for (const id of ids.slice(count)) await this.step("decode_step", [id]);
      this.take();
    }
    while (this.position && this.embeddings.length) {
      await this.step("decode_step", [this.forced?.[this.tokens.length - 1] ?? this.tokens.at(-1)]);
      this.take();
    }
  }

  async step(component, ids) {
    const {dim} = this.constants, rows = await this.embed("embed_tokens", ids);
    for (const [i, sound] of this.embeddings.splice(0, ids.length).entries()) {
      for (let k = 0; k < dim; k++) rows[i * dim + k] += sound[k];
    }
    await this.read(component, rows, {delay: [[this.delay], [1]]});
  }

  // Takes the next token, and its text without the space before the first word
  take() {
    const token = this.next();
    this.tokens.push(token);
    if (token < this.constants.first_text_id) return;
    const text = this.decoder.decode(this.tokenizer.bytes(token), {stream: true});
    this.text += this.text ? text : text.trimStart();
  }
}
