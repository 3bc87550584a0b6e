// Speech to text: recordings, and the controls that start a transcription.

import { events, request } from "/page/api.js";
import { element, fill } from "/page/elements.js";
import { Microphone, microphoneObstacle } from "/page/microphone.js";
import { addText, runTranscription, setText, showWords } from "/page/transcript.js";

const [model, wordTimes] = [element("transcription-model"), element("word-times")];
const [drop, file, microphone] = [element("drop"), element("file"), element("microphone")];
const hint = element("microphone-hint");

let offered = { transcribing: [] };

/** A file: text while it is transcribed, or words with times at the end. */
class Recording {
  constructor(file, model, hasWordTimes) {
    this._hasWordTimes = hasWordTimes;
    this._abort = new AbortController();
    this._form = new FormData();
    this._form.append("file", file);
    this._form.append("model", model);
    if (hasWordTimes) {
      this._form.append("response_format", "verbose_json");
      this._form.append("timestamp_granularities[]", "word");
    } else {
      this._form.append("stream", "true");
    }
  }

  /** Returns a text about the result. Throws ApiError or AbortError. */
  async run() {
    const options = { method: "POST", body: this._form, signal: this._abort.signal };
    const response = await request("/v1/audio/transcriptions", options);
    if (this._hasWordTimes) {
      const { text, words, duration } = await response.json();
      setText(text);
      showWords(words);
      return `Transcribed ${duration.toFixed(1)} s of audio.`;
    }
    for await (const event of events(response)) {
      if (event.type === "transcript.text.delta") addText(event.delta);
      if (event.type === "transcript.text.done") setText(event.text);
    }
    return "Transcribed.";
  }

  cancel() {
    this._abort.abort();
  }

  stop() {
    this.cancel();
  }
}

/** Takes the description of the page. */
export function offerTranscription(page) {
  offered = page;
  fill(model, page.transcribing);
  file.disabled = model.disabled;
  showObstacle();
}

function showObstacle() {
  const chosen = offered.transcribing.find((each) => each.id === model.value);
  let obstacle = microphoneObstacle();
  if (!chosen) obstacle ||= "This server has no model that transcribes.";
  else if (!chosen.is_live) obstacle ||= `${chosen.id} transcribes recordings only.`;
  microphone.disabled = Boolean(obstacle);
  hint.textContent = obstacle;
  hint.hidden = !obstacle;
}

function transcribe(recording) {
  if (!recording || model.disabled) return;
  const work = new Recording(recording, model.value, wordTimes.checked);
  runTranscription(work, `Transcribing ${recording.name}.`);
}

function listen() {
  runTranscription(new Microphone(model.value, wordTimes.checked), "Opening the microphone.");
}

model.addEventListener("change", showObstacle);
microphone.addEventListener("click", listen);
file.addEventListener("click", () => (file.value = "")); // the same file can be chosen again
file.addEventListener("change", () => transcribe(file.files[0]));

// A file that is dropped beside the box would replace the page.
for (const type of ["dragover", "drop"]) addEventListener(type, (event) => event.preventDefault());
drop.addEventListener("drop", (event) => transcribe(event.dataTransfer.files[0]));
