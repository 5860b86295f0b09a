"""Write a small sample of the held-out documents, equal parts of every source.

python heldout.py --corpus corpus --out presets/demo/heldout.txt
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

BYTES_PER_SOURCE, BYTES_PER_DOCUMENT = 14_000, 3_600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True, help="folder written by data.py")
    parser.add_argument("--out", type=Path, required=True, help="file to write")
    args = parser.parse_args()
    taken: dict[str, int] = {}
    with (
        (args.corpus / "corpus.jsonl").open(encoding="utf-8") as file,
        args.out.open("w", encoding="utf-8") as out,
    ):
        for line in file:
            row = json.loads(line)
            if not row["heldout"] or taken.get(row["source"], 0) >= BYTES_PER_SOURCE:
                continue
            text = row["text"].encode()[:BYTES_PER_DOCUMENT].decode(errors="ignore")
            text = text[: text.rindex("\n") + 1]
            out.write(f"%%% {row['name']}\n{text}")
            taken[row["source"]] = taken.get(row["source"], 0) + len(text.encode())
    print(taken)


if __name__ == "__main__":
    main()
