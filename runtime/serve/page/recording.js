// Transcription of a recording: text while it is made, or words with times at the end.

import { events, request } from "/page/api.js";
import { addText, setText, showWords } from "/page/transcript.js";

export class Recording {
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

  stop() {
    this._abort.abort();
  }

  cancel() {
    this._abort.abort();
  }
}
