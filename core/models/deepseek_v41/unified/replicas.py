"""The requests of a step as the replicas have them: data parallelism's own inputs.

Pages are numbered over all replicas, replica after replica, so a row's pages tell whose it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from max.driver import Buffer

from specdecode.core.cache.leaves import DeviceCaches, KVCacheInputs
from specdecode.core.engine.step import StepRow
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config

Filled = Callable[[str, Any, tuple[int, ...], Sequence[int]], Buffer]
Ragged = Callable[[str, Any, Sequence[Sequence[int]], int, int], Buffer]


def expert_rows(config: DeepseekV41Config, most_rows: int) -> int:
    """Rows of a buffer of experts' results: every choice of every row, of the backbone or of a draft stage."""
    text = config.text_config
    return most_rows * max(text.num_experts_per_tok, text.dspark_num_experts_per_tok)


def splits_of(rows: Sequence[StepRow], replicas: int, pages: int) -> list[int]:
    """Where each replica's requests begin, and the end; `pages` belong to each replica.

    Raises:
        ValueError: rows out of order, or a row with pages of several replicas.
    """
    splits, last = [0], 0
    for place, row in enumerate(rows):
        owner = row.pages[0] // pages
        if owner != max(row.pages) // pages or owner != min(row.pages) // pages:
            raise ValueError(f"row {place} has pages of several replicas, {pages} pages each: {row.pages}")
        if owner < last:
            raise ValueError(f"row {place} belongs to replica {owner}, but comes after rows of replica {last}")
        splits += [place] * (owner - last)
        last = owner
    return splits + [len(rows)] * (replicas - last)


def context_lengths(rows: Sequence[StepRow], splits: Sequence[int]) -> list[int]:
    """Each replica's summed context behind this step's tokens."""
    return [sum(row.cache_length + len(row.tokens) for row in rows[first:end]) for first, end in pairwise(splits)]


def spread_caches(
    rows: Sequence[StepRow],
    leaves: Sequence[Mapping[str, Buffer]],
    splits: Sequence[int],
    pages: int,
    filled: Filled,
    ragged: Ragged,
) -> DeviceCaches:
    """Each device's caches of its own requests; page numbers count from its own first page."""
    devices = []
    for rank, own in enumerate(leaves):
        mine = rows[splits[rank] : splits[rank + 1]]
        width = max((len(row.pages) for row in mine), default=1)
        devices.append(
            KVCacheInputs(
                leaves=own,
                cache_lengths=filled(
                    f"cache_lengths.{rank}", np.uint32, (len(mine),), [row.cache_length for row in mine]
                ),
                lookup_table=ragged(
                    f"lookup_table.{rank}",
                    np.uint32,
                    [[page - rank * pages for page in row.pages] for row in mine],
                    width,
                    0,
                ),
            )
        )
    return DeviceCaches(devices=tuple(devices))
