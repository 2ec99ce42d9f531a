// The player's end: a ring of samples, read at the sample clock of the sound card.
//
// Samples come at the stream's rate and are brought to the card's with a cubic through four
// neighbours, so no browser needs to open the card at the stream's rate. Playing begins when the
// cushion is full or the stream is at its end; after running dry the cushion grows. A cut fades
// out within 5 ms and forgets the rest.

const FADE_S = 0.005;
const REPORT_S = 0.03;
const CUSHION_S = 0.08;
const CUSHION_STEP_S = 0.04;
const CUSHION_MOST_S = 0.4;
const RING_S = 90; // the page sends no more than a third of it ahead

class Player extends AudioWorkletProcessor {
  constructor(options) {
    super();
    this.rate = options.processorOptions.rate;
    this.step = this.rate / sampleRate;
    this.ring = new Float32Array(RING_S * this.rate);
    this.cushion = CUSHION_S;
    this.last = 0; // the sample that was heard last
    this.tail = 0; // how long that still dies away, where a new turn cut it off
    this.forget();
    this.sinceReport = 0;
    this.port.onmessage = ({ data }) => this.take(data);
  }

  forget() {
    this.write = 0; // samples that came, and samples that were played, of this turn
    this.read = 0;
    this.playing = false;
    this.ended = false;
    this.gaps = 0;
    this.fade = 0;
    this.first = true;
  }

  take(message) {
    if (message.samples) {
      for (const sample of message.samples) this.ring[this.write++ % this.ring.length] = sample;
      if (this.write - this.read > this.ring.length) this.read = this.write - this.ring.length;
    } else if (message.end) {
      this.ended = true;
    } else if (message.begin) {
      this.turn = message.begin;
      if (this.playing) this.tail = Math.ceil(FADE_S * sampleRate);
      this.forget();
    } else if (message.cut) {
      this.fade = this.playing ? Math.ceil(FADE_S * sampleRate) : -1;
      if (this.fade < 0) this.silence();
    }
  }

  silence() {
    this.read = this.write;
    this.playing = false;
    this.ended = true;
    this.fade = 0;
    this.port.postMessage({ turn: this.turn, silent: true });
  }

  at(index) {
    if (index < 0 || index >= this.write) return 0;
    return this.ring[index % this.ring.length];
  }

  sample() {
    const whole = Math.floor(this.read);
    const t = this.read - whole;
    const [a, b, c, d] = [this.at(whole - 1), this.at(whole), this.at(whole + 1), this.at(whole + 2)];
    return b + 0.5 * t * (c - a + t * (2 * a - 5 * b + 4 * c - d + t * (3 * (b - c) + d - a)));
  }

  process(_, [[out]]) {
    const buffered = (this.write - this.read) / this.rate;
    if (!this.playing && buffered > 0 && (this.ended || buffered >= this.cushion)) {
      this.playing = true;
    }
    for (let i = 0; i < out.length; i++) {
      // Two samples of look-ahead, until the stream's end is known.
      const most = this.write - (this.ended ? 0 : 2);
      if (!this.playing || this.read >= most) {
        if (this.playing) this.dry();
        out[i] = 0;
        continue;
      }
      if (this.first) {
        this.first = false;
        this.port.postMessage({ turn: this.turn, started: true });
      }
      out[i] = this.sample();
      this.read += this.step;
      if (this.fade > 0) {
        out[i] *= --this.fade / (FADE_S * sampleRate);
        if (this.fade === 0) this.silence();
      }
    }
    this.last = this.dying(out);
    this.report(out);
    return true;
  }

  // Lets what a new turn cut off end without a click; returns the last sample.
  dying(out) {
    for (let i = 0; this.tail > 0 && i < out.length; i++) {
      out[i] += (this.last * --this.tail) / (FADE_S * sampleRate);
    }
    return this.tail > 0 ? this.last : out[out.length - 1];
  }

  dry() {
    if (this.fade > 0) return this.silence();
    this.playing = false;
    if (this.ended) {
      this.port.postMessage({ turn: this.turn, done: true, played: this.read / this.rate });
      return;
    }
    this.gaps += 1;
    this.cushion = Math.min(this.cushion + CUSHION_STEP_S, CUSHION_MOST_S);
  }

  report(out) {
    this.sinceReport += out.length / sampleRate;
    if (this.sinceReport < REPORT_S) return;
    this.sinceReport = 0;
    let peak = 0;
    for (const sample of out) peak = Math.max(peak, Math.abs(sample));
    this.port.postMessage({
      turn: this.turn,
      played: Math.min(this.read, this.write) / this.rate,
      buffered: Math.max(0, this.write - this.read) / this.rate,
      gaps: this.gaps,
      peak,
    });
  }
}

registerProcessor("player", Player);
