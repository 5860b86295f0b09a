"""A server's counters of speculation, by the names that vLLM gave them, read before and after a run.

Their growth counts this run only; a server's running average would mix in whatever came before.
"""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from specdecode.core.bench.measure import Counts
from specdecode.core.errors import SpecdecodeError

PREFIX = "vllm:spec_decode_num_"
_DRAFTS, _DRAFT_TOKENS = f"{PREFIX}drafts_total", f"{PREFIX}draft_tokens_total"
_ACCEPTED, _PER_POSITION = f"{PREFIX}accepted_tokens_total", f"{PREFIX}accepted_tokens_per_pos_total"


def parse(text: str) -> Counts | None:
    """The counters in a page of Prometheus metrics, summed over engines; None where it has none.

    Raises:
        SpecdecodeError: the page is not in Prometheus' format.
    """
    sums = dict.fromkeys((_DRAFTS, _DRAFT_TOKENS, _ACCEPTED), 0.0)
    positions: dict[int, float] = {}
    known = False
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name in sums:
                    known = True
                    sums[sample.name] += sample.value
                elif sample.name == _PER_POSITION:
                    place = int(sample.labels["position"])
                    positions[place] = positions.get(place, 0.0) + sample.value
    except (ValueError, KeyError) as error:
        raise SpecdecodeError(f"The server's /metrics is not in Prometheus' text format: {error}.") from None
    if not known:
        return None
    return Counts(
        drafts=int(sums[_DRAFTS]),
        draft_tokens=int(sums[_DRAFT_TOKENS]),
        accepted=int(sums[_ACCEPTED]),
        per_position=tuple(int(positions.get(place, 0)) for place in range(max(positions, default=-1) + 1)),
    )


def growth(before: Counts, after: Counts) -> Counts:
    """What the counters grew by.

    Raises:
        SpecdecodeError: one has become smaller, so the server has started anew in between.
    """
    first = (*before.per_position, *[0] * (len(after.per_position) - len(before.per_position)))
    grown = Counts(
        drafts=after.drafts - before.drafts,
        draft_tokens=after.draft_tokens - before.draft_tokens,
        accepted=after.accepted - before.accepted,
        per_position=tuple(b - a for a, b in zip(first, after.per_position, strict=False)),
    )
    if min(grown.drafts, grown.draft_tokens, grown.accepted, *grown.per_position, 0) < 0:
        raise SpecdecodeError(
            "The server's counters went back: it was started anew meanwhile. Run the benchmark again."
        )
    return grown
