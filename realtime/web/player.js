// Sound out: an AudioContext made in a user's gesture, and the worklet that plays what is pushed.
//
// The worklet has a ring of fixed size. What comes further ahead waits here as it came, so a turn
// that is generated many times faster than it is heard loses nothing.

export const RATE = 24000;
const AHEAD_S = 30; // of sound in the worklet

export class Player {
  constructor(onReport) {
    this.onReport = onReport;
    this.turn = 0;
    this.forget();
  }

  forget() {
    this.waiting = [];
    this.waitingBytes = 0;
    this.ended = false;
    this.pushed = 0; // samples given to the worklet in this turn
    this.played = 0; // seconds of them that were played
  }

  // Call from a click or a key: browsers make no sound before one.
  async open() {
    this.opening ??= this.build();
    try {
      await this.opening;
    } catch {
      this.opening = undefined; // the worklet may not have come: another click tries again
      throw new Error("The server cannot be reached, or this browser cannot play streamed sound.");
    }
    if (this.context.state !== "running") await this.context.resume();
  }

  async build() {
    this.context ??= new AudioContext({ latencyHint: "interactive" });
    const processorOptions = { rate: RATE };
    if (this.context.audioWorklet) {
      await this.context.audioWorklet.addModule(new URL("worklet.js", import.meta.url));
      this.node = new AudioWorkletNode(this.context, "player", {
        numberOfInputs: 0,
        outputChannelCount: [1],
        processorOptions,
      });
    } else {
      const { playerNode } = await import("./fallback.js");
      this.node = await playerNode(this.context, processorOptions);
    }
    this.node.port.onmessage = ({ data }) => this.report(data);
    this.node.connect(this.context.destination);
  }

  report(data) {
    if (data.turn !== this.turn) return;
    if (data.played !== undefined) {
      this.played = data.played;
      this.feed();
      // What the worklet has played is in the air a little later.
      const delay = this.context.outputLatency || this.context.baseLatency || 0;
      data.heard = data.done ? data.played : Math.max(0, data.played - delay);
    }
    if (data.buffered !== undefined) data.buffered += this.waitingBytes / 2 / RATE;
    this.onReport(data);
  }

  // Seconds of sound that came and were not played.
  get buffered() {
    return (this.pushed + this.waitingBytes / 2) / RATE - this.played;
  }

  begin() {
    this.forget();
    this.node.port.postMessage({ begin: ++this.turn });
  }

  // An ArrayBuffer of s16le at RATE.
  push(buffer) {
    this.waiting.push(buffer);
    this.waitingBytes += buffer.byteLength;
    this.feed();
  }

  feed() {
    let sent = 0;
    while (sent < this.waiting.length && this.pushed / RATE - this.played < AHEAD_S) {
      const view = new DataView(this.waiting[sent++]);
      const samples = new Float32Array(view.byteLength >> 1);
      for (let i = 0; i < samples.length; i++) samples[i] = view.getInt16(2 * i, true) / 32768;
      this.pushed += samples.length;
      this.waitingBytes -= view.byteLength;
      this.node.port.postMessage({ samples }, [samples.buffer]);
    }
    if (sent) this.waiting.splice(0, sent);
    if (this.ended && !this.waiting.length) {
      this.ended = false;
      this.node.port.postMessage({ end: true });
    }
  }

  end() {
    this.ended = true;
    this.feed();
  }

  cut() {
    this.forget();
    this.node?.port.postMessage({ cut: true });
  }
}
