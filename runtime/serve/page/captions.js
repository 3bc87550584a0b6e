// Words with times as subtitles, with the cues that the API makes.

const MAX_CUE_S = 6;
const MAX_PAUSE_S = 0.8;
const MAX_CUE_CHARACTERS = 84; // two lines of 42
const SENTENCE_END = /[.?!…。？！]$/;

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

/** The times of a cue: `00:01:02.345 --> 00:01:03.456`. */
function timesOf(cue) {
  const clock = (seconds) => new Date(Math.round(1000 * seconds)).toISOString().slice(11, 23);
  return `${clock(cue.start)} --> ${clock(cue.end)}`;
}

export function toSrt(words) {
  const lines = (cue, index) => `${index + 1}\n${timesOf(cue).replaceAll(".", ",")}\n${cue.text}\n`;
  return cues(words).map(lines).join("\n");
}

export function toVtt(words) {
  const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  const lines = cues(words).map((cue) => `${timesOf(cue)}\n${escaped(cue.text)}\n`);
  return ["WEBVTT\n", ...lines].join("\n");
}
