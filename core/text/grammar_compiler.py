"""Grammars compiled against a tokenizer, by llguidance.

Every mask is what the language allows: all tokens after which the text can still become a member of it. llguidance
would rather force its own tokenisation where only one text is possible; that is turned off (`no_forcing`), because a
mask must depend on nothing but the grammar and the tokens so far.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from threading import Lock
from typing import TYPE_CHECKING, Protocol
from weakref import WeakKeyDictionary

from specdecode.core.errors import UsageError
from specdecode.core.text.detokenizer import TokenBytes
from specdecode.core.text.grammar import NAMES, Grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher

_NO_FORCING = '\n%llguidance {"no_forcing": true}\n'
_KEPT = 64
_HINTS = {
    "json_schema": "Correct it, or leave out what is not supported.",
    "json_object": "Use another tokenizer.",
    "regex": "The syntax is that of Rust's regex crate, and the whole text must match.",
    "lark": "The syntax is Lark in llguidance's dialect, and the rule it begins with is start.",
}


class Vocabulary(TokenBytes, Protocol):
    """What a grammar needs of a tokenizer.

    Attributes:
        vocab_size: ids of the model.
        eos: the id that ends a sequence.
        added: names of special tokens and markers; no grammar takes them for text.
    """

    @property
    def vocab_size(self) -> int: ...
    @property
    def eos(self) -> int: ...
    @property
    def added(self) -> Mapping[int, str]: ...


class GrammarCompiler:
    """Compiles grammars, each of them once."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        from llguidance import LLTokenizer

        self._tokenizer = LLTokenizer(_Tokens(vocabulary), eos_token=vocabulary.eos)  # type: ignore[arg-type]
        self._compiled: dict[Grammar, LLMatcher] = {}
        self._lock = Lock()  # of the table; a server compiles beside the engine that looks things up

    def compile(self, grammar: Grammar) -> LLMatcher:
        """A matcher at the grammar's beginning; it is shared, so copy it before it consumes anything.

        Raises:
            UsageError: the grammar is not valid or holds what is not supported.
        """
        matcher = self._compiled.get(grammar) or self._compile(grammar)
        with self._lock:
            self._compiled.pop(grammar, None)  # the youngest stands last
            self._compiled[grammar] = matcher
            if len(self._compiled) > _KEPT:
                del self._compiled[next(iter(self._compiled))]
        return matcher

    def _compile(self, grammar: Grammar) -> LLMatcher:
        from llguidance import LLMatcher, regex_to_lark

        if grammar.kind == "lark":
            if grammar.text.lstrip().startswith("{"):
                raise UsageError(f"The grammar cannot be used: it is JSON. {_HINTS['lark']}")
            native = source = grammar.text
        elif grammar.kind == "regex":
            native = LLMatcher.grammar_from_regex(grammar.text)
            source = f"start: /{regex_to_lark(grammar.text, '')}/"
        else:
            schema = grammar.text or '{"type": "object"}'
            native, source = LLMatcher.grammar_from_json_schema(schema), f"start: %json {schema}"
        # The native form first: its messages speak of what people wrote.
        failed, messages = LLMatcher.validate_grammar_with_warnings(native, self._tokenizer)
        if not failed:
            matcher = LLMatcher(self._tokenizer, source + _NO_FORCING, log_level=0)
            if not matcher.is_error():
                return matcher
            messages = [matcher.get_error()]
        raise UsageError(
            f"The {NAMES[grammar.kind]} cannot be used: {_reason(grammar, messages[0])}. {_HINTS[grammar.kind]}"
        )


def compiler(vocabulary: Vocabulary) -> GrammarCompiler:
    """The compiler of a tokenizer, made once."""
    if vocabulary not in _COMPILERS:
        _COMPILERS[vocabulary] = GrammarCompiler(vocabulary)
    return _COMPILERS[vocabulary]


_COMPILERS: WeakKeyDictionary[Vocabulary, GrammarCompiler] = WeakKeyDictionary()


class _Tokens:
    """A vocabulary in the form that llguidance reads; it holds no reference to the tokenizer."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        added = vocabulary.added
        ids = range(vocabulary.vocab_size)
        self.eos_token_id = vocabulary.eos
        self.special_token_ids = sorted(added)
        self.tokens = [added[i].encode() if i in added else vocabulary.token_bytes(i) for i in ids]
        self._single = {self.tokens[i]: i for i in ids if len(self.tokens[i]) == 1 and i not in added}

    def __call__(self, text: bytes | str) -> list[int]:
        """Byte by byte; llguidance asks only for what it would force."""
        data = text.encode() if isinstance(text, str) else text
        return [self._single[bytes((byte,))] for byte in data]


def _reason(grammar: Grammar, message: str) -> str:
    """llguidance's message without the excerpt of a text that nobody wrote."""
    if grammar.kind == "regex":
        found = re.search(r"^error: (.*)$", message, flags=re.MULTILINE)
        return f"{found[1]} in {grammar.text!r}" if found else message.partition("\n")[0]
    lines = [line for line in message.strip().splitlines() if grammar.kind != "lark" or "%llguidance" not in line]
    return "\n".join(lines).rstrip(".") if grammar.kind == "lark" else " ".join(map(str.strip, lines)).rstrip(".")
