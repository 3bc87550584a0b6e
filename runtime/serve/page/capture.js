// An audio worklet: sends the microphone's samples to the page in blocks of 80 ms.

const BLOCK = 1920; // samples at 24 kHz

class Capture extends AudioWorkletProcessor {
  constructor() {
    super();
    this._block = new Float32Array(BLOCK);
    this._count = 0;
    this._isOver = false;
    this.port.onmessage = () => {
      this._isOver = true;
      this._send();
      this.port.postMessage(null); // nothing follows
    };
  }

  process([[samples]]) {
    for (let index = 0; index < (samples?.length ?? 0) && !this._isOver; index += 1) {
      this._block[this._count++] = samples[index];
      if (this._count === BLOCK) this._send();
    }
    return !this._isOver;
  }

  _send() {
    if (this._count) this.port.postMessage(this._block.slice(0, this._count));
    this._count = 0;
  }
}

registerProcessor("capture", Capture);
