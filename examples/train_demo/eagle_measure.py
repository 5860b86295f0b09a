"""Measure the EAGLE drafter on held-out prompts, beside DSpark on the same continuations.

    python eagle_measure.py --model presets/demo --heldout presets/demo/heldout.txt

Acceptance length counts the bonus token. At temperature 1 target and drafter add the same Gumbel noise.
The last line printed is one JSON document.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import checkpoint
import eagle_export
import numpy as np
import torch
from batches import Corpus, heldout_prompts
from config import Config
from eagle import Eagle
from engram_hash import compressed_token_map
from evaluate import BOS, prompts_from, read_heldout
from layers import Mode
from measure import Acceptance, calibration, continuations, coupled, judge, tally
from model import Model
from tokenizers import Tokenizer
from torch import Tensor

PROMPT, ROWS, SEED = 48, 64, 1


@torch.no_grad()
def judge_eagle(
    eagle: Eagle, model: Model, ids_BT: Tensor, prompt: int, temperature: float, seed: int
) -> tuple[Tensor, Tensor]:
    """Draft at every anchor of finished sequences; return matches and confidence logits [B,A,G]."""
    drafts = eagle.eagle_config.num_draft_tokens
    anchors = ids_BT.shape[1] - drafts - 1
    guess, branches = eagle.start(model, model(ids_BT).taps_BTF[:, :anchors], ids_BT[:, 1 : anchors + 1])
    guesses = [guess]
    for step in range(1, drafts):
        guess, branches = eagle.extend(model, branches, ids_BT[:, step + 1 : step + 1 + anchors])
        guesses.append(guess)
    logits = torch.stack([guess.logits for guess in guesses], 2)[:, prompt - 1 :]
    score = torch.stack([eagle.confidence(guess) for guess in guesses], 2)[:, prompt - 1 :]
    steps = torch.arange(drafts, device=ids_BT.device)
    ahead = torch.arange(prompt, anchors + 1, device=steps.device).unsqueeze(-1) + steps
    ahead = ahead.expand(len(ids_BT), -1, -1)
    following = ids_BT.gather(1, (ahead + 1).flatten(1)).view(ahead.shape)
    return coupled(logits, ahead, prompt, temperature, seed).argmax(-1) == following, score


def figures(found: Acceptance) -> dict[str, object]:
    """Return what one drafter's rounds come to."""
    return {
        "acceptance_length": round(found.length, 3),
        "accepted_at_position": [round(v, 3) for v in found.by_position],
        "accepted_given_previous": [round(v, 3) for v in found.conditional],
        "confidence_ece": round(calibration(found.scores, found.outcomes)[0], 4),
    }


def report(eagle: Eagle, model: Model, prompts: np.ndarray, temperature: float, new: int) -> dict[str, object]:
    """Let the target continue the prompts once, and run the rounds of both drafters over the result."""
    length, drafts = prompts.shape[1], eagle.eagle_config.num_draft_tokens
    texts = continuations(model, prompts, new, temperature, SEED, ROWS)
    dspark = [judge(model, ids, length, temperature, SEED) for ids in texts]
    shorter = ((match[..., :drafts], score[..., :drafts]) for match, score in dspark)
    return {
        "temperature": temperature,
        "eagle": figures(tally(judge_eagle(eagle, model, ids, length, temperature, SEED) for ids in texts)),
        f"dspark_{drafts}_drafts": figures(tally(shorter)),
        f"dspark_{model.config.dspark_block_size}_drafts": figures(tally(dspark)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="checkpoint folder of the target")
    parser.add_argument("--eagle", type=Path, help="the drafter's folder, MODEL/eagle if left out")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--heldout", type=Path, help="held-out text, `%%%% source/name` lines")
    source.add_argument("--data", type=Path, help="tokens.npz written by pack.py, for its whole held-out set")
    parser.add_argument("--prompts", type=int, default=64, help="prompts per temperature")
    parser.add_argument("--new", type=int, default=96, help="tokens generated after each prompt")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    config, mode = Config.load(args.model), Mode(dtype=torch.bfloat16, quant_acts=True)
    model = Model(config, compressed_token_map(tokenizer), mode)
    checkpoint.load(model, args.model)
    model.to(device).eval()
    eagle = eagle_export.load(args.eagle or args.model / "eagle", config, mode).to(device).eval()
    if args.data:
        prompts = heldout_prompts(Corpus(args.data), args.prompts, PROMPT, np.random.default_rng(7))
    else:
        documents = [np.array([BOS, *tokenizer.encode(text).ids]) for _, text in read_heldout(args.heldout)]
        prompts = prompts_from(documents, args.prompts, PROMPT, seed=11)
    result = [report(eagle, model, prompts, temperature, args.new) for temperature in (0.0, 1.0)]
    for row in result:
        for name, values in row.items():
            print(name, values)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
