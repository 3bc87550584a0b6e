// A waveform on a canvas, which grows while samples arrive.

const BUCKET = 240; // samples that share one stored peak: 10 ms at 24 kHz
const COLUMN = 3; // CSS pixels from one bar to the next

export class Waveform {
  constructor(canvas) {
    this._canvas = canvas;
    this.clear();
    new ResizeObserver(() => this.draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  clear() {
    this._peaks = [];
    this._count = 0; // samples
    this.played = 0; // samples, drawn in another colour
    this.draw();
  }

  /** Adds samples, a Float32Array. */
  add(samples) {
    for (const sample of samples) {
      const bucket = Math.floor(this._count++ / BUCKET);
      this._peaks[bucket] = Math.max(this._peaks[bucket] ?? 0, Math.abs(sample));
    }
  }

  draw() {
    const canvas = this._canvas;
    const style = getComputedStyle(canvas);
    const scale = devicePixelRatio;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    const brush = canvas.getContext("2d");
    brush.scale(scale, scale);
    const columns = Math.floor(width / COLUMN);
    const played = this._count ? (columns * this.played) / this._count : 0;
    const [done, rest] = [style.accentColor, style.color];
    for (let column = 0; column < columns; column += 1) {
      const bar = Math.max(1, this._peak(column, columns) * (height - 4));
      brush.fillStyle = column < played ? done : rest;
      brush.fillRect(column * COLUMN, (height - bar) / 2, COLUMN - 1, bar);
    }
  }

  /** The highest peak of a column, 0 to 1. A short sound is drawn over the whole width as well. */
  _peak(column, columns) {
    const first = Math.floor((column * this._peaks.length) / columns);
    const end = Math.max(first + 1, Math.floor(((column + 1) * this._peaks.length) / columns));
    return Math.min(1, Math.max(0, ...this._peaks.slice(first, end)));
  }
}
