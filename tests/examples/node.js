// node node.js BUNDLE OUT.json: the vectors of a bundle, in Node with onnxruntime-web
import {readFile, writeFile} from "node:fs/promises";
import {join} from "node:path";
import * as ort from "onnxruntime-web";
import {open} from "./runner.js";
import {vectors} from "./vectors.js";

const [folder, out] = process.argv.slice(2);
try {
  const source = {name: folder, read: async path => new Uint8Array(await readFile(join(folder, path)))};
  const runner = await open(ort, source, {executionProviders: ["wasm"]});
  const {request} = JSON.parse(await readFile(join(folder, "vectors.json")));
  await writeFile(out, JSON.stringify(await vectors(runner, request)));
} catch (error) {
  console.error(error.message);
  process.exit(1);
}
