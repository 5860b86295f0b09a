"""Bodies of subgraphs, and their arguments: what every body takes comes first, in a fixed order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from max.graph import BufferValue, TensorValue

from specdecode.core.kernels import ops as kernels
from specdecode.core.kernels.ops import Common, Rows


def attending(after: Callable[..., Sequence[TensorValue]]) -> Callable[..., Sequence[TensorValue]]:
    """A body that attends, then does what `after` says.

    after: called with the attention's outputs [M, H K], h, mix, the layer settings, common, and the body's own weights.
    """

    def body(
        h: TensorValue,
        mix: TensorValue,
        q: TensorValue,
        kv: TensorValue,
        chosen: TensorValue,
        window: BufferValue,
        compressed: BufferValue,
        *rest: TensorValue,
    ) -> Sequence[TensorValue]:
        rows, freq, settings, common, weights = unpack(rest)
        o = kernels.attend(q, window, compressed, chosen, kv, rows, weights[0], freq, settings, common)
        return after(o, h, mix, settings, common, weights[1:])

    return body


def row_values(rows: Rows) -> tuple[TensorValue, ...]:
    """Rows as a body's arguments."""
    return rows.seq, rows.pos, rows.last, rows.table


def unpack(
    values: Sequence[TensorValue],
) -> tuple[Rows, TensorValue, TensorValue, Common, Sequence[TensorValue]]:
    """The arguments that every body takes (rows, frequencies, settings, common), and its own weights."""
    seq, pos, last, table, freq, settings, model, mode, *weights = values
    return (
        Rows(seq=seq, pos=pos, last=last, table=table),
        freq,
        settings,
        Common(model=model, mode=mode),
        weights,
    )


def index(
    x: TensorValue,
    latent: TensorValue,
    chosen: TensorValue,
    blocks: TensorValue,
    keys: BufferValue,
    *rest: TensorValue,
) -> Sequence[TensorValue]:
    rows, freq, settings, common, weights = unpack(rest)
    return kernels.index(x, latent, chosen, blocks, keys, rows, weights, freq, settings, common)
