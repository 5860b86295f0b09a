"""A quantiser with groups smaller than a warp; those with groups of 32 are in `staged`."""

from max.gpu.primitives.warp import shuffle_xor
from .staged import e2m1_of, e4m3_of


@always_inline
def nvfp4_in_warp(x: Float32, exact: Bool) -> Float32:
    """QDQ of one value a lane, either half of the warp being one group of 16: e2m1 with an e4m3 scale."""
    if not exact:
        return x
    var most = abs(x)
    comptime for i in range(4):
        most = max(most, shuffle_xor(most, UInt32(8 >> i)))
    var s = e4m3_of(max(most, 0.01171875) / 6)
    return e2m1_of(x / s) * s
