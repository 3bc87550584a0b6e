// WAV with samples of 16 bits, mono.
import {roundHalfEven} from "./speech.js";

export function writeWav(parts, rate) {
  const count = parts.reduce((sum, each) => sum + each.length, 0), view = new DataView(new ArrayBuffer(44 + 2 * count));
  const text = (at, word) => [...word].forEach((letter, i) => view.setUint8(at + i, letter.charCodeAt(0)));
  text(0, "RIFF"), view.setUint32(4, 36 + 2 * count, true), text(8, "WAVEfmt "), view.setUint32(16, 16, true);
  view.setUint32(20, 0x00010001, true), view.setUint32(24, rate, true), view.setUint32(28, 2 * rate, true);
  view.setUint32(32, 0x00100002, true), text(36, "data"), view.setUint32(40, 2 * count, true);
  let at = 44;
  for (const part of parts) {
    for (const sample of part) {
      const scaled = 32767 * Math.min(Math.max(sample, -1), 1);
      view.setInt16(at, roundHalfEven(scaled), true);
      at += 2;
    }
  }
  return new Uint8Array(view.buffer);
}

// Samples float32 of a WAV at this rate
export function readWav(bytes, rate) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  for (let at = 12; at + 8 <= bytes.length; at += 8 + view.getUint32(at + 4, true)) {
    if (view.getUint32(at) === 0x666d7420 && (view.getUint32(at + 12, true) !== rate || view.getUint16(at + 10, true) !== 1)) {
      throw new Error(`expected a mono WAV of 16 bits at ${rate} Hz`);
    }
    if (view.getUint32(at) !== 0x64617461) continue;
    const count = Math.min(view.getUint32(at + 4, true), bytes.length - at - 8) >> 1;
    return Float32Array.from({length: count}, (_, i) => view.getInt16(at + 8 + 2 * i, true) / 32768);
  }
  throw new Error("not a WAV");
}
