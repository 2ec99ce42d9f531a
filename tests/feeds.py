"""What a text feed gives, as plain strings and marks."""

from __future__ import annotations

from shoal.engine.api import Segmentation
from shoal.engine.text import FlushMark, Segment, TextFeed

Item = str | int
RULES = Segmentation()


def show(item: Segment | FlushMark | None) -> Item | None:
    match item:
        case Segment(text=text):
            return text
        case FlushMark(mark=mark):
            return mark
        case None:
            return None


def drain(feed: TextFeed, now: float = 0.0, speaking: bool | None = None) -> list[Item]:
    """All that is ready; by default audio plays from the first segment on."""
    items: list[Item] = []
    while (item := show(feed.take(now, bool(items) if speaking is None else speaking))) is not None:
        items.append(item)
    return items


def segments(text: str, rules: Segmentation = RULES, speaking: bool | None = False) -> list[Item]:
    feed = TextFeed(rules)
    feed.push(text, 0.0)
    feed.end()
    items = drain(feed, speaking=speaking)
    assert feed.ended
    assert feed.pending == 0
    return items
