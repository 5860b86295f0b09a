"""Unit vectors of the number formats, bit for bit: our kernels' quantisers, weight decoders and gates."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from max.driver import CPU, Buffer
from max.dtype import DType
from max.engine import InferenceSession
from max.graph import DeviceRef, Graph, TensorType, ops

from golden.folder import Array, read_tensors
from golden.report import Report
from specdecode.core.checkpoint import formats
from specdecode.core.kernels import kernel_package
from specdecode.core.kernels.ops import F, call

KINDS = ("fp8", "mxfp4", "nvfp4")


def check_formats(path: Path, report: Report) -> None:
    """Compare with `quant.safetensors`; `path` is that file."""
    golden = read_tensors(path)
    got = _run_kernels(golden)
    for kind in KINDS:
        report.add(f"quantiser {kind}", bits_differ(got[kind], golden[f"{kind}.dequant"]), 0.0, kind)
    for kind in ("fp8", "fp4"):
        report.add(
            f"weight decoder {kind}",
            bits_differ(got[f"weight_{kind}"].T, golden[f"weight_{kind}.value"]),
            0.0,
            kind,
        )
    want = np.concatenate(
        [golden["hc.pre"], golden["hc.post"], golden["hc.comb"].reshape(len(golden["hc.pre"]), -1)], 1
    )
    report.add("hyper-connection gates", float(np.abs(got["gates"] - want).max()), 1e-6, "hc")
    _check_encoders(golden, report)


def bits_differ(a: Array, b: Array) -> float:
    """Values whose float32 bit patterns differ, -0 and +0 counted as equal."""
    same = (a.astype(np.float32).view(np.uint32) == b.astype(np.float32).view(np.uint32)) | ((a == 0) & (b == 0))
    return float((~same).sum())


def _check_encoders(golden: dict[str, Array], report: Report) -> None:
    x = golden["x"].astype(np.float32)
    codes, scales = formats.quantize_fp8_rows(x)
    report.add(
        "fp8 codes and scales",
        float((codes != golden["fp8.codes"]).sum() + (scales != golden["fp8.scale_bytes"]).sum()),
        0.0,
        "x",
    )
    for kind, encode in (("mxfp4", formats.quantize_mxfp4), ("nvfp4", formats.quantize_nvfp4)):
        packed, scales = encode(x)
        wrong = (packed != golden[f"{kind}.packed"]).sum() + (scales != golden[f"{kind}.scale_bytes"]).sum()
        report.add(f"{kind} codes and scales", float(wrong), 0.0, "x")


def _run_kernels(golden: dict[str, Array]) -> dict[str, Array]:
    """One small graph over every unit vector."""
    cpu = DeviceRef.CPU()
    weights = [golden[f"weight_{k}"] for k in ("fp8.codes", "fp8.scale_bytes", "fp4.packed", "fp4.scale_bytes")]
    identity = np.eye(golden["weight_fp8.value"].shape[1], dtype=np.float32)
    hc = [golden["hc.mixes"], golden["hc.scale"], golden["hc.base"]]
    copies = golden["hc.pre"].shape[1]
    inputs: list[Array] = [
        golden["x"].astype(np.float32),
        identity,
        *weights,
        *hc,
        np.array([copies, 20], np.int32),
        np.array([1e-20, 1e-6, 0, 0], np.float32),
    ]
    types = [TensorType(DType.from_numpy(a.dtype), list(a.shape), cpu) for a in inputs]
    with Graph("quantisers", input_types=types, custom_extensions=[kernel_package()]) as graph:
        x, eye, fp8, fp8_scale, fp4, fp4_scale, *gates = [v.tensor for v in graph.inputs]
        out = []
        for kind in range(len(KINDS)):
            which = ops.constant(np.array([kind], np.int32), DType.int32, cpu)
            out += call("sd_qdq", [x, which], (F, x.shape))
        for w, scale in ((fp8, fp8_scale), (fp4, fp4_scale)):
            out += call("sd_project", [eye, w, scale], (F, [eye.shape[0], w.shape[0]]))
        out += call("sd_gates", gates, (F, gates[0].shape))
        graph.output(*out)
    model = InferenceSession(devices=[CPU()]).load(graph)
    results = model.execute(*(Buffer.from_numpy(np.ascontiguousarray(a)) for a in inputs))
    names = [*KINDS, "weight_fp8", "weight_fp4", "gates"]
    return {name: value.to_numpy() for name, value in zip(names, results, strict=True)}
