// Speech to text: recordings, and the controls that start a transcription.

import { events, request } from "/page/api.js";
import { element, fill, seconds } from "/page/elements.js";
import { Microphone, microphoneObstacle } from "/page/microphone.js";
import { sendRecording } from "/page/pcm.js";
import { addText, addWords, NO_SPEECH, runTranscription, setText } from "/page/transcript.js";

const RATE = 16000; // of the models
const model = element("transcription-model");
const [drop, file, microphone] = [element("drop"), element("file"), element("microphone")];
const hint = element("microphone-hint");

let offered = { transcribing: [], limits: {} };

/** A file, whose text and words are shown while it is transcribed. */
class Recording {
  constructor(file, model) {
    this._file = file;
    this._model = model;
    this._abort = new AbortController();
  }

  /** Returns a text about the result. Throws ApiError or AbortError. */
  async run() {
    const send = (file) => transcribe(file, this._model, this._abort.signal);
    const { response, note } = await sendRecording(this._file, RATE, offered.limits.upload_mib, send);
    let result = "";
    for await (const event of events(response)) {
      if (event.type === "transcript.text.delta") {
        addText(event.delta);
        addWords(event.words);
      }
      if (event.type === "transcript.text.done") {
        setText(event.text);
        result = event.text ? `Transcribed ${seconds(event.duration)} of audio.` : noSpeech(event.reason);
      }
    }
    return result + note;
  }

  cancel() {
    this._abort.abort();
  }

  stop() {
    this.cancel();
  }
}

/** The events of a transcription. */
export function transcribe(file, model, signal) {
  const form = new FormData();
  for (const [name, value] of Object.entries({ file, model, stream: "true" })) form.append(name, value);
  return request("/v1/audio/transcriptions", { method: "POST", body: form, signal });
}

function noSpeech(reason) {
  return reason ? `${NO_SPEECH.slice(0, -1)}: ${reason}.` : NO_SPEECH;
}

/** Takes the description of the page. */
export function offerTranscription(page) {
  offered = page;
  fill(model, page.transcribing);
  file.disabled = model.disabled;
  const { upload_mib: size, recording_s: length } = page.limits;
  element("file-hint").textContent = `Up to ${size} MiB and ${(length / 60).toFixed(0)} minutes.`;
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

function read(recording) {
  if (!recording || model.disabled) return;
  const work = new Recording(recording, model.value);
  runTranscription(work, `Transcribing ${recording.name}.`, recording.name.replace(/\.\w+$/, ""));
}

function listen() {
  runTranscription(new Microphone(model.value), "Opening the microphone.", "transcript");
}

model.addEventListener("change", showObstacle);
microphone.addEventListener("click", listen);
file.addEventListener("click", () => (file.value = "")); // the same file can be chosen again
file.addEventListener("change", () => read(file.files[0]));

// A file that is dropped beside the box would replace the page.
for (const type of ["dragover", "drop"]) addEventListener(type, (event) => event.preventDefault());
drop.addEventListener("drop", (event) => read(event.dataTransfer.files[0]));
