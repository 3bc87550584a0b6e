// Voices of recordings: made from a file or the microphone, listed and deleted.

import { ApiError, events, request } from "/page/api.js";
import { describeVoice, element, fill, seconds, showError } from "/page/elements.js";
import { microphoneObstacle, MicrophoneInput, RATE } from "/page/microphone.js";
import { sendRecording, toPcm, toWav } from "/page/pcm.js";
import { transcribe } from "/page/transcription.js";
import { NO_SPEECH } from "/page/transcript.js";

const MOST_SAMPLES = 29.5 * RATE; // of a recording, for which the API has 30 s
const [model, name, file, transcript] = ["model", "name", "file", "transcript"].map(elementOf);
const [record, write, list] = ["record", "transcribe", "list"].map(elementOf);
const [status, problem] = ["status", "error"].map(elementOf);

let offered = { limits: {} };
let reload = null; // asks the server what it offers
let recorded = null; // a WAV of the microphone
let stopRecording = null; // while the microphone is open
let isBusy = false;

function elementOf(id) {
  return element(`voice-${id}`);
}

/** Takes the description of the page, the list of voices, and a function that loads both again. */
export function offerVoices(page, voices, load) {
  [offered, reload] = [page, load];
  fill(model, page.stores_voices ? page.speaking.filter((each) => each.clones) : []);
  element("voices").hidden = model.disabled;
  record.disabled = Boolean(microphoneObstacle());
  write.disabled = !page.transcribing.length;
  const stored = new Map(voices.filter((each) => each.type === "custom").map((each) => [each.id, each]));
  list.replaceChildren(...[...stored.values()].map(entryOf));
}

function entryOf(voice) {
  const [item, remove] = [document.createElement("li"), document.createElement("button")];
  const description = describeVoice(voice);
  remove.type = "button";
  remove.textContent = "Delete";
  remove.ariaLabel = `Delete ${description}`;
  remove.addEventListener("click", () => confirm(`Delete ${description}?`) && run(() => deleteVoice(voice)));
  item.append(description, remove);
  return item;
}

/** Runs `work`, which returns a text about the result, unless another one runs. */
async function run(work) {
  if (isBusy) return;
  isBusy = true;
  showError(problem);
  status.textContent = "Working.";
  let result = "";
  try {
    result = await work();
  } catch (error) {
    showError(problem, error.message);
  }
  status.textContent = result;
  isBusy = false;
}

async function recordSound() {
  const input = await MicrophoneInput.open();
  const pieces = [];
  let count = 0;
  record.textContent = "Stop recording";
  try {
    await new Promise((resolve) => {
      stopRecording = resolve;
      input.start((samples) => {
        pieces.push(toPcm(samples));
        count += samples.length;
        status.textContent = `Recording. ${seconds(count / RATE)}`;
        if (count >= MOST_SAMPLES) resolve();
      });
    });
    await input.end();
  } finally {
    input.close();
    stopRecording = null;
    record.textContent = "Record";
  }
  recorded = new File([toWav(pieces, RATE)], "recording.wav", { type: "audio/wav" });
  file.value = "";
  return `Recorded ${seconds(count / RATE)}.`;
}

/** Throws ApiError. */
function chosenSound() {
  const sound = recorded ?? file.files[0];
  if (!sound) throw new ApiError("Choose a recording of the voice, or record one.");
  return sound;
}

async function writeTranscript() {
  const send = (sound) => transcribe(sound, element("transcription-model").value);
  const { response } = await sendRecording(chosenSound(), RATE, offered.limits.upload_mib, send);
  for await (const event of events(response)) if (event.text) transcript.value = event.text;
  if (!transcript.value) throw new ApiError(NO_SPEECH);
  return "Correct the transcript if a word is wrong.";
}

async function makeVoice() {
  const sound = chosenSound();
  if (!name.value.trim()) throw new ApiError("Give the voice a name.");
  const fields = { name: name.value.trim(), model: model.value, transcript: transcript.value.trim() };
  const send = (sample) => {
    const body = new FormData();
    body.append("audio_sample", sample);
    for (const [field, value] of Object.entries(fields)) if (value) body.append(field, value);
    return request("/v1/audio/voices", { method: "POST", body });
  };
  const { response, note } = await sendRecording(sound, RATE, offered.limits.upload_mib, send);
  const made = await response.json();
  await reload();
  if (element("speech-model").value === made.model) element("voice").value = made.id;
  return `The voice ${made.name} can speak now.${note}`;
}

async function deleteVoice({ id, name: deleted }) {
  await request(`/v1/audio/voices/${id}`, { method: "DELETE" });
  await reload();
  return `The voice ${deleted} is deleted.`;
}

element("voice-form").addEventListener("submit", (event) => {
  event.preventDefault();
  run(makeVoice);
});
record.addEventListener("click", () => (stopRecording ? stopRecording() : run(recordSound)));
write.addEventListener("click", () => run(writeTranscript));
file.addEventListener("change", () => (recorded = null));
