"""The output budget of a step: the head is sent as it comes, the tail waits in a ring, the rest is counted."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from research_gym.kernel.items import Item, item_bytes, merge, text_bytes


class OutputBudget:
    """Bounded memory whatever the kernel prints and whether or not the host reads.

    Half of the bytes and messages are the head: `take_head` hands them out at any time. The rest is the tail: the
    newest items, handed out once by `take_tail`. Items keep their order; a long stream text may be cut at the border.
    """

    def __init__(self, *, max_bytes: int, max_messages: int) -> None:
        self._head_bytes = max(1, max_bytes // 2)
        self._head_messages = max(1, max_messages // 2)
        self._tail_max_bytes = max(1, max_bytes // 2)
        self._tail_max_messages = max(1, max_messages // 2)
        self._head: list[Item] = []
        self._tail: deque[tuple[Item, int]] = deque()
        self._tail_bytes = 0
        self.seen_bytes = 0
        """Everything that came, kept or not."""
        self.omitted_bytes = 0
        self.omitted_messages = 0

    def add(self, items: Iterable[Item]) -> None:
        """Takes items in; drops the oldest of the tail when there are too many."""
        for item in items:
            size = item_bytes(item)
            self.seen_bytes += size
            if self._tail or not self._add_head(item, size):
                self._add_tail(item, item_bytes(item))

    def omit(self, *, omitted_bytes: int, omitted_messages: int) -> None:
        """Counts output that was dropped before it came here."""
        self.seen_bytes += omitted_bytes
        self.omitted_bytes += omitted_bytes
        self.omitted_messages += omitted_messages

    def take_head(self) -> list[Item]:
        """What may be shown at once; each item once."""
        items, self._head = self._head, []
        return items

    def take_tail(self) -> list[Item]:
        """The newest of what did not fit the head; ends the budget."""
        items = [item for item, _ in self._tail]
        self._tail.clear()
        self._tail_bytes = 0
        return items

    def mark_late(self) -> None:
        """Flags everything that waits as output of an earlier cell."""
        for item in self._head:
            item["late"] = True
        for item, _ in self._tail:
            item["late"] = True

    def _add_head(self, item: Item, size: int) -> bool:
        """Puts an item, or the first part of a stream text, into the head. What is left of a text stays in `item`."""
        if self._head_bytes <= 0 or self._head_messages <= 0:
            return False
        if size <= self._head_bytes:
            if not merge(self._head, dict(item)):
                self._head.append(item)
                self._head_messages -= 1
            self._head_bytes -= size
            return True
        if item["kind"] == "stream":
            text = item["text"]
            first = text[: self._head_bytes]
            while text_bytes(first) > self._head_bytes:
                first = first[: len(first) * self._head_bytes // text_bytes(first)]
            if first:
                self._head.append({**item, "text": first})
                item["text"] = text[len(first) :]
        self._head_bytes = 0
        return False

    def _add_tail(self, item: Item, size: int) -> None:
        if size > self._tail_max_bytes and item["kind"] != "stream":
            self.omitted_bytes += size
            self.omitted_messages += 1
            return
        last = self._tail[-1][0] if self._tail else None
        if last is not None and merge([last], item):
            self._tail[-1] = (last, self._tail[-1][1] + size)
        else:
            self._tail.append((item, size))
        self._tail_bytes += size
        while self._tail_bytes > self._tail_max_bytes or len(self._tail) > self._tail_max_messages:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        item, size = self._tail.popleft()
        excess = self._tail_bytes - self._tail_max_bytes
        self._tail_bytes -= size
        if item["kind"] == "stream" and 0 < excess < size and len(self._tail) < self._tail_max_messages:
            text = item["text"]
            rest = text[len(text) * excess // size + 1 :]
            if rest:
                kept = text_bytes(rest)
                if kept < size and self._tail_bytes + kept <= self._tail_max_bytes:
                    item = {**item, "text": rest}
                    self._tail.appendleft((item, kept))
                    self._tail_bytes += kept
                    self.omitted_bytes += size - kept
                    return
        self.omitted_bytes += size
        self.omitted_messages += 1
