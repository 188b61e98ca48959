"""Cleans text that came out of a kernel, as a terminal would have shown it, and cuts it to length.

The observation contract: valid Unicode, no lone surrogate, no control character but newline and tab, no ANSI.
"""

from __future__ import annotations

import re

BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""Characters that turn the direction of text: what is shown would not be what is there."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_BIDI = re.compile(rf"[{BIDI}]")


def clean(text: str) -> str:
    r"""Makes any string fit the observation contract; `clean(clean(x)) == clean(x)`, time linear in the length.

    - Lone surrogates become visible: `\ud800`. So do characters that turn the direction of text: `\u202e`.
    - ANSI sequences are removed, also one that the end of the text cuts off. Give it the joined stream: the halves of
      a split sequence are not recognised one by one.
    - `\r`, `\b` and the erase commands are applied within their line, as a terminal does: a progress bar is one line.
      A character is one cell wide.
    - Commands that move the cursor between lines are not applied. Lines drawn with them, equal but for digits and more
      than 20 in a row, become the first, `… N similar lines`, and the last.
    - All other control characters are removed.

    Example:
        >>> clean("\x1b[31mred\x1b[0m  1%\r\x1b[Kdone")
        'done'
        >>> clean("a\x00b\ud800")
        'ab\\ud800'
    """
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    if _CONTROL.search(text):
        from research_gym.terminal import screen  # numpy, and only for text that needs it

        text = screen(text.replace("\r\n", "\n"))
    if not text.isascii() and _BIDI.search(text):
        for char in BIDI:
            text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def clip(text: str, *, max_chars: int) -> str:
    """Cuts text to at most `max_chars` characters: head and tail stay, a line between them says how much is missing.

    Example:
        >>> clip("a" * 50 + "b" * 50, max_chars=60)
        'aaaaaaaaaaaaaaa\\n… [70 characters omitted] …\\nbbbbbbbbbbbbbbb'
    """
    return join_cut(text, max_chars=max_chars, omitted=0)[0]


def join_cut(text: str, *, max_chars: int, omitted: int) -> tuple[str, int]:
    """Cuts like `clip`, counting `omitted` (dropped before it came here) as missing too; returns text and count.

    Where the text itself fits, the line stands at its end: where the earlier cut was is not known.
    """
    if not omitted and len(text) <= max_chars:
        return text, 0
    room = max_chars - len(_cut_mark(len(text) + omitted)) - 2
    if len(text) <= room:
        mark = _cut_mark(omitted)
        return (f"{text}\n{mark}" if text else mark), omitted
    if room < 0:
        kept = text[: max(0, max_chars)]
        return kept, len(text) - len(kept) + omitted
    tail = room // 2
    head = room - tail
    missing = len(text) - room + omitted
    return f"{text[:head]}\n{_cut_mark(missing)}\n{text[len(text) - tail :]}", missing


def _cut_mark(count: int) -> str:
    return f"… [{count} characters omitted] …"
