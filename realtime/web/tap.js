// Passes the samples of the microphone on to the page.

class Tap extends AudioWorkletProcessor {
  process([[samples]]) {
    if (samples) this.port.postMessage(samples.slice());
    return true;
  }
}

registerProcessor("tap", Tap);
