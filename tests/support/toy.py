"""A NumPy model small enough to know everything about: tables for the target and for the drafter.

The next token's logits depend on the last two tokens. The older one is read from a paged cache that the
model keeps like a real one, and compared with the lookback that the engine hands over, so wrong cache
lengths, pages or rollbacks change the output instead of passing unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specdecode.core.engine.edits import BANNED, OUTPUT, SEEN, LogitEdits
from specdecode.core.engine.step import StepResult, StepRow

EMPTY = -7
"""What a cache slot holds before anything was written; slot 0's predecessor reads as token 0."""


def gumbel(seed: int, position: int, size: int) -> NDArray[np.float64]:
    """The noise of one absolute position: the same for target and drafter, whoever asks."""
    return np.random.default_rng([seed, position]).gumbel(size=size)


def limited(
    logits: NDArray[np.float64], temperature: float, top_k: int, top_p: float, min_p: float = 0.0
) -> NDArray[np.float64]:
    """Logits with -inf for tokens outside the `top_k` likeliest or below `min_p` times the likeliest one's probability,
    and then outside the fewest of mass `top_p`."""
    order = np.argsort(-logits, kind="stable")
    kept = order[: top_k or None]
    kept = kept[np.exp((logits[kept] - logits[kept[0]]) / temperature) >= min_p]
    mass = np.exp((logits[kept] - logits[kept[0]]) / temperature)
    before = np.cumsum(mass) - mass
    kept = kept[(before < top_p * mass.sum()) | (np.arange(len(kept)) == 0) | (top_p >= 1)]
    result = np.full_like(logits, -np.inf)
    result[kept] = logits[kept]
    return result


def edited(logits: NDArray[np.float64], edits: LogitEdits, drafts: Sequence[int], position: int) -> NDArray[np.float64]:
    """The logits of the token at `position`, behind `drafts` of the same step."""
    z, penalties = logits.copy(), edits.penalties
    known = {int(token): (int(mark), float(bias)) for token, mark, bias in zip(*_columns(edits), strict=True)}
    for token in {*known, *drafts}:
        mark, bias = known.get(token, (0, 0.0))
        count = mark // OUTPUT + list(drafts).count(token)
        z[token] += bias
        if mark & SEEN or token in drafts:
            z[token] *= 1 / penalties.repetition if z[token] > 0 else penalties.repetition
        z[token] -= penalties.frequency * count + penalties.presence * (count > 0)
        if mark & BANNED and position < edits.free_from:
            z[token] = -np.inf
    return z


def _columns(edits: LogitEdits) -> tuple[list[int], list[int], list[float]]:
    return edits.tokens.tolist(), edits.marks.tolist(), edits.bias.tolist()


def unpacked(row: NDArray[np.int32], size: int) -> NDArray[np.bool_]:
    """A row of a mask as bool [size]."""
    return (row.astype(np.uint32)[np.arange(size) // 32] >> (np.arange(size) % 32)) & 1 == 1


@dataclass(frozen=True, kw_only=True)
class Tables:
    """Logits [V, V, V] of target and drafter, indexed by the token before last and the last one."""

    target: NDArray[np.float64]
    drafter: NDArray[np.float64]

    @classmethod
    def random(cls, vocab: int, seed: int, agreement: float = 0.6) -> Tables:
        """A random target and a drafter that shares its rows with probability `agreement`."""
        rng = np.random.default_rng(seed)
        target = rng.normal(size=(vocab, vocab, vocab)) * 2
        other = rng.normal(size=(vocab, vocab, vocab)) * 2
        same = rng.random((vocab, vocab, 1)) < agreement
        return cls(target=target, drafter=np.where(same, target, other))

    def sample(
        self,
        table: NDArray[np.float64],
        before: int,
        last: int,
        *,
        position: int,
        seed: int,
        temperature: float,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        mask: NDArray[np.bool_] | None = None,
        edit: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None = None,
    ) -> int:
        """The token at `position`, given the two before it: argmax, or the position-keyed Gumbel draw."""
        logits = table[before, last] if mask is None else np.where(mask, table[before, last], -np.inf)
        logits = logits if edit is None else edit(logits)
        if temperature > 0:
            logits = limited(logits, temperature, top_k, top_p, min_p)
            logits = logits / temperature + gumbel(seed, position, len(logits))
        return int(np.argmax(logits))

    def plain(self, prompt: Sequence[int], count: int, *, seed: int = 0, **sampling: float) -> list[int]:
        """`count` tokens by the definition, one at a time, without an engine or a cache."""
        how = {"temperature": 0.0, **sampling}
        tokens = list(prompt)
        for position in range(len(prompt), len(prompt) + count):
            before = tokens[-2] if len(tokens) > 1 else 0
            tokens.append(self.sample(self.target, before, tokens[-1], position=position, seed=seed, **how))
        return tokens[len(prompt) :]


class ToyModel:
    """A `StepModel` over `Tables`. Subclasses break one rule each, to prove that a test would notice."""

    lookback_length = 1

    def __init__(
        self,
        tables: Tables,
        *,
        block_size: int = 5,
        page_size: int = 4,
        num_pages: int = 64,
        max_length: int = 64,
    ) -> None:
        self.tables = tables
        self.vocab_size = tables.target.shape[0]
        self.block_size = block_size
        self.page_size, self.replicas = page_size, 1
        self.num_pages = num_pages
        self.max_length = max_length
        self.cache = np.full((num_pages, page_size), EMPTY)
        self.steps: list[tuple[int, int, bool]] = []
        """(rows, width, draft) of every step so far."""

    def step(self, rows: Sequence[StepRow], *, width: int, draft: bool) -> StepResult:
        assert 0 <= width <= self.block_size
        self.steps.append((len(rows), width, draft))
        shared = [page for row in rows for page in row.pages]
        assert len(shared) == len(set(shared)), "two requests share a page"
        results = [self._row(row, width, draft, len(rows)) for row in rows]
        block = self.block_size if draft else 0
        return StepResult(
            num_accepted=np.array([r[0] for r in results], np.int32),
            next_tokens=np.array([r[1] for r in results], np.int64),
            next_draft_tokens=np.array([r[2] for r in results], np.int64).reshape(len(rows), block),
            confidence=np.zeros((len(rows), block), np.float32),
            finite=np.ones(len(rows), np.bool_),
            logits=lambda: self._logits(rows, width),
        )

    def _logits(self, rows: Sequence[StepRow], width: int) -> NDArray[np.float32]:
        """The target's own logits of every verified row; NaN where none was verified."""
        made = np.full((len(rows), width + 1, self.vocab_size), np.nan, np.float32)
        for index, row in enumerate(rows):
            known = [self._read(row, position) for position in range(row.cache_length)]
            known += [*row.tokens, *row.draft_tokens]
            first = row.cache_length + len(row.tokens) - 1
            for place in range(len(row.draft_tokens) + 1):
                before = known[first + place - 1] if first + place else 0
                made[index, place] = self.tables.target[before, known[first + place]]
        return made.reshape(-1, self.vocab_size)

    def _row(self, row: StepRow, width: int, draft: bool, batch: int) -> tuple[int, int, list[int]]:
        assert len(row.draft_tokens) <= width
        assert len(row.pages) * self.page_size >= row.cache_length + len(row.tokens) + width
        self._check_lookback(row)
        padded = [*row.draft_tokens, *[-1] * (width - len(row.draft_tokens))]
        for offset, token in enumerate([*row.tokens, *padded]):
            self._write(row, row.cache_length + offset, token)
        last = row.cache_length + len(row.tokens) - 1
        accepted = 0
        while True:
            token = self._target(row, last + accepted, batch)
            if accepted == len(row.draft_tokens) or token != row.draft_tokens[accepted]:
                break
            accepted += 1
        token = self._corrected(row, token, last + accepted, rejected=accepted < len(row.draft_tokens))
        drafts = self._drafts(row, last + accepted, token) if draft else []
        return accepted, token, drafts

    def _corrected(self, row: StepRow, token: int, position: int, *, rejected: bool) -> int:
        """The token to commit after the accepted drafts: the very sample that was compared."""
        return token

    def _target(self, row: StepRow, position: int, batch: int) -> int:
        """The target's sample for the position after `position`."""
        before, last = self._read(row, position - 1), self._read(row, position)
        limits = {"top_k": row.top_k, "top_p": row.top_p, "min_p": row.min_p}
        place = position - row.cache_length - len(row.tokens) + 1
        if row.mask is not None:
            limits["mask"] = unpacked(row.mask[place], self.vocab_size)
        if row.edits is not None:
            edits, drafts = row.edits, self._counted(row, place)
            limits["edit"] = lambda logits: edited(logits, edits, drafts, position + 1)
        return self._sample(row, self.tables.target, before, last, position + 1, **limits)

    def _counted(self, row: StepRow, place: int) -> Sequence[int]:
        """The drafts that penalties count at the row behind `place` of them."""
        return row.draft_tokens[:place]

    def _drafts(self, row: StepRow, position: int, anchor: int) -> list[int]:
        before, last, drafts = self._read(row, position), anchor, []
        for offset in range(self.block_size):
            drafts.append(self._sample(row, self.tables.drafter, before, last, position + 2 + offset))
            before, last = last, drafts[-1]
        return drafts

    def _sample(
        self, row: StepRow, table: NDArray[np.float64], before: int, last: int, position: int, **limits: float
    ) -> int:
        return self.tables.sample(
            table, before, last, position=position, seed=row.seed, temperature=row.temperature, **limits
        )

    def _check_lookback(self, row: StepRow) -> None:
        expected = [self._read(row, row.cache_length - 1)] if row.cache_length else []
        assert list(row.lookback) == expected, "the lookback is not what the cache holds"

    def _slot(self, row: StepRow, position: int) -> tuple[int, int]:
        return row.pages[position // self.page_size], position % self.page_size

    def _write(self, row: StepRow, position: int, token: int) -> None:
        self.cache[self._slot(row, position)] = token

    def _read(self, row: StepRow, position: int) -> int:
        return int(self.cache[self._slot(row, position)]) if position >= 0 else 0
