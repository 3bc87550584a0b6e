// The transcript, its words, and the state of the panel of transcription.

import { disable, element, showError } from "/page/elements.js";

const [transcript, words] = [element("transcript"), element("words")];
const [status, problem] = [element("transcription-status"), element("transcription-error")];
const stop = element("transcription-stop");

let running = null; // the transcription that was started last

/** Runs `work`, which has run(), stop() and cancel(), in place of the one before, and shows its end. */
export async function runTranscription(work, message) {
  running?.cancel();
  running = work;
  transcript.replaceChildren();
  showWords([]);
  showError(problem);
  stop.disabled = false;
  showStatus(message);
  let result = "Stopped.";
  try {
    result = await work.run();
  } catch (error) {
    if (running === work && error.name !== "AbortError") {
      result = "";
      showError(problem, error.message);
    }
  }
  if (running !== work) return;
  running = null;
  disable(stop, element("microphone"));
  showStatus(result);
}

export function showStatus(message) {
  status.textContent = message;
}

/** Adds text. A screen reader reads only what is new. */
export function addText(text) {
  transcript.append(text);
  transcript.scrollTop = transcript.scrollHeight;
}

/** Replaces all text, if it differs: a screen reader reads it again. */
export function setText(text) {
  if (transcript.textContent.trim() !== text) transcript.textContent = text;
}

/** Shows words, [{word, start}], with the times of their starts, in place of those before. */
export function showWords(list) {
  words.replaceChildren();
  addWords(list);
  words.scrollTop = 0;
}

/** Adds words to those that are shown. */
export function addWords(list) {
  words.append(
    ...list.map(({ word, start }) => {
      const [item, time] = [document.createElement("li"), document.createElement("span")];
      time.textContent = `${start.toFixed(2)} s`;
      item.append(time, " ", word);
      return item;
    }),
  );
  words.hidden = !words.hasChildNodes();
  words.scrollTop = words.scrollHeight;
}

stop.addEventListener("click", () => running?.stop());
