"""Released checkpoint layout, both ways: our parameters to tensors on disk, and back.

On disk: dense weights are F8_E4M3 with one UE8M0 scale per 32x32 block, expert weights are e2m1 pairs in I8
with one scale per 32 columns, Engram tables F8_E4M3 with a scale per row and 32 columns.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import quant
import torch
from engram import Table
from layers import Linear
from model import Model
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

FP4_VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
FLOAT32 = re.compile(r"(attn_sink|gate\.bias|gate\.bias_vl|hc_(attn|ffn)_(fn|base|scale))$")
SHARDS = 2


def disk_name(name: str) -> str:
    """Translate our parameter name (experts are stacked here, one by one on disk)."""
    name = re.sub(r"\.(hc_attn|hc_ffn)\.(fn|base|scale)$", r".\1_\2", name)
    return re.sub(r"\.experts\.(w[123])$", r".experts.{}.\1.weight", name)


def to_e8m0(scale: Tensor) -> Tensor:
    """Store powers of two as exponent bytes."""
    return (scale.view(torch.int32) >> 23).to(torch.uint8).view(torch.float8_e8m0fnu)


def pack_fp4(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return e2m1 pairs I8 [N,K/2], low nibble = even column, and scales F8_E8M0 [N,K/32]."""
    grouped = weight.float().unflatten(-1, (-1, 32))
    scale = quant.power_of_two_up(grouped.abs().amax(-1, keepdim=True).clamp_min(quant.MXFP4_FLOOR) / 6)
    value = quant.round_fp4(grouped / scale).flatten(-2)
    code = torch.searchsorted(FP4_VALUES, value.abs()) + 8 * (value < 0)
    packed = (code[:, 0::2] | (code[:, 1::2] << 4)).to(torch.uint8).view(torch.int8)
    return packed.contiguous(), to_e8m0(scale.squeeze(-1))


def unpack_fp4(packed: Tensor, scale: Tensor) -> Tensor:
    """Undo `pack_fp4`."""
    byte = packed.view(torch.uint8).long()
    code = torch.stack([byte & 15, byte >> 4], -1).flatten(-2)
    value = FP4_VALUES[code & 7] * (1 - 2 * (code >> 3))
    return value * scale.float().repeat_interleave(32, -1)


def pack_fp8(weight: Tensor, scale: Tensor, full: Tensor) -> tuple[Tensor, Tensor]:
    """Return F8_E4M3 codes and F8_E8M0 scales; `full` is `scale` spread to the weight's shape."""
    return (weight.float() / full).to(torch.float8_e4m3fn), to_e8m0(scale)


def kinds(model: nn.Module) -> dict[str, str]:
    """Return the storage of every parameter that is not plain bf16 or float32."""
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, Linear) and module.kind == "fp8":
            found[name + ".weight"] = "fp8"
        elif isinstance(module, Table):
            found[name + ".weight"] = "rows"
    return found


def disk_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return every tensor of the checkpoint, quantised, under its released name."""
    result: dict[str, Tensor] = {}
    kind = kinds(model)
    for name, value in model.state_dict().items():
        value, target = value.detach().cpu().float(), disk_name(name)
        if kind.get(name) == "fp8":
            scale = quant.fp8_block_scales(value)
            full = scale.repeat_interleave(32, 0).repeat_interleave(32, 1)
            result[target], result[target.replace(".weight", ".scale")] = pack_fp8(value, scale, full)
        elif kind.get(name) == "rows":
            scale = quant.fp8_row_scales(value)
            full = scale.repeat_interleave(32, -1)
            result[target], result[target.replace(".weight", ".scale")] = pack_fp8(value, scale, full)
        elif "{}" in target:
            for expert in range(len(value)):
                path = target.format(expert)
                result[path], result[path.replace(".weight", ".scale")] = pack_fp4(value[expert])
        else:
            result[target] = value if FLOAT32.search(target) else value.bfloat16()
    return result


def shard_of(name: str, layers: int) -> int:
    """Put the first half of the layers and the embedding in shard 0, the rest in shard 1."""
    match = re.match(r"layers\.(\d+)\.", name)
    first = name == "embed.weight" or (match is not None and int(match[1]) < layers // 2)
    return 0 if first else 1


def save(model: Model, folder: Path) -> None:
    """Write the shards and the index."""
    tensors = disk_tensors(model)
    index = {}
    for shard in range(SHARDS):
        file = f"model-{shard + 1:05d}-of-{SHARDS:05d}.safetensors"
        chosen = {
            name: value.contiguous()
            for name, value in tensors.items()
            if shard_of(name, model.config.num_hidden_layers) == shard
        }
        save_file(chosen, folder / file, metadata={"format": "pt"})
        index |= dict.fromkeys(chosen, file)
    size = sum(value.numel() * value.element_size() for value in tensors.values())
    document = {"metadata": {"total_size": size}, "weight_map": dict(sorted(index.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(document, indent=1) + "\n")


def read(folder: Path) -> dict[str, Tensor]:
    """Read every shard named by the index."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    tensors: dict[str, Tensor] = {}
    for file in sorted(set(index.values())):
        tensors |= load_file(folder / file)
    return tensors


def load(model: Model, folder: Path) -> None:
    """Fill the model with a checkpoint's exact values; every tensor on disk must be used."""
    fill(model, read(folder))


def fill(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Decode tensors as they are on disk into a module, and check that none is left over."""
    kind, state = kinds(model), {}
    for name, old in model.state_dict().items():
        target = disk_name(name)
        scale_name = target.replace(".weight", ".scale")
        if kind.get(name) in ("fp8", "rows"):
            scale, value = tensors.pop(scale_name).float(), tensors.pop(target).float()
            if kind[name] == "fp8":
                scale = scale.repeat_interleave(32, 0)
            state[name] = value * scale.repeat_interleave(32, 1)
        elif "{}" in target:
            experts = range(len(old))
            pairs = [(tensors.pop(target.format(e)), tensors.pop(scale_name.format(e))) for e in experts]
            state[name] = torch.stack([unpack_fp4(*pair) for pair in pairs])
        else:
            state[name] = tensors.pop(target).float()
    if tensors:
        raise ValueError(f"unused tensors: {sorted(tensors)[:5]}")
    model.load_state_dict(state)
