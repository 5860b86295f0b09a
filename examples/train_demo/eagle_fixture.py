"""Write what the EAGLE drafter must draft after two held-out prompts, for tests of another implementation.

    python eagle_fixture.py --model presets/demo --out tests/data

`fp32`: the stored weights decoded, no other rounding. `exact`: bfloat16 and every quantiser, as measured. For each
prompt the target's greedy next token, then drafts at temperature 0: ids [G], confidence logits [G], logits [G,V].
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import checkpoint
import eagle_export
import torch
from config import Config
from eagle import Eagle, draft
from engram_hash import compressed_token_map
from evaluate import BOS, read_heldout
from layers import Mode
from model import Model
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

MODES = {"fp32": Mode(), "exact": Mode(dtype=torch.bfloat16, quant_acts=True)}
PROMPTS = {"short": ("bible", 20), "long": ("docs", 90)}


@torch.no_grad()
def expected(model: Model, eagle: Eagle, ids: list[int]) -> tuple[int, dict[str, Tensor]]:
    """Return the target's next token, and the drafts after it."""
    tokens = torch.tensor([ids])
    out = model(tokens)
    following = model.logits(out.hidden_BTD[:, -1:]).argmax(-1)
    drafted, logits, sure = draft(eagle, model, out.taps_BTF, torch.cat([tokens, following], 1))
    return int(following), {"drafted": drafted[0].int(), "logits": logits[0], "confidence": sure[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="checkpoint folder with heldout.txt and eagle/")
    parser.add_argument("--out", type=Path, required=True, help="folder for eagle.json and eagle.safetensors")
    args = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    mapping, texts = compressed_token_map(tokenizer), read_heldout(args.model / "heldout.txt")
    prompts = {}
    for name, (source, length) in PROMPTS.items():
        text = next(text for found, text in texts if found == source)
        prompts[name] = [BOS, *tokenizer.encode(text).ids][:length]
    document: dict[str, object] = {"prompts": prompts, "next": {}}
    tensors: dict[str, Tensor] = {}
    for kind, mode in MODES.items():
        model = Model(Config.load(args.model), mapping, mode).eval()
        checkpoint.load(model, args.model)
        eagle = eagle_export.load(args.model / "eagle", model.config, mode).eval()
        found = {name: expected(model, eagle, ids) for name, ids in prompts.items()}
        document["next"] |= {f"{kind}.{name}": following for name, (following, _) in found.items()}
        tensors |= {f"{kind}.{name}.{key}": value for name, (_, part) in found.items() for key, value in part.items()}
    args.out.mkdir(parents=True, exist_ok=True)
    save_file({name: value.contiguous() for name, value in tensors.items()}, args.out / "eagle.safetensors")
    (args.out / "eagle.json").write_text(json.dumps(document) + "\n")
    for name, value in tensors.items():
        if not name.endswith("logits"):
            print(name, value.tolist())


if __name__ == "__main__":
    main()
