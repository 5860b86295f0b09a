"""Collect the training text: documents in, `corpus.jsonl` and `sources.json` out.

    python data.py --shakespeare shakespeare.txt --bible kjv.txt --stdlib LIB_DIR --docs RST_DIR --out corpus

Nothing is downloaded here; the README says where each source comes from. Every document is one JSON line
`{"source": ..., "name": ..., "text": ..., "heldout": bool}`. Long books are cut into blocks on line
boundaries, and held-out documents are chosen by a hash of their name, so the split never moves.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

HELDOUT_PERCENT = 2.5
BLOCK_BYTES = 24_000
LICENCES = {
    "shakespeare": ("The works of William Shakespeare, plain text", "public domain"),
    "bible": ("The Bible, King James Version", "public domain outside the UK's printing patent"),
    "stdlib": ("Python 3.11 standard library, .py sources", "PSF-2.0"),
    "docs": ("Python 3.11 documentation, reStructuredText sources", "PSF-2.0 (examples also 0BSD)"),
}
SKIPPED_FOLDERS = {
    "test", "tests", "idlelib", "encodings", "lib2to3", "site-packages", "__pycache__", "turtledemo",
    "pydoc_data", "ensurepip", "config-3.11-x86_64-linux-gnu",
}  # fmt: skip
# The change log is a list of issue numbers; it would be a tenth of the documentation by bytes.
SKIPPED_DOCS = re.compile(r"(changelog|whatsnew/[23]\.[0-6]\b|genindex|search|license)")


@dataclass(frozen=True)
class Document:
    """One piece of text, whole or a block of a longer work."""

    source: str
    name: str
    text: str
    heldout: bool


def is_heldout(name: str) -> bool:
    """Say whether a document is kept out of training; depends on its name alone."""
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:4], "big") / 2**32 * 100 < HELDOUT_PERCENT


def clean(text: str) -> str:
    """Unify line ends, drop trailing blanks and runs of more than two empty lines."""
    text = text.replace("\r\n", "\n").replace("\x0c", "\n").expandtabs(8)
    text = re.sub(r"[ \t]+\n", "\n", text)
    return re.sub(r"\n{4,}", "\n\n\n", text).strip("\n") + "\n"


def blocks(text: str) -> Iterator[str]:
    """Cut a long work into blocks of about `BLOCK_BYTES`, on line boundaries."""
    lines, size = [], 0
    for line in text.splitlines(keepends=True):
        lines.append(line)
        size += len(line.encode())
        if size >= BLOCK_BYTES:
            yield "".join(lines)
            lines, size = [], 0
    if lines:
        yield "".join(lines)


def book(source: str, path: Path) -> Iterator[Document]:
    """Yield one long text file as blocks."""
    for number, text in enumerate(blocks(clean(path.read_text(encoding="utf-8", errors="replace")))):
        name = f"{source}/{number:04d}"
        yield Document(source, name, text, is_heldout(name))


def tree(source: str, root: Path, suffixes: tuple[str, ...]) -> Iterator[Document]:
    """Yield every file of a folder whose name ends in one of `suffixes`, one document each."""
    for path in sorted(root.rglob("*")):
        inside = path.relative_to(root)
        if not path.is_file() or not path.name.endswith(suffixes) or SKIPPED_FOLDERS & set(inside.parts):
            continue
        if source == "docs" and SKIPPED_DOCS.search(inside.as_posix()):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if len(text) > 200:
            name = f"{source}/{inside.as_posix()}"
            yield Document(source, name, clean(text), is_heldout(name))


def collect(args: argparse.Namespace) -> Iterator[Document]:
    """Yield the documents of every source that was named on the command line."""
    if args.shakespeare:
        yield from book("shakespeare", args.shakespeare)
    if args.bible:
        yield from book("bible", args.bible)
    if args.stdlib:
        yield from tree("stdlib", args.stdlib, (".py",))
    if args.docs:
        yield from tree("docs", args.docs, (".rst", ".rst.txt"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shakespeare", type=Path, help="plain text file")
    parser.add_argument("--bible", type=Path, help="plain text file, one verse a line")
    parser.add_argument("--stdlib", type=Path, help="folder of Python 3.11's standard library")
    parser.add_argument("--docs", type=Path, help="folder of the documentation's .rst sources")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    report: dict[str, dict[str, object]] = {}
    with (args.out / "corpus.jsonl").open("w", encoding="utf-8") as file:
        for document in collect(args):
            file.write(json.dumps(asdict(document), ensure_ascii=False) + "\n")
            title, licence = LICENCES[document.source]
            empty = {"title": title, "licence": licence, "documents": 0, "bytes": 0, "heldout_bytes": 0}
            row = report.setdefault(document.source, empty)
            size = len(document.text.encode())
            row["documents"] += 1  # type: ignore[operator]
            row["heldout_bytes" if document.heldout else "bytes"] += size  # type: ignore[operator]
    (args.out / "sources.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
