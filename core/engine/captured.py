"""Steps as captured device graphs: recorded at the second step of a shape, replayed from then on.

Launching the kernels of a step one by one costs the host more than a small step takes on the device; a replay launches
them all at once. A recording holds the addresses of its buffers and every size, so each shape has one of its own, and
a replay takes the same buffers with new contents. Results lie in the recording's own buffers, valid until its next
replay.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from specdecode.core.engine.staging import Recent

if TYPE_CHECKING:
    from max.driver import Buffer

LIMIT = 32
"""Recordings kept; each holds the memory that its step works in."""
_SEEN = 1024  # shapes remembered as having run once


class CapturableModel(Protocol):
    """What a compiled graph on a GPU can do; MAX's `Model` does."""

    def execute(self, *inputs: Any) -> Sequence[Buffer]:
        """Run kernel by kernel."""
        ...

    def capture(self, graph_keys: int, *inputs: Buffer) -> Sequence[Buffer]:
        """Record a run under a key; returns the buffers that replays write their results to."""
        ...

    def replay(self, graph_keys: int, *inputs: Buffer) -> None:
        """Run a recording."""
        ...

    def debug_verify_replay(self, graph_keys: int, *inputs: Buffer) -> None:
        """Raise unless running kernel by kernel launches what the recording does."""
        ...

    def release_captured_graph(self, graph_keys: int) -> None:
        """Drop a recording."""
        ...


@dataclass(frozen=True, kw_only=True)
class _Recording:
    key: int
    inputs: tuple[Buffer, ...]
    outputs: Sequence[Buffer]

    def takes(self, inputs: Sequence[Buffer]) -> bool:
        """Whether these are the very buffers that were recorded."""
        return len(inputs) == len(self.inputs) and all(map(_same, inputs, self.inputs))


def _same(a: Buffer, b: Buffer) -> bool:
    return a is b


class CapturedSteps:
    """Runs a model's steps, from recordings where there are some.

    Args:
        model: the compiled graph.
        limit: recordings to keep; beyond it the one used longest ago is released.
    """

    def __init__(self, model: CapturableModel, *, limit: int = LIMIT) -> None:
        self._model = model
        self._recordings: Recent[Hashable, _Recording] = Recent(limit, self._release)
        self._seen: Recent[Hashable, bool] = Recent(_SEEN)
        self._next_key = 0

    def __len__(self) -> int:
        return len(self._recordings)

    def run(self, shape: Hashable, inputs: Sequence[Buffer]) -> Sequence[Buffer]:
        """The results of one step.

        Args:
            shape: everything that any size in the step follows from.
            inputs: every graph input; for a shape that is recorded the same buffers as then, or it is recorded anew.
        """
        recording = self._recordings.get(shape)
        if recording is None or not recording.takes(inputs):
            if self._seen.get(shape) is None:
                # A shape that never comes back is not worth recording; and what a first run sets up is set up.
                self._seen.put(shape, True)
                return self._model.execute(*inputs)
            recording = self._record(shape, inputs)
        self._model.replay(recording.key, *recording.inputs)
        return recording.outputs

    def replayer(self, shape: Hashable, inputs: Sequence[Buffer]) -> Callable[[], None]:
        """What replays a shape's recording, made now if there is none, without anything around it; to be timed."""
        recording = self._recorded(shape, inputs)
        return lambda: self._model.replay(recording.key, *recording.inputs)

    def verify(self, shape: Hashable, inputs: Sequence[Buffer]) -> None:
        """Compare a shape's recording, made now if there is none, with a run kernel by kernel.

        Raises:
            RuntimeError: they launch different kernels: the step's work depends on more than its shape.
        """
        recording = self._recorded(shape, inputs)
        self._model.debug_verify_replay(recording.key, *recording.inputs)

    def clear(self) -> None:
        """Release every recording."""
        self._recordings.clear()

    def _recorded(self, shape: Hashable, inputs: Sequence[Buffer]) -> _Recording:
        recording = self._recordings.get(shape)
        return recording if recording is not None and recording.takes(inputs) else self._record(shape, inputs)

    def _record(self, shape: Hashable, inputs: Sequence[Buffer]) -> _Recording:
        self._recordings.drop(shape)
        key, self._next_key = self._next_key, self._next_key + 1
        kept = tuple(inputs)
        recording = _Recording(key=key, inputs=kept, outputs=self._model.capture(key, *kept))
        self._recordings.put(shape, recording)
        return recording

    def _release(self, shape: Hashable, recording: _Recording) -> None:
        self._model.release_captured_graph(recording.key)
