// The modules of examples/web in Node: node node.js vectors BUNDLE OUT.json | say BUNDLE TEXT OUT.wav |
// transcribe BUNDLE IN.wav [--wasm]. On the native engine unless --wasm.
import {readFile, writeFile} from "node:fs/promises";
import {join} from "node:path";
import {Bundle} from "./bundle.js";
import {Engine} from "./engine.js";
import {familyOf} from "./runner.js";
import {readWav, writeWav} from "./wav.js";

class NativeEngine extends Engine {
  open(file) {
    return this.ort.InferenceSession.create(join(this.bundle.source.name, file));
  }
}

// What vectors.json has for a request, as flat arrays
const vectors = {
  async voxtral_tts(speaker, {text, voice, codes: given}, noise) {
    const {constants: c} = speaker, values = {semantic_logits: [], condition: [], codes: [], samples: []};
    await speaker.start(text, {voice});
    for (const [index, codes] of given.entries()) {
      for (const name of ["semantic_logits", "condition"]) values[name].push(...speaker.outputs[name].data);
      const drawn = Float32Array.from(noise.slice(index * (c.n_codebooks - 1), (index + 1) * (c.n_codebooks - 1)));
      values.codes.push(...(await speaker.frame(drawn)));
      values.samples.push(...(await speaker.decode([codes])));
      await speaker.step(codes);
    }
    return {ids: speaker.ids, ...values};
  },

  async qwen3_tts(speaker, {text, language, speaker: voice, instruct, codes: given}) {
    const values = {hidden: [], codes: [], samples: []};
    const sampling = {temperature: 0, others_temperature: 0};
    await speaker.start(text, {language, voice, instruct, sampling});
    for (const codes of given) {
      values.hidden.push(...speaker.outputs.hidden.data.slice(-speaker.constants.dim));
      values.codes.push(...(await speaker.frame()));
      values.samples.push(...(await speaker.decode([codes])));
      await speaker.step(codes);
    }
    return {ids: speaker.ids, prefill: Array.from(speaker.prompt), ...values};
  },

  async voxtral_realtime(listener, {recording, delay, tokens}) {
    const values = {mel: [], audio_embeds: []}, {engine} = listener;
    const run = engine.run.bind(engine);
    engine.run = async (component, inputs) => {
      const outputs = await run(component, inputs);
      if (inputs.mel) values.mel.push(...inputs.mel[0]), values.audio_embeds.push(...outputs.embeddings.data);
      if (outputs.logits && component === (listener.mostRows > 1 ? "prefill" : "decode_step")) values.prefill_logits = Array.from(outputs.logits.data);
      return outputs;
    };
    await listener.begin({delay, tokens});
    const samples = new Int16Array(new Uint8Array(Buffer.from(recording, "base64")).buffer);
    await listener.feed(Float32Array.from(samples, each => each / 32768));
    await listener.finish();
    return {...values, tokens: listener.tokens};
  },
};

const words = process.argv.slice(2).filter(word => word !== "--wasm"), isNative = !process.argv.includes("--wasm");
const [command, folder, text, out] = words;
try {
  const ort = await import(isNative ? "onnxruntime-node" : "onnxruntime-web");
  const source = {name: folder, read: async path => new Uint8Array(await readFile(join(folder, path)))};
  const bundle = await Bundle.open(source);
  const engine = new (isNative ? NativeEngine : Engine)(ort, bundle, {executionProviders: ["wasm"]});
  const runner = await familyOf(bundle).open(bundle, engine);
  if (command === "vectors") {
    const {request, values} = JSON.parse(await readFile(join(folder, "vectors.json")));
    const noise = values.find(each => each.name === "noise")?.values;
    await writeFile(text, JSON.stringify(await vectors[bundle.family](runner, request, noise)));
  } else if (command === "say") {
    const parts = [];
    for await (const samples of runner.speak(text)) parts.push(samples.slice());
    await writeFile(out, writeWav(parts, runner.constants.sample_rate));
  } else {
    await runner.begin();
    const heard = await runner.feed(readWav(await readFile(text), runner.constants.sample_rate));
    console.log(heard + (await runner.finish()));
  }
} catch (error) {
  console.error(error.message);
  process.exit(1);
}
