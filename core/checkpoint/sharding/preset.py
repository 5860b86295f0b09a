"""What a preset says about sharding: `presets/NAME.yaml`, section `shard-weights`."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from specdecode.core.checkpoint.sharding.layout import Layout, Strategy
from specdecode.core.errors import ConfigError

SECTION = "shard-weights"


@dataclass(frozen=True, kw_only=True)
class ShardingPreset:
    """Layouts to plan, and for how many tokens and sequences."""

    layouts: tuple[Layout, ...]
    context: int
    batch_size: int


def sharding_preset(name: str) -> ShardingPreset | None:
    """The section of a preset, or None if there is no such preset or section.

    Raises:
        ConfigError: the section is not as it should be.
    """
    path = Path(str(files("specdecode.presets"))) / f"{name}.yaml"
    if Path(name).name != name or not path.is_file():
        return None
    return read_sharding_preset(path)


def read_sharding_preset(path: Path) -> ShardingPreset | None:
    """The section of a preset's file."""
    import yaml

    try:
        section = yaml.safe_load(path.read_text(encoding="utf-8")).get(SECTION)
        if section is None:
            return None
        unknown = set(section) - {"layouts", "context", "batch-size"}
        if unknown:
            raise ValueError(f"unknown key {min(unknown)}")
        layouts = tuple(_layout(item) for item in section["layouts"])
        if not layouts:
            raise ValueError("no layouts")
        return ShardingPreset(
            layouts=layouts, context=_count(section["context"]), batch_size=_count(section["batch-size"])
        )
    except (OSError, yaml.YAMLError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: the section {SECTION} cannot be read: {error}.") from None


def _layout(item: dict[str, int]) -> Layout:
    ((strategy, ranks),) = item.items()
    return Layout(strategy=Strategy(strategy), ranks=_count(ranks))


def _count(value: object) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"{value!r} is not a positive integer")
    return value
