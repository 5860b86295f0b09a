"""Number formats: by their definition, exhaustively where that is possible, and on reference vectors "
"if there are any."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdecode.core.checkpoint import formats
from specdecode.core.checkpoint.shard import Shard
from tests.support.golden import golden_root

ALL_BYTES = np.arange(256, dtype=np.uint8)


def nearest_even(value: float, grid: list[float]) -> float:
    """Round to a grid given in code order, ties to the even code, by looking at every code."""
    distances = [abs(abs(value) - point) for point in grid]
    best = min(distances)
    code = min((i for i, d in enumerate(distances) if d == best), key=lambda i: i % 2)
    return float(np.copysign(grid[code], value))


E4M3_GRID = [float(v) for v in formats.e4m3_to_f32(np.arange(127, dtype=np.uint8))]
E2M1_GRID = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
finite = st.floats(-500, 500, width=32)


def test_e4m3_landmarks():
    codes = np.array([0x00, 0x01, 0x07, 0x08, 0x38, 0x7E, 0x80, 0xFE], np.uint8)
    expected = [0, 2.0**-9, 7 * 2.0**-9, 2.0**-6, 1, 448, 0, -448]
    assert formats.e4m3_to_f32(codes).tolist() == expected
    assert np.isnan(formats.e4m3_to_f32(np.array([0x7F, 0xFF], np.uint8))).all()


def test_every_e4m3_code_survives_a_round_trip():
    values = formats.e4m3_to_f32(ALL_BYTES)
    assert np.array_equal(formats.f32_to_e4m3(values), np.where(np.isnan(values), ALL_BYTES | 0x7F, ALL_BYTES))


@given(value=st.one_of(finite, st.floats(-(2.0**-5), 2.0**-5, width=32)))
def test_e4m3_rounds_to_nearest_even(value):
    [code] = formats.f32_to_e4m3(np.array([value], np.float32))
    assert formats.e4m3_to_f32(np.array([code]))[0] == nearest_even(value, E4M3_GRID)


@given(value=finite)
def test_e2m1_rounds_to_nearest_even(value):
    codes = formats.f32_to_e2m1(np.array([value, 0], np.float32))
    assert formats.unpack_e2m1(formats.pack_e2m1(codes))[0] == nearest_even(value, E2M1_GRID)


def test_the_low_nibble_is_the_even_column():
    assert formats.unpack_e2m1(np.array([[0x72, 0x9F]], np.uint8)).tolist() == [[1, 6, -6, -0.5]]


@given(exponent=st.integers(-126, 127))
def test_scales_round_up_to_powers_of_two(exponent):
    power = np.ldexp(np.float32(1), exponent)
    exact, above = formats.f32_to_ue8m0(np.array([power, np.nextafter(power, np.float32(np.inf))]))
    assert (exact, above) == (exponent + 127, exponent + 128)
    assert formats.ue8m0_to_f32(np.array([exact]))[0] == power


@given(value=st.floats(width=32, allow_nan=False, min_value=-(2.0**127), max_value=2.0**127))
def test_bf16_rounds_to_nearest_even(value):
    [bits] = np.array([value], np.float32).view(np.uint32) >> 16  # towards zero
    around = np.array([bits, bits + 1], np.uint16)
    below, above = (abs(float(v)) for v in formats.bf16_to_f32(around))
    short, long = abs(value) - below, above - abs(value)
    expected = around[0] if short < long or (short == long and bits % 2 == 0) else around[1]
    assert formats.f32_to_bf16(np.array([value], np.float32))[0] == expected


def test_bf16_keeps_nan():
    assert np.isnan(formats.bf16_to_f32(formats.f32_to_bf16(np.array([np.nan, -np.nan], np.float32)))).all()


def sample(rows: int, columns: int) -> np.ndarray:
    rng = np.random.default_rng(5)
    return (rng.normal(size=(rows, columns)) * 2.0 ** rng.integers(-8, 8, (rows, 1))).astype(np.float32)


@pytest.mark.parametrize(
    ("quantize", "dequantize", "step"),
    [
        (formats.quantize_fp8_rows, formats.dequantize_fp8_rows, 1 / 16),
        (formats.quantize_fp8_blocks, formats.dequantize_fp8_blocks, 1 / 16),
        (formats.quantize_mxfp4, formats.dequantize_mxfp4, 1 / 3),
        (formats.quantize_nvfp4, formats.dequantize_nvfp4, 1 / 5),
    ],
)
def test_a_quantised_matrix_is_close_and_stable(quantize, dequantize, step):
    weight = sample(64, 96)
    once = dequantize(*quantize(weight))
    group_max = np.abs(weight.reshape(64, -1, 16)).max(axis=-1)
    assert (np.abs(once - weight).reshape(64, -1, 16).max(axis=-1) <= step * np.abs(weight).max()).all()
    assert group_max.min() > 0
    assert np.array_equal(dequantize(*quantize(once)), once)


def test_block_scales_belong_to_their_block():
    codes = np.full((64, 96), 0x38, np.uint8)  # all ones
    scales = np.arange(120, 126, dtype=np.uint8).reshape(2, 3)
    values = formats.dequantize_fp8_blocks(codes, scales)
    for row in range(2):
        for column in range(3):
            block = values[32 * row : 32 * row + 32, 32 * column : 32 * column + 32]
            assert (block == 2.0 ** (int(scales[row, column]) - 127)).all()


def test_a_matrix_need_not_fill_its_last_blocks():
    values = formats.dequantize_fp8_blocks(np.full((40, 33), 0x38, np.uint8), np.array([[127, 128]] * 2, np.uint8))
    assert values.shape == (40, 33)
    assert values[:, 32].tolist() == [2.0] * 40


@pytest.mark.skipif(golden_root() is None, reason="SPECDECODE_GOLDEN names no reference vectors")
def test_reference_vectors_bit_for_bit():
    shard = Shard(golden_root() / "quant" / "quant.safetensors")
    x = formats.bf16_to_f32(shard.array("x"))
    for name, payload, quantize, dequantize in [
        ("fp8", "codes", formats.quantize_fp8_rows, formats.dequantize_fp8_rows),
        ("mxfp4", "packed", formats.quantize_mxfp4, formats.dequantize_mxfp4),
        ("nvfp4", "packed", formats.quantize_nvfp4, formats.dequantize_nvfp4),
    ]:
        codes, scales = quantize(x)
        assert np.array_equal(codes, shard.array(f"{name}.{payload}"))
        assert np.array_equal(scales, shard.array(f"{name}.scale_bytes"))
        values = dequantize(shard.array(f"{name}.{payload}"), shard.array(f"{name}.scale_bytes"))
        assert np.array_equal(formats.f32_to_bf16(values), shard.array(f"{name}.dequant"))
    for name, payload, dequantize in [
        ("weight_fp8", "codes", formats.dequantize_fp8_blocks),
        ("weight_fp4", "packed", formats.dequantize_mxfp4),
    ]:
        values = dequantize(shard.array(f"{name}.{payload}"), shard.array(f"{name}.scale_bytes"))
        assert np.array_equal(values, shard.array(f"{name}.value"))
