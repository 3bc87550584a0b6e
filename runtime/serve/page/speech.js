// Text to speech: a stream of samples is played, drawn and kept while it arrives.

import { read, request } from "/page/api.js";
import { disable, element, fill, seconds, showError } from "/page/elements.js";
import { PcmReader, toWav } from "/page/pcm.js";
import { Player } from "/page/player.js";
import { Waveform } from "/page/waveform.js";

const WAITING = "Waiting for the first sound.";
const form = element("speech-form");
const [model, voice, text] = [element("speech-model"), element("voice"), element("text")];
const [speak, stop, save] = [element("speak"), element("speech-stop"), element("save")];
const [status, time, problem] = [element("speech-status"), element("speech-time"), element("speech-error")];
const canvas = element("speech-wave");
const waveform = new Waveform(canvas);

let offered = { speaking: [], voices: [], limits: { text_characters: 0 } };
let current = null; // the speech that runs
let finished = null; // the speech that can be saved

/** Takes the description of the page and the list of voices. */
export function offerSpeech(page, voices) {
  offered = { ...page, voices };
  fill(model, page.speaking);
  showVoices();
  showCount();
}

function showVoices() {
  fill(voice, offered.voices.filter((each) => each.model === model.value));
}

function showCount() {
  const count = [...text.value].length.toLocaleString("en");
  const most = offered.limits.text_characters.toLocaleString("en");
  element("text-count").textContent = `${count} of ${most} characters`;
}

class Speech {
  constructor(rate) {
    this.rate = rate;
    this.pieces = []; // of bytes
    this.samples = 0;
    this.player = new Player(rate);
    this._abort = new AbortController();
    this._started = performance.now();
  }

  get length() {
    return this.samples / this.rate;
  }

  /** Returns when all of it is played. Throws ApiError or AbortError. */
  async run(body) {
    try {
      const response = await request("/v1/audio/speech", {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: JSON.stringify(body),
        signal: this._abort.signal,
      });
      await this._receive(response.body.getReader());
    } finally {
      this.player.finish();
      await this.player.ended;
    }
  }

  async _receive(reader) {
    const pcm = new PcmReader();
    for (;;) {
      const { done, value } = await read(reader, "speech");
      if (done) break;
      this.firstAfter ??= (performance.now() - this._started) / 1000;
      this.pieces.push(value);
      const samples = pcm.read(value);
      if (!samples.length) continue;
      this.samples += samples.length;
      waveform.add(samples);
      this.player.push(samples);
    }
    this.madeIn = (performance.now() - this._started) / 1000;
  }

  stop() {
    this._abort.abort();
    this.player.stop();
  }
}

async function start() {
  current?.stop();
  showError(problem);
  const chosen = offered.speaking.find((each) => each.id === model.value);
  if (!chosen) return showError(problem, "This server has no model that speaks.");
  const speech = new Speech(chosen.sample_rate);
  current = speech;
  waveform.clear();
  [stop.disabled, save.disabled] = [false, true];
  status.textContent = WAITING;
  showProgress(speech);
  let message = "";
  try {
    await speech.run(bodyOf());
    message = summary(speech);
  } catch (error) {
    message = error.name === "AbortError" ? "Stopped." : "";
    if (current === speech && !message) showError(problem, error.message);
  }
  if (current === speech) end(speech, message);
}

function bodyOf() {
  const seed = Number(element("seed").value);
  const body = { model: model.value, input: text.value, response_format: "pcm", seed };
  if (voice.value) body.voice = voice.value;
  const instructions = element("instructions").value.trim();
  if (instructions) body.instructions = instructions;
  return body;
}

function end(speech, message) {
  current = null;
  finished = speech;
  status.textContent = message;
  disable(stop, speak);
  save.disabled = !speech.samples;
  waveform.played = speech.player.played;
  waveform.draw();
  canvas.setAttribute("aria-label", `Waveform of ${seconds(speech.length)} of speech`);
}

function summary(speech) {
  const factor = speech.madeIn / speech.length;
  const first = `First sound after ${speech.firstAfter.toFixed(2)} s`;
  return `${first}, made in ${seconds(speech.madeIn)} (RTF ${factor.toFixed(2)}).`;
}

function showProgress(speech) {
  if (current !== speech) return;
  const { played } = speech.player;
  if (played && status.textContent === WAITING) status.textContent = "Speaking.";
  waveform.played = played;
  waveform.draw();
  time.textContent = speech.samples ? `${seconds(played / speech.rate)} of ${seconds(speech.length)}` : "";
  requestAnimationFrame(() => showProgress(speech));
}

function download() {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(toWav(finished.pieces, finished.rate));
  link.download = "speech.wav";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  start();
});
stop.addEventListener("click", () => current?.stop());
save.addEventListener("click", download);
model.addEventListener("change", showVoices);
text.addEventListener("input", showCount);
