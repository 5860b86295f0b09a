"""A bar on standard error while something is measured."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tqdm import tqdm

from specdecode.core.progress import Progress

if TYPE_CHECKING:
    from typing import Never


class Bar:
    """Counts runs; nothing is drawn where nobody watches."""

    def __init__(self, bar: tqdm[Never]) -> None:
        self._bar, self._begun = bar, False

    def advance(self, label: str) -> None:
        """The run before is over, and this one begins."""
        if self._begun:
            self._bar.update()
        self._begun = True
        self._bar.set_postfix_str(label, refresh=False)


@contextmanager
def bar(title: str, total: int, progress: Progress, *, quiet: bool) -> Iterator[Bar]:
    """A bar of so many runs; without a terminal one lasting line says what is measured."""
    hidden = quiet or not sys.stderr.isatty()
    if hidden:
        progress.note(f"measuring {title}: {total} runs")
    with tqdm(total=total, desc=title, unit="run", file=sys.stderr, disable=hidden, leave=False) as shown:
        yield Bar(shown)
