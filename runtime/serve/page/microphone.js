// The microphone: why there is none, its samples, and their live transcription over a socket.

import { ApiError, describe, getJson, readKey } from "/page/api.js";
import { element, seconds } from "/page/elements.js";
import { toBase64, toPcm } from "/page/pcm.js";
import { addText, addWords, NO_SPEECH, setText, showStatus } from "/page/transcript.js";
import { Waveform } from "/page/waveform.js";

export const RATE = 24000;
const AUDIO = { channelCount: 1, echoCancellation: false, noiseSuppression: false, autoGainControl: true };
const LEAST_SAMPLES = 0.1 * RATE; // that the API transcribes
const MOST_UNSENT = 2 ** 20; // bytes: about 16 s of audio
const TEXT = "conversation.item.input_audio_transcription";
const KEY_CHARACTERS = /^[\w!#$%&'*+.^`|~-]*$/; // that the name of a subprotocol can have
const canvas = element("microphone-wave");
const time = element("transcription-time");
const waveform = new Waveform(canvas);

/** Why this page has no microphone, or an empty text. */
export function microphoneObstacle() {
  if (!isSecureContext) {
    return (
      "The browser allows the microphone only at localhost or over TLS, " +
      `and this page comes from ${location.origin}. ` +
      "Open the page at http://localhost on the server's machine, " +
      "or start the server with --tls-cert and --tls-key."
    );
  }
  return navigator.mediaDevices?.getUserMedia ? "" : "This browser has no access to microphones.";
}

export class MicrophoneInput {
  /** Throws ApiError. */
  static async open() {
    const input = new MicrophoneInput();
    try {
      await input._open();
      return input;
    } catch (error) {
      input.close();
      const reasons = { NotAllowedError: "The browser does not allow it.", NotFoundError: "There is none." };
      throw new ApiError(`The microphone cannot be used: ${reasons[error.name] ?? error.message}`);
    }
  }

  async _open() {
    this._stream = await navigator.mediaDevices.getUserMedia({ audio: AUDIO });
    this._context = new AudioContext({ sampleRate: RATE });
    await this._context.audioWorklet.addModule("/page/capture.js");
    const source = this._context.createMediaStreamSource(this._stream);
    const options = { numberOfOutputs: 0, channelCount: 1, channelCountMode: "explicit" };
    this._node = new AudioWorkletNode(this._context, "capture", options);
    source.connect(this._node);
  }

  /** Calls `take` with blocks of samples, Float32Array, also with those since the microphone is open. */
  start(take) {
    this._drained = new Promise((resolve) => {
      this._node.port.onmessage = ({ data }) => (data ? take(data) : resolve());
    });
  }

  /** Ends the sound. Returns after the last block. */
  async end() {
    this._node.port.postMessage(null);
    await this._drained;
  }

  close() {
    for (const track of this._stream?.getTracks() ?? []) track.stop();
    this._context?.close();
  }
}

export class Microphone {
  constructor(model) {
    this._model = model;
    this._samples = 0;
    this._abort = new AbortController();
    this._stopped = new Promise((resolve) => (this._stop = resolve));
  }

  /** The first call ends the audio and waits for its text; the second one drops it. */
  stop() {
    if (this._isStopping) this.cancel();
    this._isStopping = true;
    this._stop();
  }

  cancel() {
    this._abort.abort();
  }

  /** Returns a text about the result. Throws ApiError or AbortError. */
  async run() {
    canvas.hidden = false;
    waveform.clear();
    const aborted = new Promise((_, reject) => {
      this._abort.signal.addEventListener("abort", () => reject(new DOMException("stopped", "AbortError")));
    });
    try {
      await Promise.race([this._transcribe(), aborted]);
    } finally {
      this._release();
      canvas.hidden = true;
      time.textContent = "";
    }
    if (this._samples < LEAST_SAMPLES) return "No audio was recorded.";
    if (!this._hasText) return NO_SPEECH;
    return `Transcribed ${seconds(this._samples / RATE)} of audio.`;
  }

  async _transcribe() {
    this._input = await MicrophoneInput.open();
    if (this._abort.signal.aborted) return this._release(); // while the browser asked for permission
    const broken = this._connect();
    await Promise.race([this._ready, broken]);
    this._input.start((samples) => this._take(samples));
    showStatus("Listening.");
    await Promise.race([this._stopped, broken]);
    showStatus("Transcribing the rest.");
    await this._input.end();
    if (this._samples < LEAST_SAMPLES) return;
    this._send({ type: "input_audio_buffer.commit" });
    await Promise.race([this._completed, broken]);
  }

  /** Opens the socket. Returns a promise that is rejected if the session fails. */
  _connect() {
    const key = readKey();
    if (!KEY_CHARACTERS.test(key)) {
      throw new ApiError("The key has characters, such as / or =, that a browser cannot send over a socket.");
    }
    const protocols = key ? ["realtime", `openai-insecure-api-key.${key}`] : ["realtime"];
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    this._socket = new WebSocket(`${scheme}://${location.host}/v1/realtime?intent=transcription`, protocols);
    this._ready = new Promise((resolve) => (this._resolveReady = resolve));
    this._completed = new Promise((resolve) => (this._resolveCompleted = resolve));
    return new Promise((_, reject) => {
      this._fail = reject;
      this._socket.onmessage = ({ data }) => this._handle(JSON.parse(data));
      this._socket.onclose = async ({ reason }) => reject(await this._closed(reason));
    });
  }

  /** A browser hides why a socket was refused; a request with the same key may show it. */
  async _closed(reason) {
    try {
      if (!this._wasOpen) await getJson("/v1/models");
    } catch (error) {
      return error;
    }
    return new ApiError(`The server ended the session${reason ? `: ${reason}` : ""}.`);
  }

  _handle(event) {
    this._wasOpen = true;
    switch (event.type) {
      case "session.created":
        this._send({ type: "session.update", session: this._session() });
        break;
      case "session.updated":
        this._resolveReady();
        break;
      case `${TEXT}.delta`:
        addText(event.delta);
        addWords(event.words);
        break;
      case `${TEXT}.completed`:
        setText(event.transcript);
        this._hasText = Boolean(event.transcript);
        this._resolveCompleted();
        break;
      case `${TEXT}.failed`:
      case "error":
        this._fail(new ApiError(describe(event.error)));
    }
  }

  _session() {
    const input = { format: { type: "audio/pcm", rate: RATE }, transcription: { model: this._model } };
    return { type: "transcription", audio: { input } };
  }

  _take(samples) {
    this._samples += samples.length;
    waveform.add(samples);
    waveform.played = this._samples;
    waveform.draw();
    time.textContent = seconds(this._samples / RATE);
    this._send({ type: "input_audio_buffer.append", audio: toBase64(toPcm(samples)) });
    if (this._socket.bufferedAmount > MOST_UNSENT) {
      this._fail(new ApiError("The connection to the server is too slow for live audio."));
    }
  }

  _send(message) {
    if (this._socket.readyState === WebSocket.OPEN) this._socket.send(JSON.stringify(message));
  }

  _release() {
    this._input?.close();
    if (this._socket) this._socket.onclose = null;
    this._socket?.close();
  }
}
