// The microphone as a WAV file: the samples as they come, mono, 16 bit, at the card's rate.

export class Recorder {
  constructor() {
    this.parts = [];
    this.samples = 0;
  }

  async start() {
    if (!navigator.mediaDevices) throw new Error("browsers lend it only on https or localhost");
    this.stream = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1 } });
    this.context = new AudioContext();
    try {
      await this.context.audioWorklet.addModule(new URL("tap.js", import.meta.url));
    } catch (error) {
      await this.release();
      throw error;
    }
    this.tap = new AudioWorkletNode(this.context, "tap", { numberOfOutputs: 1 });
    this.tap.port.onmessage = ({ data }) => {
      this.parts.push(data);
      this.samples += data.length;
    };
    this.context.createMediaStreamSource(this.stream).connect(this.tap);
  }

  get seconds() {
    return this.samples / this.context.sampleRate;
  }

  async stop() {
    const rate = this.context.sampleRate;
    this.tap.disconnect();
    await this.release();
    return wav(this.parts, rate);
  }

  async release() {
    for (const track of this.stream.getTracks()) track.stop();
    await this.context.close();
  }
}

export function wav(parts, rate) {
  const count = parts.reduce((sum, part) => sum + part.length, 0);
  const view = new DataView(new ArrayBuffer(44 + 2 * count));
  const text = (at, letters) => [...letters].forEach((c, i) => view.setUint8(at + i, c.charCodeAt(0)));
  text(0, "RIFF");
  view.setUint32(4, 36 + 2 * count, true);
  text(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true);
  view.setUint16(22, 1, true);
  view.setUint32(24, rate, true);
  view.setUint32(28, 2 * rate, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  text(36, "data");
  view.setUint32(40, 2 * count, true);
  let at = 44;
  for (const part of parts) {
    for (const sample of part) {
      view.setInt16(at, Math.max(-1, Math.min(1, sample)) * 32767, true);
      at += 2;
    }
  }
  return new Blob([view.buffer], { type: "audio/wav" });
}
