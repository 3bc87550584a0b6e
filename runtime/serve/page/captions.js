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

function clock(seconds, mark) {
  return new Date(Math.round(1000 * seconds)).toISOString().slice(11, 23).replace(".", mark);
}

function timed(words, mark, lines) {
  return cues(words).map(({ text, start, end }, index) =>
    lines(`${clock(start, mark)} --> ${clock(end, mark)}`, text, index + 1),
  );
}

export function toSrt(words) {
  return timed(words, ",", (times, text, number) => `${number}\n${times}\n${text}\n`).join("\n");
}

export function toVtt(words) {
  const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  return ["WEBVTT\n", ...timed(words, ".", (times, text) => `${times}\n${escaped(text)}\n`)].join("\n");
}
