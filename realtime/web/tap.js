// Passes the samples of the microphone on to the page, some ten messages a second.

const PART = 4096;

class Tap extends AudioWorkletProcessor {
  constructor() {
    super();
    this.forget();
  }

  forget() {
    this.part = new Float32Array(PART);
    this.filled = 0;
  }

  process([[samples]]) {
    if (!samples) return true;
    this.part.set(samples, this.filled);
    this.filled += samples.length;
    if (this.filled === PART) {
      this.port.postMessage(this.part, [this.part.buffer]);
      this.forget();
    }
    return true;
  }
}

registerProcessor("tap", Tap);
