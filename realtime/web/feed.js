// Text as a language model gives it: pieces of about a token, at a rate, until it is told to stop.

const PAGE_CHARS = 500; // of a text that is there all at once: sent as it is needed, not before
const BEGUN_CHARS = 2000; // may be with the server, unspoken
const QUIET_MS = 2000; // after which the server seems to want more

export class Feed {
  // `ahead` answers whether there is sound enough for now: then nothing more is sent.
  constructor(text, tokensPerSecond, { onPiece, onEnd, ahead }) {
    const steady = tokensPerSecond > 0;
    const piece = steady ? /\s*\S{1,4}|\s+$/gu : /[^]{1,500}(?=\s|$)|[^]{1,500}/gu;
    this.pieces = text.match(piece) ?? [];
    this.interval = steady ? 1000 / tokensPerSecond : PAGE_CHARS / 10;
    this.burst = steady ? 1 : Math.ceil(BEGUN_CHARS / PAGE_CHARS);
    Object.assign(this, { onPiece, onEnd, ahead });
    this.sent = 0;
    this.sentChars = 0; // as the server counts them
    this.spokenChars = 0;
    this.credit = this.burst;
    this.last = performance.now();
    this.spoke = this.last;
    this.step();
  }

  // Timers of a page are coarse: each call sends all that is due by now.
  step() {
    const now = performance.now();
    this.credit = Math.min(this.credit + (now - this.last) / this.interval, 1000);
    this.last = now;
    while (this.sent < this.pieces.length && this.credit >= 1) {
      if (this.held(now)) {
        this.credit = Math.min(this.credit, 1);
        break;
      }
      const piece = this.pieces[this.sent++];
      this.sentChars += [...piece].length;
      this.credit -= 1;
      this.onPiece(piece);
    }
    if (this.sent === this.pieces.length) this.onEnd();
    else this.timer = setTimeout(() => this.step(), this.interval);
  }

  held(now) {
    if (this.ahead()) return true;
    return this.sentChars - this.spokenChars >= BEGUN_CHARS && now - this.spoke < QUIET_MS;
  }

  // So many characters of all that was sent have become sound.
  heard(chars) {
    this.spokenChars = Math.max(this.spokenChars, chars);
    this.spoke = performance.now();
  }

  stop() {
    clearTimeout(this.timer);
  }
}
