"""Prometheus metrics, under vLLM's names where vLLM has them."""

from __future__ import annotations

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

from specdecode.core.engine.report import Load
from specdecode.core.engine.request import Completion, TokensEvent

disable_created_metrics()  # type: ignore[no-untyped-call]  # when a counter was made is nobody's question

_FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_EACH = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_WHOLE = (0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 240.0, 480.0)


class Metrics:
    """Counters of one server; every method may be called from any thread.

    Args:
        model: label of every metric.
        drafts: positions of a round.
    """

    def __init__(self, model: str, drafts: int) -> None:
        self.registry = CollectorRegistry()
        self._model = model
        self._drafts = self._counter("vllm:spec_decode_num_drafts", "Rounds that verified drafts.")
        self._proposed = self._counter("vllm:spec_decode_num_draft_tokens", "Draft tokens that were verified.")
        self._accepted = self._counter("vllm:spec_decode_num_accepted_tokens", "Draft tokens that were accepted.")
        at = Counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Rounds that accepted the draft at this position, counted from 0.",
            ["model_name", "position"],
            registry=self.registry,
        )
        self._positions = [at.labels(model, str(place)) for place in range(drafts)]
        self._prompt = self._counter("vllm:prompt_tokens", "Prompt tokens of requests that gave a token.")
        self._generated = self._counter("vllm:generation_tokens", "Tokens generated.")
        self._ended = Counter(
            "vllm:request_success",
            "Requests that ended, by reason; a request is one choice.",
            ["model_name", "finished_reason"],
            registry=self.registry,
        )
        for reason in ("stop", "length", "abort", "error"):
            self._ended.labels(model, reason)
        self._first = self._histogram("vllm:time_to_first_token_seconds", "From the queue to the first token.", _FIRST)
        self._each = self._histogram("vllm:time_per_output_token_seconds", "Mean of a request behind its first.", _EACH)
        self._whole = self._histogram("vllm:e2e_request_latency_seconds", "From the queue to the last token.", _WHOLE)
        self._running = self._gauge("vllm:num_requests_running", "Requests that have pages.")
        self._waiting = self._gauge("vllm:num_requests_waiting", "Requests in the queue.")
        self._usage = self._gauge("vllm:kv_cache_usage_perc", "Share of the cache pages in use, 0 to 1.")
        self._free = self._gauge("specdecode:free_pages", "Cache pages that nobody has.")

    def render(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self.registry)

    def tokens(self, event: TokensEvent) -> None:
        """A request gained tokens."""
        self._generated.inc(len(event.tokens))
        if event.proposed:
            self._drafts.inc()
            self._proposed.inc(event.proposed)
            self._accepted.inc(event.drafted)
            for position in self._positions[: event.drafted]:
                position.inc()

    def first(self, seconds: float, prompt_tokens: int) -> None:
        """A request gave its first token."""
        self._first.observe(seconds)
        self._prompt.inc(prompt_tokens)

    def finished(self, completion: Completion) -> None:
        """A request ended as asked; a full context counts as length."""
        self.ended("stop" if completion.reason.value == "stop" else "length")
        if completion.timing.per_token is not None:
            self._each.observe(completion.timing.per_token)
        if completion.timing.last_token is not None:
            self._whole.observe(completion.timing.last_token)

    def ended(self, reason: str) -> None:
        """A request ended: stop, length, abort (its client went away) or error."""
        self._ended.labels(self._model, reason).inc()

    def load(self, load: Load) -> None:
        """What the engine holds now."""
        self._running.set(load.running)
        self._waiting.set(load.waiting)
        self._usage.set(1 - load.free_pages / load.pages)
        self._free.set(load.free_pages)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, ["model_name"], registry=self.registry).labels(self._model)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, ["model_name"], registry=self.registry).labels(self._model)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, ["model_name"], registry=self.registry, buckets=buckets).labels(self._model)
