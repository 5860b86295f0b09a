"""Where a server is in its life, and what loading gives it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from specdecode.core.engine.costs import StepCosts
from specdecode.core.engine.engine import Engine
from specdecode.core.engine.request import Request


class State(str, Enum):
    """Where a server is in its life."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """What loading gives: an engine that tells `Runner.observe` and `Runner.failed`, and what its steps cost."""

    engine: Engine
    costs: StepCosts | None
    warm_up: Request
