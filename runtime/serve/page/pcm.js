// Samples as 16-bit integers, in the forms that the API and files take, and recordings that become these.

import { ApiError } from "/page/api.js";

const FULL_SCALE = 32768;
const MIB = 2 ** 20;
const OTHER_PARTS = 4096; // bytes of an upload besides its file

/** Turns pieces of bytes of any length into samples; an odd byte waits for the next piece. */
export class PcmReader {
  constructor() {
    this._rest = new Uint8Array();
  }

  /** Bytes of 16-bit little-endian samples -> Float32Array. */
  read(bytes) {
    const all = new Uint8Array(this._rest.length + bytes.length);
    all.set(this._rest);
    all.set(bytes, this._rest.length);
    const count = all.length >> 1;
    this._rest = all.slice(2 * count);
    const view = new DataView(all.buffer);
    return Float32Array.from({ length: count }, (_, index) => view.getInt16(2 * index, true) / FULL_SCALE);
  }
}

/** Float32Array -> bytes of 16-bit little-endian samples. */
export function toPcm(samples) {
  const view = new DataView(new ArrayBuffer(2 * samples.length));
  samples.forEach((sample, index) => {
    const value = Math.round(sample * FULL_SCALE);
    view.setInt16(2 * index, Math.max(-FULL_SCALE, Math.min(FULL_SCALE - 1, value)), true);
  });
  return new Uint8Array(view.buffer);
}

export function toBase64(bytes) {
  return btoa(String.fromCharCode(...bytes));
}

/** A WAV file of pieces of bytes of mono 16-bit samples. */
export function toWav(pieces, rate) {
  const size = pieces.reduce((sum, piece) => sum + piece.length, 0);
  const view = new DataView(new ArrayBuffer(44));
  const text = (at, letters) =>
    [...letters].forEach((letter, i) => view.setUint8(at + i, letter.charCodeAt(0)));
  text(0, "RIFF");
  view.setUint32(4, 36 + size, true);
  text(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true); // PCM
  view.setUint16(22, 1, true); // channels
  view.setUint32(24, rate, true);
  view.setUint32(28, 2 * rate, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  text(36, "data");
  view.setUint32(40, size, true);
  return new Blob([view, ...pieces], { type: "audio/wav" });
}

/** Sends a recording by `send(file)`, which returns a response. If the server cannot read it, or it is too
 * large, the browser decodes it and sends a WAV of `rate` Hz.
 *
 * Returns the response, and a text about the file if the browser decoded it. Throws ApiError or AbortError.
 */
export async function sendRecording(file, rate, mostMib, send) {
  const most = mostMib * MIB - OTHER_PARTS;
  const size = (file.size / MIB).toFixed(1);
  let refusal = new ApiError(`The recording has ${size} MiB, expected at most ${mostMib} MiB. Cut it.`);
  if (file.size <= most) {
    try {
      return { response: await send(file), note: "" };
    } catch (error) {
      if (error.code !== "invalid_audio") throw error;
      refusal = error;
    }
  }
  const wav = await decoded(file, rate);
  if (!wav || wav.size > most) throw refusal;
  return { response: await send(wav), note: ` The browser decoded the recording. ${refusal.message}` };
}

/** A mono WAV, or null if the browser cannot decode the file. */
async function decoded(file, rate) {
  try {
    const audio = await new OfflineAudioContext(1, 1, rate).decodeAudioData(await file.arrayBuffer());
    const count = audio.numberOfChannels;
    const samples = new Float32Array(audio.length);
    for (let channel = 0; channel < count; channel += 1) {
      audio.getChannelData(channel).forEach((sample, at) => (samples[at] += sample / count));
    }
    return new File([toWav([toPcm(samples)], rate)], "decoded.wav", { type: "audio/wav" });
  } catch {
    return null;
  }
}
