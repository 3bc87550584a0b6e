// Recordings that the server cannot read, or that are too long for it, are decoded by the browser.

import { ApiError } from "/page/api.js";
import { toPcm, toWav } from "/page/pcm.js";

const MIB = 2 ** 20;
const OTHER_PARTS = 4096; // bytes of an upload besides its file

/** Sends a recording by `send(file)`, which returns a response. If that fails, sends a WAV of `rate` Hz.
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
