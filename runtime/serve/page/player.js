// Plays samples while they arrive.

const FIRST_LEAD = 0.1; // seconds between the arrival of the first samples and their sound
const LONGEST_LEAD = 2;

export class Player {
  /** Call this in the handler of a click: browsers refuse sound otherwise. */
  constructor(rate) {
    this.rate = rate;
    this.ended = new Promise((resolve) => (this._end = resolve));
    this._context = new AudioContext({ sampleRate: rate });
    this._context.resume();
    this._pieces = []; // scheduled, with the time of their start and the index of their first sample
    this._count = 0; // samples so far
    this._next = 0; // when the next piece starts, in seconds of the context
    this._lead = FIRST_LEAD;
    this._isComplete = this._isEnded = false;
  }

  /** Schedules samples, a Float32Array that is not empty, behind the ones before. */
  push(samples) {
    const buffer = this._context.createBuffer(1, samples.length, this.rate);
    buffer.copyToChannel(samples, 0);
    const source = this._context.createBufferSource();
    source.buffer = buffer;
    source.connect(this._context.destination);
    source.start(this._startOfNext());
    const piece = { source, start: this._next, first: this._count, length: samples.length };
    source.onended = () => this._remove(piece);
    this._pieces.push(piece);
    this._count += samples.length;
    this._next += samples.length / this.rate;
  }

  /** Nothing follows; `ended` resolves after the last sample. */
  finish() {
    this._isComplete = true;
    this._endIfDone();
  }

  stop() {
    for (const { source } of this._pieces) source.stop();
    this._pieces = [];
    this.finish();
  }

  /** Samples played so far. */
  get played() {
    const now = this._context.currentTime;
    const current = this._pieces.findLast((piece) => piece.start <= now);
    if (!current) return this._pieces[0]?.first ?? this._count;
    return current.first + Math.min(current.length, Math.floor((now - current.start) * this.rate));
  }

  /** After each gap more sound is collected, so that gaps become fewer on a slow server. */
  _startOfNext() {
    const now = this._context.currentTime;
    if (this._next < now) {
      if (this._count) this._lead = Math.min(2 * this._lead, LONGEST_LEAD);
      this._next = now + this._lead;
    }
    return this._next;
  }

  _remove(piece) {
    this._pieces = this._pieces.filter((other) => other !== piece);
    this._endIfDone();
  }

  _endIfDone() {
    if (!this._isComplete || this._pieces.length || this._isEnded) return;
    this._isEnded = true;
    this._context.close();
    this._end();
  }
}
