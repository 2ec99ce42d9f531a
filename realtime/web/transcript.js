// The words that are spoken, highlighted by the time that was really played.

export class Transcript {
  constructor(element) {
    this.element = element;
    this.clear();
  }

  clear() {
    this.element.replaceChildren();
    this.element.classList.remove("cut");
    this.segments = new Map();
  }

  // A snapshot of one segment's times; it replaces the one before.
  align({ segment, text, offset_s, words }) {
    let entry = this.segments.get(segment);
    if (!entry) {
      entry = { element: document.createElement("span"), words: [] };
      this.segments.set(segment, entry);
      this.element.append(entry.element);
    }
    entry.element.replaceChildren();
    let at = 0;
    entry.words = words.map((word) => {
      entry.element.append(text.slice(at, word.begin));
      const span = document.createElement("span");
      span.className = "word";
      span.textContent = text.slice(word.begin, word.end);
      entry.element.append(span);
      at = word.end;
      return { span, start: offset_s + word.start_s, end: offset_s + word.end_s };
    });
    entry.element.append(text.slice(at));
    if (!/\s$/.test(text)) entry.element.append(" ");
  }

  played(seconds) {
    for (const { words } of this.segments.values()) {
      for (const { span, start, end } of words) {
        span.classList.toggle("past", seconds >= start);
        span.classList.toggle("now", seconds >= start && seconds < end);
      }
    }
  }

  cut() {
    this.element.classList.add("cut");
    for (const word of this.element.querySelectorAll(".now")) word.classList.remove("now");
  }
}
