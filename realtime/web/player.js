// Sound out: an AudioContext made in a user's gesture, and the worklet that plays what is pushed.

export const RATE = 24000;

export class Player {
  constructor(onReport) {
    this.onReport = onReport;
    this.turn = 0;
  }

  // Call from a click or a key: browsers make no sound before one.
  async open() {
    this.opening ??= this.build();
    await this.opening;
    if (this.context.state !== "running") await this.context.resume();
  }

  async build() {
    this.context = new AudioContext({ latencyHint: "interactive" });
    await this.context.audioWorklet.addModule(new URL("worklet.js", import.meta.url));
    this.node = new AudioWorkletNode(this.context, "player", {
      numberOfInputs: 0,
      outputChannelCount: [1],
      processorOptions: { rate: RATE },
    });
    this.node.port.onmessage = ({ data }) => {
      if (data.turn === this.turn) this.onReport(data);
    };
    this.node.connect(this.context.destination);
  }

  begin() {
    this.node.port.postMessage({ begin: ++this.turn });
  }

  // An ArrayBuffer of s16le at RATE.
  push(buffer) {
    const view = new DataView(buffer);
    const samples = new Float32Array(buffer.byteLength >> 1);
    for (let i = 0; i < samples.length; i++) samples[i] = view.getInt16(2 * i, true) / 32768;
    this.node.port.postMessage({ samples }, [samples.buffer]);
  }

  end() {
    this.node.port.postMessage({ end: true });
  }

  cut() {
    this.node?.port.postMessage({ cut: true });
  }
}
