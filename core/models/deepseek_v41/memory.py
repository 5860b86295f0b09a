"""Whether a model and its caches fit into the memory of its devices."""

from __future__ import annotations

from specdecode.core.device_layout import DeviceLayout
from specdecode.core.engine.devices import Places
from specdecode.core.errors import DeviceError
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
from specdecode.core.models.deepseek_v41.eagle_config import EagleConfig
from specdecode.core.models.deepseek_v41.registry import rank_bytes, weight_bytes
from specdecode.core.models.deepseek_v41.unified.replicas import expert_rows


def check_memory(
    places: Places,
    config: DeepseekV41Config,
    num_pages: int,
    page: int,
    drafter: EagleConfig | None = None,
    *,
    exchange: int = 0,
) -> None:
    """Refuse what a device has no memory for, where anybody tells how much there is.

    On the CPU the caches alone count: the weights are files that the system may have in memory already.

    Args:
        num_pages: cache pages of each rank, of `page` bytes.
        exchange: bytes of each rank for what the devices tell each other.

    Raises:
        DeviceError: with the sizes.
    """
    sizes = [weight_bytes(config, drafter)] if places.single else rank_bytes(config, places.layout)
    shards = len(sizes) // len(places.different)  # of each device
    if shards > 1:
        sizes = [sum(sizes)]
    pages, exchanged = shards * num_pages, shards * exchange
    what = f"{pages} pages of {page >> 10} KiB" + (f" and {exchanged >> 20} MiB for exchange" if exchange else "")
    for place, own in zip(places.different, sizes, strict=True):
        free, weights = place.free_memory, 0 if place.is_host else own
        need = weights + pages * page + exchanged
        if free is None or need <= free:
            continue
        advice = "Lower --max-tokens or --batch-size, or shorten the prompts."
        if place.is_host:
            raise DeviceError(
                f"The caches do not fit: {what} need {need >> 20} MiB, and {free >> 20} MiB are free. {advice}"
            )
        raise DeviceError(
            f"The model does not fit on {place.name}: {weights >> 20} MiB of weights and {what} of caches need "
            f"{need >> 20} MiB, and {free >> 20} MiB are free. "
            + (advice if weights < free else "Use --devices cpu, more devices or a smaller checkpoint.")
        )


def exchange_bytes(config: DeepseekV41Config, layout: DeviceLayout, most_rows: int) -> int:
    """Bytes of each rank for what the devices tell each other: signals, and experts' results of so many rows."""
    signals = 0
    if layout.signals:
        from max.nn.comm import Signals

        signals = int(Signals.NUM_BYTES)
    rows = expert_rows(config, most_rows) if layout.data_parallel else 0
    return signals + rows * config.text_config.hidden_size * 4
