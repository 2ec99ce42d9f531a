// The words that are spoken, highlighted by the time that was really heard.

export class Transcript {
  constructor(element) {
    this.element = element;
    this.clear();
  }

  clear() {
    this.element.replaceChildren();
    this.element.classList.remove("cut");
    this.segments = new Map();
    this.order = []; // segments as they sound
    this.at = 0; // the segment and the word that come next
    this.next = 0;
    this.now = null;
  }

  // A snapshot of one segment's times; it replaces the one before. Places in the text count
  // characters as the server does, not the UTF-16 units of a page.
  align({ segment, text, offset_s, words }) {
    let entry = this.segments.get(segment);
    if (!entry) {
      entry = { element: document.createElement("span"), words: [] };
      this.segments.set(segment, entry);
      this.order.push(entry);
      this.element.append(entry.element);
    }
    const letters = [...text];
    const part = (begin, end) => letters.slice(begin, end).join("");
    const nodes = [];
    let at = 0;
    entry.words = words.map((word) => {
      const span = document.createElement("span");
      span.className = "word";
      span.textContent = part(word.begin, word.end);
      nodes.push(between(part(at, word.begin)), span);
      at = word.end;
      return { span, start: offset_s + word.start_s, end: offset_s + word.end_s };
    });
    nodes.push(between(part(at)), /\s$/.test(text) ? "" : " ");
    entry.element.replaceChildren(...nodes);
    if (entry.over) for (const { span } of entry.words) span.classList.add("past");
    if (this.order[this.at] === entry) this.next = 0;
    if (!this.now?.span.isConnected) this.now = null;
  }

  // Goes on from the word it was at: a long text has thousands.
  played(seconds) {
    const before = this.now;
    while (this.at < this.order.length) {
      const { words } = this.order[this.at];
      while (this.next < words.length && words[this.next].start <= seconds) {
        this.now = words[this.next++];
        this.now.span.classList.add("past");
      }
      if (this.next < words.length || this.at + 1 === this.order.length) break;
      if (this.order[this.at + 1].words[0]?.start > seconds) break;
      this.order[this.at].over = true;
      this.at += 1;
      this.next = 0;
    }
    if (before !== this.now) {
      before?.span.classList.remove("now");
      if (this.now) this.show(this.now.span);
    }
    this.now?.span.classList.toggle("now", seconds < this.now.end);
  }

  show(span) {
    const box = this.element.getBoundingClientRect();
    const { top, bottom } = span.getBoundingClientRect();
    if (bottom > box.bottom || top < box.top) this.element.scrollTop += top - box.top - 4;
  }

  cut() {
    this.element.classList.add("cut");
    this.now?.span.classList.remove("now");
  }
}

// What stands between two words belongs to the one before it.
function between(text) {
  const span = document.createElement("span");
  span.className = "gap";
  span.textContent = text;
  return span;
}
