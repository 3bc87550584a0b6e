// What vectors.json has for a request of a family, computed by the modules of examples/web, as flat arrays.
import {melOfRecording} from "./mel.js";
import {Generator} from "./random.js";

function samplesOf(recording) {
  const bytes = Uint8Array.from(atob(recording), each => each.charCodeAt(0));
  return Float32Array.from(new Int16Array(bytes.buffer), each => each / 32768);
}

const VECTORS = {
  async voxtral_tts(speaker, {text, voice, seed, codes: given}) {
    const generator = new Generator(seed);
    const values = {noise: [], semantic_logits: [], condition: [], codes: [], samples: []};
    const draw = () => (values.noise.push(generator.normal()), values.noise.at(-1));
    await speaker.start(text, {voice});
    for (const codes of given) {
      for (const name of ["semantic_logits", "condition"]) values[name].push(...speaker.outputs[name].data);
      values.codes.push(...(await speaker.frame(draw)));
      values.samples.push(...(await speaker.decode([codes])));
      await speaker.step(codes);
    }
    return {ids: speaker.ids, ...values};
  },

  async qwen3_tts(speaker, {text, language, speaker: voice, instruct, seed, codes: given}) {
    const generator = new Generator(seed), values = {noise: [], hidden: [], codes: [], samples: []};
    const gumbel = () => -Math.log(Math.max(generator.exponential(), 2 ** -126));
    const draw = () => (values.noise.push(gumbel()), values.noise.at(-1));
    await speaker.start(text, {language, voice, instruct});
    for (const codes of given) {
      values.hidden.push(...speaker.outputs.hidden.data.slice(-speaker.constants.dim));
      values.codes.push(...(await speaker.frame(draw)));
      values.samples.push(...(await speaker.decode([codes])));
      await speaker.step(codes);
    }
    return {ids: speaker.ids, prefill: Array.from(speaker.prompt), ...values};
  },

  async voxtral_realtime(listener, {recording, delay, tokens}) {
    const values = {mel: [], audio_embeds: []}, {engine} = listener, run = engine.run.bind(engine);
    let logits;
    engine.run = async (component, inputs) => {
      const outputs = await run(component, inputs);
      if (inputs.mel) values.mel.push(...inputs.mel[0]), values.audio_embeds.push(...outputs.embeddings.data);
      if (listener.tokens.length === 0) logits = outputs.logits ?? logits;
      return outputs;
    };
    for await (const text of listener.transcribe([samplesOf(recording)], {delay, tokens})) text;
    const last_logits = Array.from(listener.outputs.logits.data);
    return {...values, prefill_logits: Array.from(logits.data), tokens: listener.tokens, last_logits};
  },

  async qwen3_asr(recogniser, {recording, tokens: given}) {
    const samples = samplesOf(recording), sound = [];
    const logits = () => Array.from(recogniser.outputs.logits.data);
    const mel = (await melOfRecording(samples, recogniser.constants)).flatMap(frame => Array.from(frame));
    for await (const rows of recogniser.encode(samples)) sound.push(...rows);
    const prompt = recogniser.prompt(sound.length);
    await recogniser.readIds("prefill", prompt, sound);
    const prefill_logits = logits(), tokens = [recogniser.next()];
    for (const token of given.slice(0, -1)) {
      await recogniser.readIds("decode_step", [token]);
      tokens.push(recogniser.next());
    }
    const audio_embeds = sound.flatMap(row => Array.from(row));
    return {mel, audio_embeds, prompt, prefill_logits, tokens, last_logits: logits()};
  },
};

export function vectors(runner, request) {
  return VECTORS[runner.bundle.family](runner, request);
}
