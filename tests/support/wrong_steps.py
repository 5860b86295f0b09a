"""Real models with one deliberate mistake each; a test of the promise that cannot tell them is worthless."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.support.promise import Watched


class RedrawsMismatch(Watched):
    """Draws the corrected token anew, with other noise, instead of committing the draw that was compared."""

    def changed(self, rows, logits, result):
        tokens = result.next_tokens.copy()
        for place, row in enumerate(rows):
            n = int(result.num_accepted[place])
            if row.temperature > 0 and n < len(row.draft_tokens):
                noise = np.random.default_rng([row.seed, row.cache_length, 1]).gumbel(size=self.vocab_size)
                tokens[place] = np.argmax(logits[place, n] / row.temperature + noise)
        return logits, replace(result, next_tokens=tokens)


class DependsOnBatch(Watched):
    """Sums in another order when others are in the call: one logit is off by its last bit."""

    def changed(self, rows, logits, result):
        if len(rows) > 1:
            logits = logits.copy()
            logits[..., 0] = np.nextafter(logits[..., 0], np.float32(np.inf))
        return logits, result


class AcceptsOneTooMany(Watched):
    """Accepts the first draft that the target did not draw."""

    def changed(self, rows, logits, result):
        short = [int(n) < len(row.draft_tokens) for n, row in zip(result.num_accepted, rows, strict=True)]
        return logits, replace(result, num_accepted=result.num_accepted + np.array(short, np.int32))


class ForgetsLookback(Watched):
    """Hashes a step's first tokens as if the sequence began there."""

    def given(self, rows):
        return [replace(row, lookback=[0] * len(row.lookback)) for row in rows]


class ReadsAnotherPage(Watched):
    """Looks its first page up in the wrong place once there are several."""

    def given(self, rows):
        def swapped(pages):
            return (pages[1], pages[0], *pages[2:])

        return [replace(row, pages=swapped(row.pages)) if row.cache_length > 20 else row for row in rows]


class DraftsFromTheFuture(Watched):
    """Verifies a draft against the draw of the position after it."""

    def changed(self, rows, logits, result):
        width = logits.shape[1] - 1
        if width < 1:
            return logits, result
        return np.roll(logits, -1, axis=1), result


class LimitsFirstRowOnly(Watched):
    """Draws from all tokens behind the first draft that is accepted, whatever top_k and top_p say."""

    def changed(self, rows, logits, result):
        free = [replace(row, top_k=0, top_p=1.0) for row in rows]
        width, draft = logits.shape[1] - 1, result.next_draft_tokens.shape[1] > 0
        unlimited = self.model.step(free, width=width, draft=draft)
        behind = (result.num_accepted > 0) & (unlimited.num_accepted > 0)
        accepted = np.where(behind, unlimited.num_accepted, result.num_accepted)
        tokens = np.where(behind, unlimited.next_tokens, result.next_tokens)
        return logits, replace(result, num_accepted=accepted, next_tokens=tokens)
