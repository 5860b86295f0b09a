"""`usage` of a response: tokens, and what speculation did for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specdecode.core.engine.request import Completion
from specdecode.core.metrics import Acceptance
from specdecode.core.server.calls import Ended
from specdecode.core.server.costs import total
from specdecode.core.server.translate import Asked
from specdecode.core.text.markers import THINK_END
from specdecode.core.text.tokenizer import TextTokenizer


@dataclass(frozen=True, kw_only=True)
class UsageReport:
    """How a server speaks of usage.

    Attributes:
        method: who drafts. drafts: the most a round.
    """

    tokenizer: TextTokenizer
    method: str
    drafts: int

    def of(self, asked: Asked, ended: Sequence[Ended]) -> dict[str, object]:
        """Of all choices together; see `docs/serve.md`."""
        tokens = sum(len(one.completion.tokens) for one in ended)
        usage: dict[str, object] = {
            "prompt_tokens": asked.prompt_tokens,
            "completion_tokens": tokens,
            "total_tokens": asked.prompt_tokens + tokens,
        }
        if asked.chat:
            reasoning = sum(self._reasoning(asked, one.completion) for one in ended)
            usage["completion_tokens_details"] = {"reasoning_tokens": reasoning}
        usage["speculative"] = self._speculative(ended)
        return usage

    def _speculative(self, ended: Sequence[Ended]) -> dict[str, object]:
        rounds = [r for one in ended for r in one.completion.rounds]
        found, spent = Acceptance.of(rounds), total([one.spent for one in ended])
        positions = range(1, max((r.proposed for r in rounds), default=0) + 1)
        return {
            "method": self.method,
            "draft_tokens": self.drafts,
            "rounds": found.rounds,
            "proposed": found.proposed,
            "accepted": found.accepted,
            "acceptance_rate": found.rate,
            "acceptance_length": found.length_with_bonus,
            "accepted_per_position": [sum(r.accepted >= k for r in rounds) for k in positions],
            "steps": spent.steps,
            "step_seconds": spent.seconds,
            "verify_seconds": spent.verify,
            "draft_seconds": spent.draft,
        }

    def _reasoning(self, asked: Asked, completion: Completion) -> int:
        """Tokens before `</think>`; all of them where it never came."""
        if not asked.thinking:
            return 0
        end = self.tokenizer.backend.token_to_id(THINK_END)
        tokens = completion.tokens
        return tokens.index(end) if end in tokens else len(tokens)
