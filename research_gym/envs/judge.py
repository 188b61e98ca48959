"""What the host finds out for itself about an episode: artefacts in the sandbox, and the grade of a submission."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from research_gym.cell import Output
from research_gym.datastore import label_file, read_facts
from research_gym.errors import FileRefused
from research_gym.grading import worker
from research_gym.grading.plan import ANSWER_METRIC
from research_gym.grading.schema import MAX_SUBMISSION_BYTES
from research_gym.grading.score import Score
from research_gym.landmark import LandmarkState, OutputScan, check_artefact
from research_gym.limits import MIB
from research_gym.sandbox.session import Session
from research_gym.sandbox.waiting import Steps
from research_gym.task import AnswerGrading, SubmissionGrading, Task

MAX_ARTEFACT_BYTES = 16 * MIB


class Judge:
    """Reads files of the sandbox under rules, and grades outside of it. Never asks the agent's kernel anything."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._scan = OutputScan(task.landmarks)
        self._seen: dict[str, tuple[int, int]] = {}

    @property
    def metric(self) -> str:
        """Name of the terminal score's metric."""
        grading = self.task.grading
        return grading.metric if isinstance(grading, SubmissionGrading) else ANSWER_METRIC

    @property
    def lower_is_better(self) -> bool:
        """Direction of the raw metric."""
        grading = self.task.grading
        return isinstance(grading, SubmissionGrading) and grading.lower_is_better

    def no_submission(self) -> Score:
        """The score of an episode that ended without a graded submission: 0.0, reason `no_submission`."""
        return Score.refused(
            metric=self.metric,
            reason="no_submission",
            message="the episode ended without a graded submission",
            lower_is_better=self.lower_is_better,
        )

    def look(
        self, session: Session, state: LandmarkState, *, outputs: Sequence[Output], step: int
    ) -> Steps[LandmarkState]:
        """Updates the landmarks after a step: kernel text is noted as seen, artefacts that hold are reached."""
        state = state.update(step=step, seen=self._scan.feed(outputs))
        for landmark in self.task.landmarks:
            check = landmark.artefact
            if check is None or state.is_reached(landmark.id):
                continue
            path = check.path if check.path.startswith("/") else f"{self.task.workdir}/{check.path}"
            try:
                stat = yield from session.stat(path)
            except FileRefused:  # the way there runs through a link, or is closed: the agent made it so
                continue
            mark = (stat.size, stat.mtime_ns)
            if stat.kind != "regular" or self._seen.get(landmark.id) == mark:
                continue
            self._seen[landmark.id] = mark
            data: bytes | None = None
            if check.needs_content:
                try:
                    data = yield from session.read_file(path, max_bytes=MAX_ARTEFACT_BYTES)
                except FileRefused:
                    continue
            if check_artefact(check, data):
                state = state.update(step=step, artefacts=(landmark.id,))
        return state

    def collect(self, session: Session) -> Steps[bytes]:
        """Reads the submission file of a file task.

        Raises:
            FileRefused: missing, not a regular file, a link, or over 64 MiB.
        """
        grading = self.task.grading
        assert isinstance(grading, SubmissionGrading)
        path = grading.file if grading.file.startswith("/") else f"{self.task.workdir}/{grading.file}"
        data: bytes = yield from session.read_file(path, max_bytes=MAX_SUBMISSION_BYTES)
        return data

    def grade(self, *, answer: Any, data: bytes | None) -> Steps[Score]:
        """Grades in a process of its own; labels are read there and nowhere else.

        Raises:
            GraderError: the grader or its labels are broken, not the submission.
        """
        grading: SubmissionGrading | AnswerGrading = self.task.grading
        request = grading.to_request(read_facts(self.task.id))
        labels = label_file(self.task.id)
        score = yield from worker.grade(request, submission=data, answer=answer, labels=labels)
        return score
