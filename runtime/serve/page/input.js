// The microphone: why there is none, and its samples.

import { ApiError } from "/page/api.js";

export const RATE = 24000;
const AUDIO = { channelCount: 1, echoCancellation: false, noiseSuppression: false, autoGainControl: true };

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
