"""What each figure of a benchmark is; printed under its tables and kept in its document."""

from __future__ import annotations

from specdecode.core.metrics import DEFINITIONS

_AS_GENERATE = ("rounds", "acceptance length", "acceptance rate", "accepted at position k")
BENCH_DEFINITIONS: dict[str, str] = {
    **{name: DEFINITIONS[name] for name in _AS_GENERATE},
    "TTFT": DEFINITIONS["time to first token"] + "; prompts of a batch start together",
    "TPOT": DEFINITIONS["time per output token"] + "; several tokens of a round come at once, so gaps between tokens "
    "mean nothing here",
    "p50, p95": "of all requests of all repeats, linear between neighbours",
    "tokens/s": "output tokens / time of whole runs, prompts included; the median of the repeats ± their median "
    "absolute deviation",
    "speed-up": "tokens/s over plain decoding's in the same repeat; the median of the repeats",
    "same": "prompts whose outputs are plain decoding's first ones, token by token, in every repeat",
    "of copy": "bytes that decoding steps must move at least / their time / the bandwidth of a copy, measured "
    "in this run",
    "verify, draft, host": "milliseconds a decoding step; verify and draft divide a step by times of steps with and "
    "without drafting, host is the time outside of steps, over all steps",
}
_INSIDE = ("of copy", "verify, draft, host")
SERVER_DEFINITIONS: dict[str, str] = {
    **{name: meaning for name, meaning in BENCH_DEFINITIONS.items() if name not in _INSIDE},
    "rounds": "growth of the server's vllm:spec_decode_num_drafts",
    "acceptance length": "growth of num_accepted_tokens / num_drafts (without bonus), and 1 + that (with bonus)",
    "acceptance rate": "growth of num_accepted_tokens / num_draft_tokens",
    "accepted at position k": "growth of num_accepted_tokens_per_pos at k / num_drafts",
    "TTFT": "from sending a request to its first streamed text",
    "TPOT": "time from the first to the last streamed text / (the server's count of tokens - 1)",
    "same": "prompts whose texts are plain decoding's first ones in every repeat",
}
