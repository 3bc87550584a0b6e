// Transcription of a recording: text while it is made, or words with times at the end.

import { events, request } from "/page/api.js";
import { addText, setText, showWords } from "/page/transcript.js";

export class Recording {
  constructor(file, model, hasWordTimes) {
    this._file = file;
    this._model = model;
    this._hasWordTimes = hasWordTimes;
    this._abort = new AbortController();
  }

  /** Returns a text about the result. Throws ApiError or AbortError. */
  async run() {
    const form = new FormData();
    form.append("file", this._file);
    form.append("model", this._model);
    const options = this._hasWordTimes
      ? { response_format: "verbose_json", "timestamp_granularities[]": "word" }
      : { stream: "true" };
    for (const [name, value] of Object.entries(options)) form.append(name, value);
    const response = await this._send(form);
    return this._hasWordTimes ? this._showWhole(await response.json()) : this._showEvents(response);
  }

  _send(form) {
    return request("/v1/audio/transcriptions", { method: "POST", body: form, signal: this._abort.signal });
  }

  _showWhole(result) {
    setText(result.text);
    showWords(result.words);
    return `Transcribed ${result.duration.toFixed(1)} s of audio.`;
  }

  async _showEvents(response) {
    for await (const event of events(response)) {
      if (event.type === "transcript.text.delta") addText(event.delta);
      if (event.type === "transcript.text.done") setText(event.text);
    }
    return "Transcribed.";
  }

  stop() {
    this.cancel();
  }

  cancel() {
    this._abort.abort();
  }
}
