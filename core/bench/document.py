"""What a benchmark keeps: one JSON document. docs/bench.md explains it field by field."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

FORMAT: Final = "specdecode.bench/1"


class Part(BaseModel):
    """Strict, so that a document of another version is refused and not half understood."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Figure(Part):
    """One value a repeat, their median, and the median absolute deviation from it."""

    median: float = Field(ge=0, allow_inf_nan=False)
    mad: float = Field(ge=0, allow_inf_nan=False)
    values: list[Annotated[float, Field(ge=0, allow_inf_nan=False)]]


class Percentiles(Part):
    """Seconds, over the requests of all repeats."""

    p50: float | None
    p95: float | None


class AcceptanceFigures(Part):
    """As `generate` counts; from a server, by its own counters. One repeat's, which are all the same but under auto."""

    rounds: int
    proposed: int
    accepted: int
    length: float | None
    length_with_bonus: float | None
    rate: float | None
    per_position: list[float]


class Identical(Part):
    """Prompts whose outputs are plain decoding's in every repeat, of those that both have answered."""

    same: int
    compared: int
    first_difference: str | None


class Seconds(Part):
    """Where the seconds of all repeats went."""

    prompt: float
    verify: float
    draft: float
    host: float
    decode_steps: int
    steps: int


class FloorFigures(Part):
    """What a decoding step must move at least, and its share of the copy bandwidth."""

    bytes_per_step: float
    share: float


class Row(Part):
    """A category in a mode, at a batch size, a temperature and a place. tokens: of one repeat."""

    devices: str
    batch: int
    temperature: float
    category: str
    mode: str
    method: str
    draft_tokens: int | Literal["auto", "default"]
    prompts: int
    failed: int
    tokens: int
    time_to_first_token: Percentiles
    time_per_output_token: Percentiles
    tokens_per_second: Figure
    speed_up: Figure | None
    acceptance: AcceptanceFigures | None
    identical: Identical | None
    seconds: Seconds | None
    byte_floor: FloorFigures | None

    @property
    def key(self) -> tuple[object, ...]:
        """What names it in another document."""
        return (self.devices, self.batch, self.temperature, self.category, self.mode)


class Setting(Part):
    """An option's value, and whether the command line forced it."""

    value: JsonValue
    forced: bool


class Category(Part):
    """Prompts that were run. random: they are random characters, whose figures say nothing about text."""

    name: str
    source: str
    prompts: int
    left_out: int
    random: bool


class Change(Part):
    """A row's figure beside a baseline's. ratio: now / before."""

    devices: str
    batch: int
    temperature: float
    category: str
    mode: str
    figure: str
    before: float
    now: float
    ratio: float
    verdict: Literal["better", "same", "regression"]


class Verdict(Part):
    """All rows beside a baseline. same_machine: else speed-ups are compared in place of tokens per second."""

    file: str
    limit: float
    same_machine: bool
    changes: list[Change]
    only_here: int
    only_there: int

    @property
    def regressions(self) -> int:
        return sum(change.verdict == "regression" for change in self.changes)


class Document(Part):
    """One run of the command."""

    format: Literal["specdecode.bench/1"]
    specdecode: str
    machine: dict[str, str | int]
    model: str
    server: str | None
    settings: dict[str, Setting]
    categories: list[Category]
    rows: list[Row]
    copy_bytes_per_second: dict[str, float]
    cores_busy_with_others: float
    seconds: float
    interrupted: bool
    notes: list[str]
    definitions: dict[str, str]
    baseline: Verdict | None
