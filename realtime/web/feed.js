// Text as a language model gives it: pieces of about a token, at a rate, until it is told to stop.

export class Feed {
  constructor(text, tokensPerSecond, onPiece, onEnd) {
    this.pieces = tokensPerSecond > 0 ? text.match(/\s*\S{1,4}|\s+$/g) ?? [] : [text];
    this.interval = tokensPerSecond > 0 ? 1000 / tokensPerSecond : 0;
    this.onPiece = onPiece;
    this.onEnd = onEnd;
    this.sent = 0;
    this.started = performance.now();
    this.step();
  }

  // Timers of a page are coarse: each call sends all that is due by now.
  step() {
    const due = this.interval
      ? 1 + Math.floor((performance.now() - this.started) / this.interval)
      : this.pieces.length;
    while (this.sent < Math.min(due, this.pieces.length)) this.onPiece(this.pieces[this.sent++]);
    if (this.sent === this.pieces.length) this.onEnd();
    else this.timer = setTimeout(() => this.step(), this.interval);
  }

  stop() {
    clearTimeout(this.timer);
  }
}
