"""What every device would hold, to the byte, before anything is written.

plan = make_plan(config, specs, Layout(strategy=Strategy.TENSOR, ranks=8))
plan.devices[3].total        # bytes of weights on rank 3
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from specdecode.core.checkpoint.inventory import is_vision
from specdecode.core.checkpoint.sharding.layout import Layout, Placement
from specdecode.core.checkpoint.sharding.splits import check_layout, place
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config

ENGRAM_TABLES = "Engram tables"
DRAFTER = ("drafter, routed experts", "drafter, the rest")
FAMILIES = (
    "embedding and head",
    "attention",
    "indexer and compressor",
    "routed experts",
    "shared experts",
    "router, norms, streams",
    "Engram projections",
    *DRAFTER,
    "vision",
    ENGRAM_TABLES,
)
"""Groups of tensors in the order in which they are shown; `streams` are the hyper-connections."""


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """A tensor of the plan: its name, shape and bytes."""

    name: str
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, kw_only=True)
class Share:
    """Bytes of one family on one rank: its own part, and what every rank has alike."""

    split: int = 0
    replicated: int = 0

    @property
    def total(self) -> int:
        return self.split + self.replicated

    def __add__(self, other: Share) -> Share:
        return Share(split=self.split + other.split, replicated=self.replicated + other.replicated)


@dataclass(frozen=True, kw_only=True)
class Device:
    """The weights of one rank.

    Attributes:
        families: bytes by family.
        largest: the largest tensor or slice that it holds, and its bytes.
    """

    rank: int
    families: Mapping[str, Share]
    largest: tuple[str, int]

    @property
    def sum(self) -> Share:
        return sum(self.families.values(), Share())

    @property
    def total(self) -> int:
        return self.sum.total


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A layout with its accounts.

    Attributes:
        placements: where each tensor goes, by name.
        whole: bytes by family of the checkpoint as it is.
        tensors, nbytes: of the whole checkpoint.
        host: bytes that stay in the host's memory, once for all ranks.
    """

    layout: Layout
    placements: Mapping[str, Placement]
    devices: tuple[Device, ...]
    whole: Mapping[str, int]
    tensors: int
    nbytes: int
    host: int

    @property
    def split(self) -> int:
        """Bytes that one rank alone has, over all ranks."""
        return sum(device.sum.split for device in self.devices)

    @property
    def replicated(self) -> int:
        """Bytes that every rank has, counted once."""
        return self.devices[0].sum.replicated


def family(name: str) -> str:
    """The group that a tensor is reported in."""
    part = name.split(".")
    if is_vision(name):
        return "vision"
    if name in ("embed.weight", "head.weight"):
        return "embedding and head"
    if part[0] == "mtp":
        return DRAFTER[0] if ".ffn.experts." in name else DRAFTER[1]
    if ".engram." in name:
        return ENGRAM_TABLES if part[3] == "embed" else "Engram projections"
    if ".ffn.experts." in name:
        return "routed experts"
    if ".ffn.shared_experts." in name:
        return "shared experts"
    if ".attn.indexer." in name or ".attn.compressor." in name:
        return "indexer and compressor"
    return "attention" if ".attn." in name else "router, norms, streams"


def make_plan(config: DeepseekV41Config, tensors: Mapping[str, Tensor], layout: Layout) -> Plan:
    """Place every tensor and add up.

    Raises:
        UsageError: the model cannot be divided by this number of ranks.
    """
    check_layout(config, layout)
    placements = {name: place(name, config, layout) for name in tensors}
    return account(tensors, placements, layout)


def account(tensors: Mapping[str, Tensor], placements: Mapping[str, Placement], layout: Layout) -> Plan:
    """Add up placements that are known to fit."""
    whole = dict.fromkeys(FAMILIES, 0)
    shares = [dict.fromkeys(FAMILIES, Share()) for _ in range(layout.ranks)]
    largest = [("none", 0)] * layout.ranks
    host = 0
    for name, tensor in tensors.items():
        group, placement = family(name), placements[name]
        whole[group] += tensor.nbytes
        if placement.host:
            host += tensor.nbytes
            continue
        nbytes = tensor.nbytes // layout.ranks if placement.axis else tensor.nbytes
        share = Share(replicated=nbytes) if placement.replicated else Share(split=nbytes)
        for rank in range(layout.ranks) if placement.rank is None else (placement.rank,):
            shares[rank][group] += share
            if nbytes > largest[rank][1]:
                largest[rank] = (name, nbytes)
    devices = tuple(Device(rank=rank, families=shares[rank], largest=largest[rank]) for rank in range(layout.ranks))
    return Plan(
        layout=layout,
        placements=placements,
        devices=devices,
        whole=whole,
        tensors=len(tensors),
        nbytes=sum(whole.values()),
        host=host,
    )
