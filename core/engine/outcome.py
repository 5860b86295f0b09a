"""What the engine says of a sequence after a step, and when it has ended."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specdecode.core.engine.logprobs import TokenLogprob, draft_probabilities, logprobs
from specdecode.core.engine.request import Completion, FinishReason, Request
from specdecode.core.engine.scheduler import Sequence
from specdecode.core.engine.step import StepResult
from specdecode.core.metrics import Timing


def completion(sequence: Sequence, reason: FinishReason) -> Completion:
    """What became of a sequence that ended for `reason`."""

    def since(moment: float | None) -> float | None:
        return None if moment is None else moment - sequence.submitted

    return Completion(
        tokens=tuple(sequence.tokens[len(sequence.request.prompt) :]),
        reason=reason,
        rounds=tuple(sequence.rounds),
        timing=Timing(
            first_token=since(sequence.first_token),
            last_token=since(sequence.last_token),
            tokens=sequence.generated,
        ),
        text="".join(sequence.pieces),
        stopped_by=sequence.stopped_by,
        logprobs=None if sequence.request.logprobs is None else tuple(sequence.logprobs),
    )


def token_logprobs(
    request: Request, tokens: tuple[int, ...], result: StepResult, first: int
) -> tuple[TokenLogprob, ...]:
    """Log-probabilities of the tokens of a step, whose rows begin at `first`; none where they are not asked for."""
    if request.logprobs is None:
        return ()
    if result.logits is None:
        raise RuntimeError("logprobs are asked for, but the model gives no logits")
    return logprobs(result.logits()[first : first + len(tokens)], tokens, request.logprobs)


def draft_probs(sequence: Sequence, index: int, result: StepResult) -> NDArray[np.float32] | None:
    """What the drafts of a sequence were drawn from, float32 [drafts, V]; `index` is its place in the step."""
    count = len(sequence.drafts)
    if count == 0:
        return None
    if result.draft_logits is None:
        raise RuntimeError("ratio tests need the drafter's probabilities, but the model gives none")
    logits = result.draft_logits()[index * count : (index + 1) * count]
    return draft_probabilities(logits, sequence.drafts, sequence.request.temperature)


def not_finite(sequence: Sequence, logits: NDArray[np.float32] | None) -> str:
    """Why a sequence has failed; `logits` are the model's own at its first row, if they are known."""
    asked = sequence.edits is not None or sequence.constraint is not None
    if asked and logits is not None and bool(np.isfinite(logits).all()):
        return (
            f"After {sequence.generated} tokens of output the request's bans, biases and grammar leave no token. Lower "
            "min_tokens, ban fewer tokens or change the grammar; other requests are not affected."
        )
    return (
        f"The model's logits after {sequence.generated} tokens of output held a NaN or an infinity, so this request "
        "cannot go on. The checkpoint is damaged or unsuitable for this device; other requests are not affected."
    )
