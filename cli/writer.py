"""Results that go into a file as they are done."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from specdecode.cli import results
from specdecode.cli.jobs import Job
from specdecode.cli.passes import Outcome
from specdecode.core.results_file import ResultsFile


class Writer:
    """Lines of a results file, those of an earlier run left out.

    A line answers one job; in a batch it answers one request with all its samples, and is written when the last of
    them is done.

    Args:
        path: the file.
        jobs: everything that is asked for.
        form: the shape of a line, from `results.choose_format`.
        model: what a batch's answers call the model.
        resume: continue a file that has lines already.

    Attributes:
        jobs: what has no line yet.
        known: lines that an earlier run has left. total: lines that there will be.
    """

    def __init__(self, path: Path, jobs: Sequence[Job], *, form: str, model: str, resume: bool) -> None:
        self.path = path
        self._groups = _by_prompt(jobs) if form == "openai-batch" else [[job] for job in jobs]
        self._file = ResultsFile(path, [_key(group) for group in self._groups], resume=resume)
        open_places = [place for place in range(len(self._groups)) if place not in self._file.answered]
        self._places = [place for place in open_places for _ in self._groups[place]]
        self.jobs = [job for place in open_places for job in self._groups[place]]
        self.known, self.total = len(self._file.answered), len(self._groups)
        self._done: dict[int, dict[int, Outcome]] = {}
        self._form, self._model = form, model

    def write(self, number: int, outcome: Outcome) -> None:
        """Take what came of one of `jobs`, and write its line if that is complete now.

        Raises:
            SpecdecodeError: the file cannot be written.
        """
        place = self._places[number]
        group, done = self._groups[place], self._done.setdefault(place, {})
        done[self.jobs[number].sample] = outcome
        if len(done) == len(group):
            outcomes = [done[job.sample] for job in group]
            content = results.line(group, outcomes, key=_key(group), form=self._form, model=self._model)
            self._file.add(place, content)

    def close(self, *, sort: bool) -> None:
        """End; `sort` puts the lines into the order of the prompts."""
        self._file.close(sort=sort)


def _by_prompt(jobs: Sequence[Job]) -> list[list[Job]]:
    groups: list[list[Job]] = []
    for job in jobs:
        if job.sample == 0:
            groups.append([])
        groups[-1].append(job)
    return groups


def _key(group: Sequence[Job]) -> str:
    """What a line's id is made of: the key of its job, or those of all its samples."""
    if len(group) == 1:
        return group[0].key
    return hashlib.sha256(" ".join(job.key for job in group).encode()).hexdigest()[:32]
