"""The pipeline that MAX's scheduler drives: its batches in, several tokens a request out."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from max.pipelines.context import GenerationStatus, TextContext, TextGenerationOutput
from max.pipelines.kv_cache.paged_kv_cache.dummy_cache_manager import DummyKVCache
from max.pipelines.modeling.types import Pipeline, RequestID
from max.pipelines.speculative.utils import _SpeculativeDecodingMetrics

from specdecode.core.cache.pages import PageAllocator
from specdecode.core.engine.edits import EditState, Penalties, edits_for
from specdecode.core.engine.scheduler import until_sentinel
from specdecode.core.engine.step import StepModel, StepResult, StepRow
from specdecode.core.models.deepseek_v41.load import load_step_model
from specdecode.core.progress import Lines

DEFAULT_BATCH = 8


@dataclass(kw_only=True)
class _Request:
    """What a request keeps between steps.

    Attributes:
        pages: its cache pages, for its longest text.
        drafts: proposals behind its tokens; they hold at `cached` tokens in the caches and nowhere else.
    """

    pages: tuple[int, ...]
    edits: EditState | None
    drafts: list[int] = field(default_factory=list)
    cached: int = 0


class SpeculativePipeline(Pipeline[Any, TextGenerationOutput]):  # type: ignore[misc]
    """Verifies and drafts for whatever MAX schedules.

    MAX's own cache manager is told that everything fits, since a request's pages are taken here: there are enough for
    the largest batch of the longest texts.
    """

    def __init__(
        self,
        pipeline_config: Any,
        pipeline_model: Any,
        weight_adapters: Any,
        tokenizer: Any,
        memory_plan: Any,
    ) -> None:
        self._batch = int(memory_plan.planned_max_batch_size or DEFAULT_BATCH)
        length = memory_plan.planned_max_length
        specs = pipeline_config.model.device_specs
        on_cpu = specs[0].device_type == "cpu"
        devices = "cpu" if on_cpu else "gpu:" + ",".join(str(spec.id) for spec in specs)
        self._model: StepModel = load_step_model(
            Path(pipeline_config.model.model_path),
            devices=devices,
            data_parallel_degree=int(pipeline_config.model.data_parallel_degree),
            max_length=int(length),
            max_batch=self._batch,
            token_budget=int(pipeline_config.runtime.max_batch_input_tokens),
            progress=Lines(),
        )
        self._allocator = PageAllocator(self._model.num_pages, self._model.page_size, self._model.replicas)
        self._requests: dict[RequestID, _Request] = {}
        self._metrics = self._fresh_metrics()
        self.kv_manager = DummyKVCache()

    @property
    def max_batch_size(self) -> int:
        """The most requests in one step."""
        return self._batch

    def execute(self, inputs: Any) -> dict[RequestID, TextGenerationOutput]:
        """Run one step of the scheduled requests; each that was not in the middle of its prompt has new tokens."""
        contexts: list[TextContext] = inputs.flat_batch
        self._metrics = self._fresh_metrics()
        if not contexts:
            return {}
        known = [(context, self._row(context)) for context in contexts]
        known.sort(key=lambda pair: self._allocator.replica(pair[1].pages[0]))  # replica after replica
        contexts, rows = [context for context, _ in known], [row for _, row in known]
        width = max(len(row.draft_tokens) for row in rows)
        result = self._model.step(rows, width=width, draft=True)
        outputs = {}
        for place, (context, row) in enumerate(zip(contexts, rows, strict=True)):
            if context.tokens.actively_chunked:
                context.advance_token_buffer(new_token=0)  # moves on to the next chunk; the token is not kept
                continue
            self._commit(context, row, place, result)
            outputs[context.request_id] = context.to_generation_output()
        return outputs

    def release(self, request_id: RequestID) -> None:
        """Give a request's pages back; unknown ones are ignored, as a request may be dropped before its first step."""
        request = self._requests.pop(request_id, None)
        if request is not None:
            self._allocator.free(request.pages)

    def batch_spec_decode_metrics(self) -> _SpeculativeDecodingMetrics:
        """Drafts verified and accepted in the last step, for MAX's log and metrics."""
        return self._metrics

    def _fresh_metrics(self) -> _SpeculativeDecodingMetrics:
        return _SpeculativeDecodingMetrics(num_speculative_tokens=self._model.block_size)

    def _row(self, context: TextContext) -> StepRow:
        """A request's share of a step: what MAX has not processed yet, and the drafts behind it."""
        request = self._requests.get(context.request_id) or self._admit(context)
        tokens, params = context.tokens, context.sampling_params
        start, count = tokens.processed_length, tokens.active_length
        text = tokens.all.tolist()
        room = context.max_length - len(text) - 1
        drafts = request.drafts if request.cached == start and not tokens.actively_chunked else []
        return StepRow(
            tokens=text[start : start + count],
            cache_length=start,
            pages=request.pages,
            draft_tokens=drafts[: max(room, 0)],
            lookback=text[max(0, start - self._model.lookback_length) : start],
            seed=params.seed,
            temperature=params.temperature,
            top_k=max(params.top_k, 0),
            top_p=params.top_p,
            min_p=params.min_p,
            edits=None if request.edits is None else request.edits.edits(text),
            following=text[start + count] if start + count < len(text) else -1,
        )

    def _admit(self, context: TextContext) -> _Request:
        pages = self._allocator.allocate(context.max_length + self._model.block_size)
        if pages is None:
            raise RuntimeError(f"MAX scheduled more than {self._batch} requests of {context.max_length} tokens")
        request = self._requests[context.request_id] = _Request(
            pages=tuple(pages), edits=_edits(context, self._model.vocab_size)
        )
        return request

    def _commit(self, context: TextContext, row: StepRow, place: int, result: StepResult) -> None:
        """Append accepted drafts and the target's own token, up to the request's end."""
        if not result.finite[place]:
            context.status = GenerationStatus.CANCELLED
            return
        accepted = int(result.num_accepted[place])
        for token in (*row.draft_tokens[:accepted], int(result.next_tokens[place])):
            context.update(token)
            if context.is_done:
                break
        request = self._requests[context.request_id]
        request.cached = row.cache_length + len(row.tokens) + accepted
        request.drafts = list(until_sentinel(result.next_draft_tokens[place].tolist()))
        if row.draft_tokens:
            self._metrics.num_verifications += 1
            counts = self._metrics.accepted_per_position
            assert counts is not None
            for position in range(accepted):
                counts[position] += 1


def _edits(context: TextContext, vocab_size: int) -> EditState | None:
    """Penalties and bans of a request; None where it has none."""
    params = context.sampling_params
    return edits_for(
        prompt=context.tokens.prompt.tolist(),
        bias={},
        penalties=Penalties(
            repetition=params.repetition_penalty,
            frequency=params.frequency_penalty,
            presence=params.presence_penalty,
        ),
        ends=context.eos_tracker.eos_token_ids,
        min_tokens=params.min_new_tokens,
        vocab_size=vocab_size,
    )
