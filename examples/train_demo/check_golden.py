"""Compare this implementation with golden vectors of the architecture, in float32.

    python check_golden.py GOLDEN/a GOLDEN/b

A set holds config.json, tokenizer.json, weights, golden.json and golden.safetensors.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import checkpoint
import torch
from config import Config
from drafter import confidence, draft_block, markov
from engram_hash import compressed_token_map
from generate import Decoder
from layers import Mode
from model import Model
from safetensors.torch import load_file
from tokenizers import Tokenizer

TOLERANCE = 2e-4


def decode(model: Model, ids_BT: torch.Tensor) -> torch.Tensor:
    """Return the logits [B,T,V] of feeding one token at a time."""
    decoder = Decoder(model, len(ids_BT), -(-ids_BT.shape[1] // 2) * 2)
    return torch.stack([decoder.step(ids_BT[:, t], t) for t in range(ids_BT.shape[1])], 1)


def check(folder: Path) -> bool:
    """Return whether every prompt's prefill and draft logits agree."""
    golden = json.loads((folder / "golden.json").read_text())
    tensors = load_file(folder / "golden.safetensors")
    mapping = compressed_token_map(Tokenizer.from_file(str(folder / "tokenizer.json")))
    passed = mapping == golden["compressed_token_map"]
    print(f"{folder.name}: compressed ids {'equal' if passed else 'DIFFER'}")
    model = Model(Config.load(folder), mapping, Mode()).eval()
    checkpoint.load(model, folder)
    for prompt in golden["prompts"]:
        prefix = f"fp32.{prompt['name']}."
        expected = golden["results"]["fp32"][prompt["name"]]
        ids = torch.tensor([prompt["ids"]])
        length = ids.shape[1]
        with torch.no_grad():
            out = model(ids)
            error = (model.logits(out.hidden_BTD)[0] - tensors[prefix + "logits"]).abs().max().item()
            again = decode(model, ids)[0]
            split_error = (again - tensors[prefix + "logits"]).abs().max().item()
            line = f"  {prompt['name']:4} prefill {error:.1e} token by token {split_error:.1e}"
            passed &= max(error, split_error) <= TOLERANCE
            if prefix + "prefill_draft_logits" in tensors:
                draft = expected["prefill_draft"]
                block = draft_block(
                    model, out.taps_BTF, torch.tensor([[draft["ids"][0]]]), torch.tensor([[length - 1]])
                )
                term, row = markov(model, torch.tensor(draft["ids"][:-1]))
                logits = block.base[0, 0] + term
                error = (logits - tensors[prefix + "prefill_draft_logits"]).abs().max().item()
                conf = confidence(model, block.state[0, 0], row)
                conf_error = (conf - torch.tensor(draft["confidence"])).abs().max().item()
                line += f" draft {error:.1e} confidence {conf_error:.1e}"
                passed &= max(error, conf_error) <= TOLERANCE
        print(line)
    return passed


if __name__ == "__main__":
    torch.set_num_threads(1)
    results = [check(Path(name)) for name in sys.argv[1:]]
    sys.exit(0 if all(results) else 1)
