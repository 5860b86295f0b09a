"""Compile small elementwise regions on a GPU; plain Python everywhere else.

Whole-model compilation would unroll forty Sinkhorn normalisations per layer and take minutes; regions of one
function each take seconds and are shared by all layers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

ENABLED = False


def enable(value: bool) -> None:
    """Turn compilation on or off for every `fused` function."""
    global ENABLED
    ENABLED = value
    torch._dynamo.config.recompile_limit = 256
    torch._dynamo.config.accumulated_recompile_limit = 2048


def fused(function: Callable[..., Any], dynamic: bool = False) -> Callable[..., Any]:
    """Run `function` compiled while compilation is on, once per shape unless `dynamic`."""
    compiled = torch.compile(function, dynamic=dynamic)

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        return compiled(*args) if ENABLED else function(*args)

    return call
