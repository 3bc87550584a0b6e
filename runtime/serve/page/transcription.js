// Speech to text: the controls that start it.

import { element, fill } from "/page/elements.js";
import { Microphone, microphoneObstacle } from "/page/microphone.js";
import { Recording } from "/page/recording.js";
import { runTranscription } from "/page/transcript.js";

const [model, wordTimes] = [element("transcription-model"), element("word-times")];
const [drop, file, microphone] = [element("drop"), element("file"), element("microphone")];
const hint = element("microphone-hint");

let offered = { transcribing: [] };

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
