// The transcript, its words, and the state of the panel of transcription.

import { disable, download, element, showError } from "/page/elements.js";

export const NO_SPEECH = "No speech was found.";
const MAX_CUE_S = 6;
const MAX_PAUSE_S = 0.8;
const MAX_CUE_CHARACTERS = 84; // two lines of 42
const SENTENCE_END = /[.?!…。？！]$/;
const FORMATS = {
  txt: () => `${transcript.textContent.trim()}\n`,
  srt: () => toSrt(timed),
};
const wordTimes = element("word-times");
const [transcript, words] = [element("transcript"), element("words")];
const [status, problem] = [element("transcription-status"), element("transcription-error")];
const stop = element("transcription-stop");

let running = null; // the transcription that was started last
let timed = []; // words with times
let name = ""; // of the files that are saved

/** Runs `work`, which has run(), stop() and cancel(), in place of the one before, and shows its end.
 *
 * `source` names the files of its transcript.
 */
export async function runTranscription(work, message, source) {
  running?.cancel();
  running = work;
  transcript.replaceChildren();
  words.replaceChildren();
  [timed, name] = [[], source];
  showResults();
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
  showResults();
}

/** Replaces all text, if it differs: a screen reader reads it again. */
export function setText(text) {
  if (transcript.textContent.trim() !== text) transcript.textContent = text;
  showResults();
}

/** Adds words, [{word, start, end}], which are shown with the times of their starts if that is wanted. */
export function addWords(list) {
  timed.push(...list);
  words.append(
    ...list.map(({ word, start }) => {
      const [item, time] = [document.createElement("li"), document.createElement("span")];
      time.textContent = `${start.toFixed(2)} s`;
      item.append(time, " ", word);
      return item;
    }),
  );
  showResults();
  words.scrollTop = words.scrollHeight;
}

function showResults() {
  words.hidden = !wordTimes.checked || !timed.length;
  element("save-txt").disabled = !transcript.textContent;
  element("save-srt").disabled = !timed.length;
}

/** Words, [{word, start, end}] -> cues, [{text, start, end}]. */
function cues(words) {
  const found = [];
  let cue = null;
  for (const { word, start, end } of words) {
    const size = cue ? cue.text.length + 1 + word.length : 0;
    const isFull = size > MAX_CUE_CHARACTERS || end - cue?.start > MAX_CUE_S;
    if (!cue || isFull || SENTENCE_END.test(cue.text) || start - cue.end > MAX_PAUSE_S) {
      found.push((cue = { text: word, start, end }));
    } else {
      cue.text += ` ${word}`;
      cue.end = end;
    }
  }
  return found;
}

function clock(time) {
  return new Date(Math.round(1000 * time)).toISOString().slice(11, 23).replace(".", ",");
}

/** Subtitles with the cues that the API makes. */
function toSrt(list) {
  const lines = (cue, index) => `${index + 1}\n${clock(cue.start)} --> ${clock(cue.end)}\n${cue.text}\n`;
  return cues(list).map(lines).join("\n");
}

for (const [format, content] of Object.entries(FORMATS)) {
  const save = () => download(new Blob([content()], { type: "text/plain" }), `${name}.${format}`);
  element(`save-${format}`).addEventListener("click", save);
}
wordTimes.addEventListener("change", showResults);
stop.addEventListener("click", () => running?.stop());
