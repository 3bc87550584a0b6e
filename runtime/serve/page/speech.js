// Text to speech: a stream of samples is played, drawn and kept while it arrives.

import { read, request } from "/page/api.js";
import { describeVoice, disable, download, element, fill, seconds, showError } from "/page/elements.js";
import { PcmReader, toWav } from "/page/pcm.js";
import { Player } from "/page/player.js";
import { Waveform } from "/page/waveform.js";

const WAITING = "Waiting for the first sound.";
const form = element("speech-form");
const [model, voice, text] = [element("speech-model"), element("voice"), element("text")];
const [speak, stop, save] = [element("speak"), element("speech-stop"), element("save")];
const audio = element("speech-audio"); // plays the speech again
const [seed, instructions] = [element("seed"), element("instructions")];
const [status, time, problem] = [element("speech-status"), element("speech-time"), element("speech-error")];
const canvas = element("speech-wave");
const waveform = new Waveform(canvas);

let offered = { speaking: [], voices: [], limits: { text_characters: 0 } };
let current = null; // the speech that runs
let finished = null; // a WAV of the speech that can be played again and saved

/** Takes the description of the page and the list of voices. */
export function offerSpeech(page, voices) {
  offered = { ...page, voices };
  fill(model, page.speaking);
  showVoices();
  showCount();
}

function showVoices() {
  const voices = offered.voices.filter((each) => each.model === model.value && !each.alias_of);
  const isTwice = ({ name }) => voices.filter((each) => each.name === name).length > 1;
  fill(
    voice,
    voices.map((each) => ({ id: each.id, name: isTwice(each) ? describeVoice(each) : each.name })),
  );
  const chosen = chosenModel();
  const isDescribed = chosen?.follows_instructions && !chosen.clones && !voices.length;
  instructions.disabled = !chosen?.follows_instructions;
  if (isDescribed) element("settings").open = true;
  let hint = instructions.disabled ? "This model follows none." : "How to speak, in words.";
  if (isDescribed) hint = "Describe the voice, as in: A calm, deep voice of an old man.";
  element("instructions-hint").textContent = hint;
  const remedy = offered.stores_voices ? "Make one on this page." : "The server needs the option --voices.";
  const needsVoice = chosen?.clones && !voices.length;
  element("voice-hint").textContent = needsVoice ? `This model has no voice. ${remedy}` : "";
}

function chosenModel() {
  return offered.speaking.find((each) => each.id === model.value);
}

function number(value) {
  return value.toLocaleString("en");
}

function showCount() {
  const [count, most] = [[...text.value].length, offered.limits.text_characters];
  element("text-count").textContent = `${number(count)} of ${number(most)} characters`;
}

/** What is wrong with the request, or an empty text. */
function faultOfRequest() {
  const [count, most] = [[...text.value].length, offered.limits.text_characters];
  if (!chosenModel()) return "This server has no model that speaks.";
  if (!text.value.trim()) return "There is no text to speak.";
  if (count > most) return `The text has ${number(count)} characters, expected at most ${number(most)}.`;
  const bounds = `${number(Number(seed.min))} to ${number(Number(seed.max))}`;
  return seed.value && seed.checkValidity() ? "" : `Seed: expected a whole number, ${bounds}.`;
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
      this.seed = response.headers.get("x-voxport-seed");
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
  const fault = faultOfRequest();
  showError(problem, fault);
  if (fault) return;
  const speech = new Speech(chosenModel().sample_rate);
  current = speech;
  waveform.clear();
  audio.pause();
  [stop.disabled, save.disabled, audio.hidden] = [false, true, true];
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
  const body = { model: model.value, input: text.value, response_format: "pcm", seed: Number(seed.value) };
  body.sample_rate = chosenModel().sample_rate;
  if (voice.value) body.voice = voice.value;
  const wanted = instructions.value.trim();
  if (wanted && !instructions.disabled) body.instructions = wanted;
  return body;
}

function end(speech, message) {
  current = null;
  finished = toWav(speech.pieces, speech.rate);
  URL.revokeObjectURL(audio.src);
  audio.src = URL.createObjectURL(finished);
  status.textContent = message;
  disable(stop, speak);
  save.disabled = audio.hidden = !speech.samples;
  waveform.played = speech.player.played;
  waveform.draw();
  canvas.setAttribute("aria-label", `Waveform of ${seconds(speech.length)} of speech`);
}

function summary(speech) {
  const factor = speech.madeIn / speech.length;
  const first = `First sound after ${speech.firstAfter.toFixed(2)} s`;
  const drawn = seed.value === "-1" && speech.seed ? ` The seed is ${speech.seed}.` : "";
  return `${first}, made in ${seconds(speech.madeIn)} (RTF ${factor.toFixed(2)}).${drawn}`;
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

form.addEventListener("submit", (event) => {
  event.preventDefault();
  start();
});
stop.addEventListener("click", () => current?.stop());
save.addEventListener("click", () => download(finished, "speech.wav"));
model.addEventListener("change", showVoices);
text.addEventListener("input", showCount);
