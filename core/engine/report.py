"""What one step was and how long it took, and what an engine holds, for whoever watches one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """One step, whose requests all waited for the same seconds.

    Attributes:
        decoding: ids of the requests that gained tokens behind their first one, with the drafts that each verified.
        prefilling: requests that ran a chunk of their prompts.
        width: draft positions per request.
        drafts: whether the step drafted the next block, too.
        seconds: from handing the step to the model to its results.
    """

    decoding: dict[int, int]
    prefilling: int
    width: int
    drafts: bool
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Load:
    """What a scheduler holds: requests that run and that wait, and cache pages, free and in all."""

    running: int
    waiting: int
    free_pages: int
    pages: int
