"""Tokenise the collected text once: `tokens.npz` holds the training stream and the held-out documents.

    python pack.py --corpus corpus --model presets/demo --out tokens.npz

Also writes config.json beside the tokenizer, since the compressed vocabulary follows from it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from config import demo_config
from engram_hash import compressed_token_map
from tokenizers import Tokenizer

BOS, EOS = 0, 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True, help="folder written by data.py")
    parser.add_argument("--model", type=Path, required=True, help="folder that holds tokenizer.json")
    parser.add_argument("--out", type=Path, required=True, help="tokens.npz to write")
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    mapping = compressed_token_map(tokenizer)
    document = demo_config(max(mapping) + 1, tokenizer.get_vocab_size())
    (args.model / "config.json").write_text(json.dumps(document, indent=1) + "\n")
    train: list[np.ndarray] = []
    held: list[np.ndarray] = []
    held_bytes: list[int] = []
    held_sources: list[str] = []
    with (args.corpus / "corpus.jsonl").open(encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            ids = np.array([BOS, *tokenizer.encode(row["text"]).ids, EOS], dtype=np.uint16)
            if row["heldout"]:
                held.append(ids)
                held_bytes.append(len(row["text"].encode()))
                held_sources.append(row["source"])
            else:
                train.append(ids)
    np.savez_compressed(
        args.out,
        train=np.concatenate(train),
        held=np.concatenate(held),
        held_lengths=np.array([len(ids) for ids in held]),
        held_bytes=np.array(held_bytes),
        held_sources=np.array(held_sources),
        compressed=np.array(mapping),
    )
    counts = sum(map(len, train)), sum(map(len, held))
    print(f"train {counts[0]:,} tokens, held out {counts[1]:,}, classes {max(mapping) + 1}")


if __name__ == "__main__":
    main()
