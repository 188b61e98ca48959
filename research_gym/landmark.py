"""Landmarks: signs of progress on the way to a submission, and what counts as evidence for them.

Text that a kernel printed proves nothing: an agent can print any line. Such a landmark is *seen* and never pays. An
*artefact*, a file that the host reads and checks for itself, pays once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum, isfinite
from types import MappingProxyType
from typing import Literal

from research_gym.artefact import ArtefactCheck, check_artefact
from research_gym.cell import Display, ErrorOutput, Output, Result, Stream
from research_gym.errors import TaskFormatError
from research_gym.pattern import LinePattern, compile_pattern
from research_gym.text import clean

__all__ = [
    "ArtefactCheck",
    "Evidence",
    "Landmark",
    "LandmarkState",
    "LinePattern",
    "OutputScan",
    "check_artefact",
    "compile_pattern",
]

Evidence = Literal["none", "seen", "artefact"]

MAX_SCAN_BYTES = 64 << 20
"""Output of an episode that is matched; what comes after it is only shown."""
MAX_LINE_BYTES = 64 << 10
"""Of a line without an end, this much is kept until the end comes; a longer line is matched in pieces."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True)
class Landmark:
    """One sign of progress. Exactly one of `artefact` and `output` says how it is recognised.

    Raises:
        TaskFormatError: the id, the weight or the pattern is not valid, or there is not exactly one way to recognise
        it.
    """

    id: str
    weight: float = 1.0
    """Share of the landmark reward, relative to the task's other landmarks."""
    artefact: ArtefactCheck | None = None
    """A file that the host checks: pays."""
    output: str | None = None
    """An RE2 pattern for one line of kernel output: shown as seen, never pays."""

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not _ID.fullmatch(self.id):
            raise TaskFormatError(
                f"landmark id: expected letters, digits, '_', '.' and '-', at most 64, found {self.id!r}"
            )
        weight = self.weight
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not isfinite(weight) or weight < 0:
            raise TaskFormatError(f"landmark {self.id}: weight: expected a finite number >= 0, found {weight!r}")
        if (self.artefact is None) == (self.output is None):
            raise TaskFormatError(f"landmark {self.id}: expected exactly one of the keys 'artefact' and 'output'")
        if self.output is not None:
            compile_pattern(self.output)


class OutputScan:
    """Matches the output of an episode against its landmarks' patterns, line by line, as it comes.

    It reads what the kernel sent, not the observation: what was cut from the text an agent sees is matched too. It
    never raises, and never takes long. Each landmark is reported once.
    """

    def __init__(self, landmarks: Iterable[Landmark]) -> None:
        self._wanted = {mark.id: compile_pattern(mark.output) for mark in landmarks if mark.output is not None}
        self._held: dict[str, str] = {}
        self._left_bytes = MAX_SCAN_BYTES

    def feed(self, outputs: Sequence[Output] | str, *, last: bool = True) -> tuple[str, ...]:
        """Takes the next outputs and returns the ids of landmarks seen for the first time.

        Args:
            outputs: outputs of a cell, or text of its stdout.
            last: the cell has ended, and so have its lines. `False`: more of the same lines may come.

        Example:
            >>> scan = OutputScan([Landmark("done", output="^Training completed")])
            >>> scan.feed("Training com", last=False), scan.feed("pleted")
            ((), ('done',))
        """
        if not self._wanted:
            return ()
        pieces: dict[str, list[str]] = {name: [text] for name, text in self._held.items()}
        for name, text in [("stdout", outputs)] if isinstance(outputs, str) else map(_matched_text, outputs):
            if self._left_bytes > 0:
                self._left_bytes -= len(text)
                pieces.setdefault(name, []).append(text)
        self._held = {}
        found: list[str] = []
        for name, parts in pieces.items():
            text = "".join(parts).replace("\r", "\n")
            if not last:
                end = text.rfind("\n") + 1
                if len(text) - end <= MAX_LINE_BYTES:
                    self._held[name] = text[end:]
                    text = text[:end]
            if text:
                found += self._match(text)
        return tuple(found)

    def _match(self, text: str) -> list[str]:
        if "\x1b" in text:
            text = clean(text)
        data = text.encode("utf-8", "replace")
        found = [key for key, pattern in self._wanted.items() if pattern.found_in(data)]
        for key in found:
            del self._wanted[key]
        return found


def _matched_text(output: Output) -> tuple[str, str]:
    match output:
        case Stream():
            return output.name, output.text
        case ErrorOutput():
            return "error", "\n".join((*output.traceback, ""))
        case Display() | Result():
            text = output.data.get("text/plain")
            return "value", f"{text}\n" if isinstance(text, str) else ""
        case _:
            return "value", ""


@dataclass(frozen=True)
class LandmarkState:
    """Which landmarks an episode has seen and reached, and when. Never goes back: a landmark is reached once.

    Example:
        >>> marks = (Landmark("a", weight=3, output="x"), Landmark("b", artefact=ArtefactCheck("b.json")))
        >>> state = LandmarkState.initial(marks).update(step=1, seen=("a",)).update(step=2, artefacts=("b",))
        >>> state.steps(), state.evidence(), state.potential(marks)
        ({'a': -1, 'b': 2}, {'a': 'seen', 'b': 'artefact'}, 0.25)
    """

    ids: tuple[str, ...]
    """All landmarks of the task, in its order."""
    reached: Mapping[str, int] = field(default_factory=dict)
    """Id -> step at which its artefact first held."""
    seen: Mapping[str, int] = field(default_factory=dict)
    """Id -> step at which its pattern was first seen in kernel output."""

    @classmethod
    def initial(cls, landmarks: Iterable[Landmark]) -> LandmarkState:
        """The state at reset."""
        return cls(tuple(mark.id for mark in landmarks))

    def update(self, *, step: int, seen: Iterable[str] = (), artefacts: Iterable[str] = ()) -> LandmarkState:
        """Returns the state after `step`; ids that were there before keep their first step.

        Raises:
            ValueError: an id is not one of the task's landmarks.
        """
        new_seen, new_reached = dict(self.seen), dict(self.reached)
        for ids, into in ((seen, new_seen), (artefacts, new_reached)):
            for key in ids:
                if key not in self.ids:
                    raise ValueError(f"landmark {key!r}: expected one of {', '.join(self.ids) or 'none'}")
                into.setdefault(key, step)
        return LandmarkState(self.ids, MappingProxyType(new_reached), MappingProxyType(new_seen))

    def is_reached(self, landmark_id: str) -> bool:
        """Whether it has been reached, by evidence that pays."""
        return landmark_id in self.reached

    def steps(self) -> dict[str, int]:
        """`info["landmarks"]`: id -> step at which it was reached, -1 before."""
        return {key: self.reached.get(key, -1) for key in self.ids}

    def evidence(self) -> dict[str, str]:
        """`info["landmark_evidence"]`: id -> `none`, `seen` (never pays) or `artefact`."""
        return {key: self._evidence(key) for key in self.ids}

    def _evidence(self, key: str) -> Evidence:
        return "artefact" if key in self.reached else "seen" if key in self.seen else "none"

    def potential(self, landmarks: Iterable[Landmark]) -> float:
        """The weight reached, as a share of all weight: in [0, 1], 0 without landmarks, 1 with all of them."""
        weights = {mark.id: mark.weight for mark in landmarks}
        largest = max(weights.values(), default=0.0)
        if not largest:
            return 0.0
        shares = {key: weight / largest for key, weight in weights.items()}
        return min(1.0, fsum(shares[key] for key in self.reached) / fsum(shares.values()))
