"""Train the demo's byte-level BPE tokenizer and lay its ids out like the released family.

    python tokenizer.py --corpus corpus --out presets/demo

Ids: 0 BOS, 1 EOS, 2 pad, then the 256 bytes, the merges, the chat markers, the image place holder, and last
the noise token that the drafter puts at positions it has to guess.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

VOCAB_SIZE = 2048
BOS, EOS, PAD = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"
MARKERS = [
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜System｜>",
    "<think>",
    "</think>",
    "｜DSML｜",
    "<｜latest_reminder｜>",
]
IMAGE, NOISE = "<｜deepseek_image｜>", "<｜place▁holder▁no▁799｜>"
TRAIN_BYTES_PER_SOURCE = 2_500_000


def pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    """Split numbers by three digits, then words with their blank, punctuation, line ends and blanks."""
    pattern = r" ?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"),
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def train(texts: list[str]) -> dict[str, object]:
    """Learn the merges from `texts` and return the whole tokenizer.json document."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tail = [*MARKERS, IMAGE, NOISE]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(tail),
        special_tokens=[BOS, EOS, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    document = json.loads(tokenizer.to_str())
    first = VOCAB_SIZE - len(tail)
    for number, content in enumerate(tail):
        document["added_tokens"].append(
            {
                "id": first + number,
                "content": content,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": content in (IMAGE, NOISE),
            }
        )
    return document


def settings() -> dict[str, object]:
    """Return tokenizer_config.json in the family's form."""

    def token(content: str) -> dict[str, object]:
        flags = {"lstrip": False, "normalized": True, "rstrip": False, "single_word": False}
        return {"__type": "AddedToken", "content": content} | flags

    return {
        "add_bos_token": False,
        "add_eos_token": False,
        "bos_token": token(BOS),
        "clean_up_tokenization_spaces": False,
        "eos_token": token(EOS),
        "legacy": True,
        "model_max_length": 2048,
        "pad_token": token(EOS),
        "sp_model_kwargs": {},
        "unk_token": None,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True, help="folder written by data.py")
    parser.add_argument("--out", type=Path, required=True, help="folder for tokenizer.json")
    args = parser.parse_args()
    taken: dict[str, int] = {}
    texts = []
    with (args.corpus / "corpus.jsonl").open(encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            if not row["heldout"] and taken.get(row["source"], 0) < TRAIN_BYTES_PER_SOURCE:
                taken[row["source"]] = taken.get(row["source"], 0) + len(row["text"].encode())
                texts.append(row["text"])
    document = train(texts)
    args.out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document, ensure_ascii=False, indent=1)
    (args.out / "tokenizer.json").write_text(text + "\n", encoding="utf-8")
    text = json.dumps(settings(), ensure_ascii=False, indent=2)
    (args.out / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")
    loaded = Tokenizer.from_file(str(args.out / "tokenizer.json"))
    if loaded.get_vocab_size() != VOCAB_SIZE:
        raise SystemExit(f"the tokenizer has {loaded.get_vocab_size()} ids, {VOCAB_SIZE} were wanted")


if __name__ == "__main__":
    main()
