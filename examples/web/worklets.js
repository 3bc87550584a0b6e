// What runs in the thread of the sound: a queue of samples, and the microphone.
registerProcessor("player", class extends AudioWorkletProcessor {
  constructor() {
    super();
    this.waiting = []; // null is the end
    this.port.onmessage = ({data}) => this.waiting.push(data);
  }

  process(inputs, [[output]]) {
    for (let at = 0; at < output.length && this.waiting.length; ) {
      if (this.waiting[0] === null) return void this.port.postMessage("done"); // the node ends
      const part = this.waiting[0].subarray(0, output.length - at);
      output.set(part, at);
      at += part.length;
      this.waiting[0] = this.waiting[0].subarray(part.length);
      if (!this.waiting[0].length) this.waiting.shift();
    }
    return true;
  }
});

registerProcessor("recorder", class extends AudioWorkletProcessor {
  process([[input]]) {
    if (input) this.port.postMessage(input.slice());
    return true;
  }
});
