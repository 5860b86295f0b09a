"""Measure a checkpoint on held-out text: bits per byte, acceptance, calibration of the confidence head.

    python evaluate.py --model presets/demo --heldout presets/demo/heldout.txt [--corpus corpus]

Acceptance length is 1 + accepted draft tokens per round, the bonus token included, all five drafts verified.
At temperature 1 target and drafter add the same Gumbel noise (coupled draws). With `--corpus`, a byte trigram
counted on the training text is measured too. The last line printed is one JSON document.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import checkpoint
import numpy as np
import torch
from config import Config
from engram_hash import compressed_token_map
from layers import Mode
from measure import acceptance, bits_per_byte, calibration
from model import Model
from tokenizers import Tokenizer
from trigram import ByteTrigram

BOS = 0


def read_heldout(path: Path) -> list[tuple[str, str]]:
    """Return (source, text) of every document; each starts with a line `%%% source/name`."""
    parts = re.split(r"^%%% (\S+)\n", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return [(name.split("/")[0], text) for name, text in zip(parts[::2], parts[1::2], strict=True)]


def prompts_from(documents: list[np.ndarray], count: int, length: int, seed: int) -> np.ndarray:
    """Return `count` prompts of `length` tokens, taken in turn from all documents, BOS first."""
    rng = np.random.default_rng(seed)
    long = [ids for ids in documents if len(ids) > length + 1]
    rows = []
    for number in range(count):
        ids = long[number % len(long)]
        start = int(rng.integers(1, len(ids) - length))
        rows.append(np.concatenate([[BOS], ids[start : start + length - 1]]))
    return np.stack(rows)


def trigram_bits(corpus: Path, texts: list[str]) -> float:
    """Return the trigram's bits per byte on `texts`, counted on the corpus without its held-out part."""
    with (corpus / "corpus.jsonl").open(encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    model = ByteTrigram([row["text"].encode() for row in rows if not row["heldout"]])
    data = [text.encode() for text in texts]
    return sum(map(model.bits, data)) / sum(map(len, data))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="checkpoint folder")
    parser.add_argument("--heldout", type=Path, required=True, help="held-out text, `%%%% source/name` lines")
    parser.add_argument("--corpus", type=Path, help="folder written by data.py, for the trigram")
    parser.add_argument("--prompts", type=int, default=32, help="prompts per temperature")
    parser.add_argument("--new", type=int, default=96, help="tokens generated after each prompt")
    parser.add_argument("--samples", type=int, default=0, help="print this many continuations")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    mode = Mode(dtype=torch.bfloat16, quant_acts=True)
    model = Model(Config.load(args.model), compressed_token_map(tokenizer), mode)
    checkpoint.load(model, args.model)
    model.to(device).eval()

    pairs = read_heldout(args.heldout)
    documents = [np.array([BOS, *tokenizer.encode(text).ids]) for _, text in pairs]
    sizes = [len(text.encode()) for _, text in pairs]
    report: dict[str, object] = {"heldout_bytes": sum(sizes)}
    report["bpb"] = round(bits_per_byte(model, documents, sizes, rows=8), 4)
    print(f"bits per byte {report['bpb']} on {sum(sizes):,} held-out bytes")
    for source in sorted({name for name, _ in pairs}):
        chosen = [k for k, (name, _) in enumerate(pairs) if name == source]
        part = bits_per_byte(model, [documents[k] for k in chosen], [sizes[k] for k in chosen], rows=8)
        report[f"bpb_{source}"] = round(part, 4)
        print(f"  {source:12} {part:.3f}")
    if args.corpus:
        report["trigram_bpb"] = round(trigram_bits(args.corpus, [text for _, text in pairs]), 4)
        print(f"byte trigram  {report['trigram_bpb']}")

    prompts = prompts_from(documents, args.prompts, 48, seed=11)
    for temperature in (0.0, 1.0):
        found, ids = acceptance(model, prompts, args.new, temperature)
        error, table = calibration(found.scores, found.outcomes)
        rounded = [round(v, 3) for v in found.conditional]
        report[f"T{temperature:g}"] = {
            "acceptance_length": round(found.length, 3),
            "accepted_at_position": [round(v, 3) for v in found.by_position],
            "accepted_given_previous": rounded,
            "confidence_ece": round(error, 4),
            "reliability": table,
        }
        print(f"T={temperature:g}: acceptance length {found.length:.2f}, given previous accepted {rounded}")
        print(f"  confidence ECE {error:.3f}; predicted, accepted, count by tenth:")
        for mean, rate, count in table:
            print(f"    {mean:.2f} {rate:.2f} {count}")
        for row in ids[: args.samples].tolist():
            print(json.dumps([tokenizer.decode(row[1:48]), tokenizer.decode(row[48:])], ensure_ascii=False))
    print(json.dumps(report))


if __name__ == "__main__":
    main()
