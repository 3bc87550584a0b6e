// The page: opens a bundle, and speaks or listens with it.
import {amplified, microphone, play, readSound} from "./audio.js";
import {filesSource, urlSource} from "./bundle.js";
import {open} from "./runner.js";

const query = new URLSearchParams(location.search), element = id => document.getElementById(id);
const onGpu = query.get("engine") === "webgpu", dist = "./node_modules/onnxruntime-web/dist/";
const ort = await import(`${dist}${onGpu ? "ort.webgpu.min.mjs" : "ort.wasm.min.mjs"}`);
ort.env.wasm.proxy = !onGpu; // products run in a worker, so the page stays usable
element("status").textContent = "";
const say = text => (element("status").textContent = text);
let runner, stop = new AbortController(), running = Promise.resolve();

// Runs one action at a time: a new one stops the last one. An error is one line of the page.
function act(action) {
  stop.abort();
  const {signal} = (stop = new AbortController());
  const fail = error => (element("error").textContent = signal.aborted ? "" : error.message);
  running = running.then(() => {
    fail({message: ""});
    element("stop").disabled = false;
    return action(signal);
  }).catch(fail).finally(() => (element("stop").disabled = true));
}

async function openBundle(source) {
  const executionProviders = onGpu ? ["webgpu", "wasm"] : ["wasm"], start = performance.now();
  const next = await open(ort, source, {executionProviders});
  const {manifest: {job}, constants: c} = next.bundle, isSpeaker = "speak" in next;
  let unused = next; // if it fails: the last bundle stays open
  try {
    for (const {file} of job.components) await next.engine.session(file);
    [runner, unused] = [next, runner];
  } finally {
    for (const session of unused?.engine.sessions.values() ?? []) await session.release();
  }
  element("speak").hidden = !isSpeaker;
  element("listen").hidden = isSpeaker;
  const fill = (id, names) => {
    element(id).replaceChildren(...names.map(name => new Option(name, name, false, name === runner.voice)));
    element(id).parentElement.hidden = names.length < 2;
  };
  fill("voice", runner.voices ?? []);
  fill("language", ["auto", ...(runner.languages ?? [])]);
  fill("delay", ["usual", ...(c.delays_ms ?? []).map(delay => `${delay} ms`)]);
  element("instruct").parentElement.hidden = !runner.followsInstructions;
  element("context").parentElement.hidden = !runner.takesContext;
  const seconds = ((performance.now() - start) / 1000).toFixed(1);
  say(`${job.source.name}, ${job.request.quant}: ready after ${seconds} s`);
  await keepPage().catch(() => {}); // without a network it is kept already
}

// Keeps what the page has loaded, for use without a network
async function keepPage() {
  const urls = performance.getEntriesByType("resource").map(each => each.name);
  const own = urls.filter(url => url.startsWith(location.origin)), cache = await caches.open("voxport");
  for (const url of [location.href, "worklets.js", ...own]) {
    if (!(await cache.match(url))) await cache.add(url);
  }
}

const value = id => (!element(id).parentElement.hidden && element(id).value) || undefined;

async function speak(signal) {
  const options = {chunk: 1, voice: value("voice"), language: value("language"), instruct: value("instruct")};
  const {sample_rate: rate} = runner.constants, start = performance.now();
  let first, count = 0;
  const onPart = samples => {
    first ??= performance.now() - start;
    count += samples.length;
    const factor = (performance.now() - start) / 1000 / (count / rate);
    say(`first sound after ${Math.round(first)} ms, real-time factor ${factor.toFixed(2)}`);
  };
  await play(runner.speak(element("text").value, options), rate, {signal, onPart});
}

async function transcribe(parts, signal, isLive) {
  const start = performance.now(), shown = element("transcript");
  shown.textContent = "";
  if (isLive && runner.textComesLast) say("recording; its text comes after Stop");
  const delay = [undefined, ...(runner.constants.delays?.keys() ?? [])][element("delay").selectedIndex];
  const options = {delay, isLive, language: value("language"), context: value("context")};
  for await (const text of runner.transcribe(parts, options)) {
    if (text !== shown.textContent) shown.textContent = text;
    if (signal.aborted && (!isLive || signal !== stop.signal)) return; // another action stops this one
    if (signal.aborted) {
      [isLive, stop] = [false, new AbortController()]; // the microphone has ended, and the next stop ends all
      signal = stop.signal;
    }
  }
  const seconds = runner.samples / runner.constants.sample_rate, taken = (performance.now() - start) / 1000;
  const found = runner.language ? `${runner.language}: ` : "";
  say(`${found}${seconds.toFixed(1)} s of sound in ${taken.toFixed(1)} s`);
}

async function* file(sound) {
  const rate = runner.constants.sample_rate, samples = amplified(await readSound(sound, rate));
  for (let at = 0; at < samples.length; at += rate) yield samples.slice(at, at + rate);
}

const fromUrl = signal => openBundle(urlSource(element("url").value, (path, bytes, size) => {
  signal.throwIfAborted();
  say(`${path}: ${Math.round((100 * bytes) / (size ?? bytes))} %`);
}));
const on = (id, event, action) =>
  element(id).addEventListener(event, each => (each.preventDefault(), act(action)));
on("bundle", "submit", fromUrl);
on("folder", "change", () => openBundle(filesSource(element("folder").files)));
on("speak", "submit", speak);
on("recording", "change", signal => transcribe(file(element("recording").files[0]), signal, false));
on("listen", "submit", signal => transcribe(microphone(runner.constants.sample_rate, signal), signal, true));
element("stop").addEventListener("click", () => stop.abort());

await navigator.serviceWorker?.register("service_worker.js").catch(() => {}); // the page works without it
element("url").value = query.get("bundle") ?? element("bundles").options[0]?.value ?? "";
if (element("url").value) act(fromUrl);
