"""From what a request asks for to its `Constraint`, or to a message."""

from __future__ import annotations

from collections.abc import Iterable

from specdecode.core.errors import TokenizerError, UsageError
from specdecode.core.text.bitmask import only
from specdecode.core.text.constraint import Constraint, ConstraintError, Free, Matching, Reasoning, State
from specdecode.core.text.grammar import Grammar
from specdecode.core.text.grammar_compiler import Vocabulary, compiler
from specdecode.core.text.markers import THINK_END


def constraint(
    vocabulary: Vocabulary | None,
    *,
    grammar: Grammar | None,
    thinking: bool,
    thinking_budget: int | None,
    stop_ids: Iterable[int] = (),
) -> Constraint | None:
    """What a request may draw; None where it may draw anything.

    Args:
        vocabulary: the tokenizer.
        grammar: what the answer must be.
        thinking: whether the prompt ends inside the reasoning, so that the answer begins after `</think>`.
        thinking_budget: the most tokens of reasoning.
        stop_ids: ids that may follow a complete text, as end-of-sequence may.

    Raises:
        UsageError: the grammar cannot be used, or there is no tokenizer to use it with.
        TokenizerError: the tokenizer has no `</think>`.
    """
    limited = thinking and thinking_budget is not None
    if grammar is None and not limited:
        return None
    if vocabulary is None:
        raise UsageError("Grammars and thinking budgets need a tokenizer, and this engine was given none.")
    size = vocabulary.vocab_size
    state: State = Free(size)
    if grammar is not None:
        endings = only(size, {vocabulary.eos, *stop_ids})
        state = Matching(compiler(vocabulary).compile(grammar).deep_copy(), endings=endings, eos=vocabulary.eos)
        _check(state)
    if thinking:
        state = Reasoning(size, end=_think_end(vocabulary), left=thinking_budget, then=state)
    return Constraint(state)


def _check(state: State) -> None:
    try:
        empty = state.finished
    except ConstraintError as error:
        raise UsageError(f"No text fits the grammar, or none that this vocabulary can spell: {error}") from None
    if empty:
        raise UsageError("The grammar allows the empty text only. Leave it out, or let it say something.")


def _think_end(vocabulary: Vocabulary) -> int:
    found = next((token for token, name in vocabulary.added.items() if name == THINK_END), None)
    if found is None:
        raise TokenizerError(f"The tokenizer has no token {THINK_END}, so reasoning has no end that could be seen.")
    return found
