"""Whether a model and its caches fit into the memory of its devices."""

from __future__ import annotations

from specdecode.core.engine.devices import Places
from specdecode.core.errors import DeviceError
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
from specdecode.core.models.deepseek_v41.eagle_config import EagleConfig
from specdecode.core.models.deepseek_v41.registry import rank_bytes, weight_bytes


def check_memory(
    places: Places, config: DeepseekV41Config, num_pages: int, page: int, drafter: EagleConfig | None = None
) -> None:
    """Refuse what a device has no memory for, where anybody tells how much there is.

    On the CPU the caches alone count: the weights are files that the system may have in memory already.

    Args:
        num_pages: cache pages of each rank, of `page` bytes.

    Raises:
        DeviceError: with the sizes.
    """
    sizes = [weight_bytes(config, drafter)] if places.single else rank_bytes(config, places.layout)
    caches = [num_pages * page] * len(sizes)
    if len(places.different) < len(sizes):  # logical shards of one device
        sizes, caches = [sum(sizes)], [sum(caches)]
    for place, own, pages in zip(places.different, sizes, caches, strict=True):
        free, weights = place.free_memory, 0 if place.is_host else own
        if free is None or weights + pages <= free:
            continue
        advice = "Lower --max-tokens or --batch-size, or shorten the prompts."
        what = f"{pages // page} pages of {page >> 10} KiB"
        if place.is_host:
            raise DeviceError(
                f"The caches do not fit: {what} need {pages >> 20} MiB, and {free >> 20} MiB are free. {advice}"
            )
        raise DeviceError(
            f"The model does not fit on {place.name}: {weights >> 20} MiB of weights and {what} of caches need "
            f"{weights + pages >> 20} MiB, and {free >> 20} MiB are free. "
            + (advice if weights < free else "Use --devices cpu, more devices or a smaller checkpoint.")
        )
