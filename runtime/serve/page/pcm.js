// Samples as 16-bit integers, in the forms that the API and files take.

const FULL_SCALE = 32768;

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
