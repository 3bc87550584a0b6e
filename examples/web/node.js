// node node.js vectors BUNDLE OUT.json | say BUNDLE TEXT OUT.wav | transcribe BUNDLE IN.wav   [--wasm]
import {readFile, writeFile} from "node:fs/promises";
import {join} from "node:path";
import {open} from "./runner.js";
import {readWav, writeWav} from "./wav.js";

const words = process.argv.slice(2).filter(word => word !== "--wasm");
const [command, folder, text, out] = words;
const isNative = words.length === process.argv.length - 2;

try {
  const ort = await import(isNative ? "onnxruntime-node" : "onnxruntime-web");
  const source = {name: folder, read: async path => new Uint8Array(await readFile(join(folder, path)))};
  if (isNative) source.path = path => join(folder, path);
  const runner = await open(ort, source, isNative ? {} : {executionProviders: ["wasm"]});
  if (command === "vectors") {
    const {request} = await runner.bundle.vectors();
    await writeFile(text, JSON.stringify(await runner.vectors(request)));
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
