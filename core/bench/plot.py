"""Tokens per second of every category and mode, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from specdecode.core.bench.document import Row
from specdecode.core.errors import UsageError

SUFFIXES = (".png", ".svg")


def check_plot(path: Path) -> None:
    """Refuse a picture that could not be drawn, before anything is measured.

    Raises:
        UsageError: another kind of file, or matplotlib is missing.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"--plot {path} is neither a .png nor an .svg file. Name it as one.")
    if find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib, which is not installed. Get it with: pip install matplotlib")


def draw(path: Path, rows: Sequence[Row], title: str) -> None:
    """Draw a panel for each place, batch size and temperature: bars by category and mode, with their deviations."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = list(dict.fromkeys((row.devices, row.batch, row.temperature) for row in rows))
    figure = Figure(figsize=(9, 3 * len(panels) + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, parse_math=False)
    for axes, panel in zip(figure.subplots(len(panels), squeeze=False)[:, 0], panels, strict=True):
        members = [row for row in rows if (row.devices, row.batch, row.temperature) == panel]
        categories = list(dict.fromkeys(row.category for row in members))
        modes = list(dict.fromkeys(row.mode for row in members))
        width = 0.8 / len(modes)
        for place, mode in enumerate(modes):
            bars = {row.category: row for row in members if row.mode == mode}
            shown = [category for category in categories if category in bars]
            axes.bar(
                [categories.index(category) + place * width for category in shown],
                [bars[category].tokens_per_second.median for category in shown],
                width,
                yerr=[bars[category].tokens_per_second.mad for category in shown],
                label=mode,
            )
        ticks = [at + 0.4 - width / 2 for at in range(len(categories))]
        axes.set_xticks(ticks, categories, parse_math=False)  # a category is not a formula
        axes.set_ylabel("tokens/s")
        axes.set_title(f"{panel[0]}, batch {panel[1]}, temperature {panel[2]:g}", fontsize="medium")
        for text in axes.legend(fontsize="small").get_texts():
            text.set_parse_math(False)
    figure.savefig(path, format=path.suffix.lower().removeprefix("."), dpi=150)
