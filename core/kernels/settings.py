"""The settings tensors that kernels read, field by field in the order of `mojo/layout.mojo`."""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from specdecode.core.models.deepseek_v41.config import TextConfig

EXACT, THREADS = 0, 1
"""Places in the int32 mode tensor: the model's own rounding (1) or plain float32 (0), and threads per kernel."""


@dataclass(frozen=True, kw_only=True)
class LayerSettings:
    """One layer's int32 settings; fields in the order in which kernels read them.

    Attributes:
        layer: layer of the window leaf.
        ratio: tokens per compressed row, 0 for a window-only layer.
        kv_offset: first compressed row of the layer's kv source on a page.
        open_layer: layer of the open-group leaf (sources with ratio > 1).
        key_offset: first index key of the layer's key owner on a page.
        page_size: tokens per page.
        window: newest positions a row attends to.
        block: draft block size; 0 in the target.
        owns_keys: 1 for a source that computes index keys.
        candidates: 0 no part, 1 publishes candidate blocks, 2 chooses among them.
        candidate_block: compressed rows per candidate block.
        experts_per_token: routed experts of a row.
        hc_iterations: Sinkhorn rounds.
    """

    layer: int
    ratio: int
    kv_offset: int
    open_layer: int
    key_offset: int
    page_size: int
    window: int
    block: int
    owns_keys: int
    candidates: int
    candidate_block: int
    experts_per_token: int
    hc_iterations: int

    def array(self) -> NDArray[np.int32]:
        return np.array(astuple(self), np.int32)


@dataclass(frozen=True, kw_only=True)
class PageLayout:
    """How the cache leaves divide a page of `page_size` tokens among layers and sources.

    Attributes:
        page_size: tokens per page, a multiple of every compress ratio.
        kv_offsets: kv source layer -> first compressed row on a page.
        key_offsets: key-owning layer -> first index key on a page.
        open_layers: ratio > 1 source -> its layer in the open-group leaf.
        kv_rows, key_rows: compressed rows and index keys per page.
        open_slots: kept group openings per source and page; more than a verify block can overwrite.
    """

    page_size: int
    kv_offsets: dict[int, int]
    key_offsets: dict[int, int]
    open_layers: dict[int, int]
    kv_rows: int
    key_rows: int
    open_slots: int

    @classmethod
    def of(cls, text: TextConfig, page_size: int) -> PageLayout:
        kv: dict[int, int] = {}
        keys: dict[int, int] = {}
        opens: dict[int, int] = {}
        kv_rows = key_rows = 0
        for source in text.kv_source_layer_ids:
            ratio = text.compress_ratio(source)
            if page_size % ratio:
                raise ValueError(f"page size {page_size} is not a multiple of layer {source}'s ratio {ratio}")
            kv[source] = kv_rows
            kv_rows += page_size // ratio
            if text.owns_index_keys(source):
                keys[source] = key_rows
                key_rows += page_size // ratio
            if ratio > 1:
                opens[source] = len(opens)
        # A step writes up to block + 1 rows past the commit, so openings of (block + 1) / 2 groups beyond
        # the one that may still be completed must not fall on its slot.
        slots = (text.dspark_block_size + 1) // 2 + 2
        return cls(
            page_size=page_size,
            kv_offsets=kv,
            key_offsets=keys,
            open_layers=opens,
            kv_rows=max(kv_rows, 1),
            key_rows=max(key_rows, 1),
            open_slots=slots,
        )


def layer_settings(text: TextConfig, pages: PageLayout, layer: int) -> LayerSettings:
    """Settings of backbone layer `layer`, or of draft stage `layer - num_hidden_layers`."""
    stage = layer >= text.num_hidden_layers
    ratio = 0 if stage else text.compress_ratio(layer)
    source = text.kv_source(layer) if ratio else -1
    candidates = 0
    if ratio and text.is_candidate_source(layer):
        candidates = 1
    elif ratio and text.uses_candidates(layer):
        candidates = 2
    return LayerSettings(
        layer=layer,
        ratio=ratio,
        kv_offset=pages.kv_offsets.get(source, 0),
        open_layer=pages.open_layers.get(source, 0),
        key_offset=pages.key_offsets.get(source, 0),
        page_size=pages.page_size,
        window=text.sliding_window,
        block=text.dspark_block_size if stage else 0,
        owns_keys=int(not stage and ratio > 0 and text.owns_index_keys(layer)),
        candidates=candidates,
        candidate_block=text.candidate_block_size,
        experts_per_token=text.dspark_num_experts_per_tok if stage else text.num_experts_per_tok,
        hc_iterations=text.hc_sinkhorn_iters,
    )


def drafter_settings(text: TextConfig, pages: PageLayout, *, window: int, experts_per_token: int) -> LayerSettings:
    """Settings of an autoregressive drafter's window layer, whose rows lie behind the backbone's in the window leaf."""
    plain = layer_settings(text, pages, text.num_hidden_layers)
    return replace(plain, window=window, block=0, experts_per_token=experts_per_token)


def model_settings(text: TextConfig) -> NDArray[np.float32]:
    """The model's float32 settings: rms_norm_eps, hc_eps, swiglu_limit, routed_scaling_factor."""
    return np.array([text.rms_norm_eps, text.hc_eps, text.swiglu_limit, text.routed_scaling_factor], np.float32)


def inverse_frequencies(text: TextConfig, *, compressed: bool) -> NDArray[np.float32]:
    """RoPE frequencies [qk_rope_head_dim / 2].

    Layers with a compress ratio use `compress_rope_theta` with YaRN (`rope_scaling`), for everything in the
    layer; window-only layers and the draft stages use `rope_theta` alone. Source: V4.1's inference code.
    """
    dims = text.qk_rope_head_dim
    theta = text.compress_rope_theta if compressed else text.rope_theta
    exponent = np.arange(0, dims, 2, dtype=np.float32) / np.float32(dims)
    frequency = (np.float32(1.0) / np.float32(theta) ** exponent).astype(np.float32)
    if not compressed:
        return frequency
    scaling = text.rope_scaling

    def turning(rotations: float) -> float:
        """The pair whose wavelength fits the original context `rotations` times."""
        wavelength = scaling.original_max_position_embeddings / (rotations * 2 * np.pi)
        return float(dims * np.log(wavelength) / (2 * np.log(theta)))

    low = max(np.floor(turning(scaling.beta_fast)), 0)
    high = min(np.ceil(turning(scaling.beta_slow)), dims - 1)
    ramp = np.clip((np.arange(dims // 2, dtype=np.float32) - low) / max(high - low, 0.001), 0, 1)
    blended = frequency / scaling.factor * ramp + frequency * (1 - ramp)
    return np.asarray(blended, np.float32)
