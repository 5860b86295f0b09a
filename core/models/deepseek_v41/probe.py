"""Inner values of the model as extra graph outputs, and layers fed from outside: for comparison with a reference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from max.dtype import DType
from max.graph import DeviceRef, TensorType, TensorValue, ops

from specdecode.core.kernels import ops as kernels
from specdecode.core.kernels.ops import F
from specdecode.core.models.deepseek_v41.config import LayerKind, TextConfig
from specdecode.core.models.deepseek_v41.layers import LayerState, LayerTrace

INPUTS = ("probe_streams", "probe_pre", "probe_flags", "probe_rows")


def probe_input_types(text: TextConfig, device: DeviceRef, rows: str) -> list[TensorType]:
    """streams [L, M, C, D], pre [L, M, C], flags int32 [L] (set: that layer is fed from the two), rows int32 [M].

    The last, 0, 1, …, makes the head read every merged row.
    """
    layers, copies, d = text.num_hidden_layers, text.hc_mult, text.hidden_size
    return [
        TensorType(F, [layers, rows, copies, d], device),
        TensorType(F, [layers, rows, copies], device),
        TensorType(DType.int32, [layers], device),
        TensorType(DType.int32, [rows], device),
    ]


class Probe:
    """Collects (name, value) pairs while the model is built; `outputs` are appended to the graph's own.

    Names are the golden files': `resid_hc.3`, `pre_mix.3`, `topk.L3`, `moe_ids.3`, `latent.L3`, `engram_out.L1`, …
    """

    def __init__(self, text: TextConfig, inputs: Sequence[TensorValue], device: DeviceRef) -> None:
        self.text, self.device = text, device
        self.streams, self.pre, self.flags, self.every_row = inputs
        self.outputs: dict[str, TensorValue] = {}

    def before(self, layer: int, state: LayerState) -> LayerState:
        """Feed the layer from outside if its flag is set."""
        which = ops.constant(np.array([layer], np.int32), DType.int32, self.device)
        h, mix = kernels.call(
            "sd_inject",
            [state.h, state.mix, self.streams, self.pre, self.flags, which],
            (F, state.h.shape),
            (F, state.mix.shape),
        )
        return LayerState(h=h, mix=mix, chosen=state.chosen, blocks=state.blocks)

    def after(self, layer: int, entered: TensorValue, state: LayerState, trace: LayerTrace) -> None:
        """Record a layer's results."""
        out, kind = self.outputs, self.text.layer_kind(layer)
        out[f"resid_hc.{layer}"], out[f"pre_mix.{layer}"] = state.h, state.mix
        out[f"attn_out.{layer}"], out[f"ffn_out.{layer}"] = trace.attn_out, trace.ffn_out
        out[f"moe_ids.{layer}"], out[f"moe_w.{layer}"] = trace.expert_ids, trace.expert_weights
        if layer in self.text.engram_layer_ids:
            out[f"engram_out.L{layer}"] = entered
        if trace.latent is not None:
            out[f"latent.L{layer}"] = trace.latent
        if kind in (LayerKind.FULL, LayerKind.REINDEX):
            out[f"topk.L{layer}"] = state.chosen
        if self.text.is_candidate_source(layer):
            out[f"cand.L{layer}"] = state.blocks

    def target(
        self, taps: TensorValue, table_rows: TensorValue | None, embedded: TensorValue, logits: TensorValue
    ) -> None:
        """Record the values around the layers; logits are those of all M rows."""
        self.outputs |= {"main_hidden": taps, "embed": embedded, "logits": logits}
        if table_rows is not None:
            self.outputs["hash_ids"] = table_rows

    def draft(self, logits: TensorValue) -> None:
        """Record the draft logits [N, V]."""
        self.outputs["draft_logits"] = logits
