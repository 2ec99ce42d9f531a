// The waveform of the last seconds that were played, a bar for each report of the worklet.

const BAR = 4;

export class Wave {
  constructor(canvas) {
    this.canvas = canvas;
    this.peaks = new Array(Math.floor(canvas.width / BAR)).fill(0);
    this.still = 0;
    this.draw();
  }

  add(peak) {
    this.still = peak > 0 ? 0 : this.still + 1;
    if (this.still > this.peaks.length) return; // nothing moves
    this.peaks.shift();
    this.peaks.push(peak);
    this.dirty ??= requestAnimationFrame(() => this.draw());
  }

  draw() {
    this.dirty = undefined;
    const { width, height } = this.canvas;
    const pen = this.canvas.getContext("2d");
    pen.clearRect(0, 0, width, height);
    pen.fillStyle = getComputedStyle(this.canvas).getPropertyValue("--accent");
    this.peaks.forEach((peak, i) => {
      const bar = Math.max(2, Math.min(1, peak * 1.6) * height);
      pen.fillRect(i * BAR, (height - bar) / 2, BAR - 1, bar);
    });
  }
}
