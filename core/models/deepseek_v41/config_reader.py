"""From JSON to frozen dataclasses: every field typed, nothing converted silently."""

from __future__ import annotations

import dataclasses
import difflib
import json
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from specdecode.core.errors import ConfigError

T = TypeVar("T")

# Hugging Face writes these beside the model's own fields; none of them changes what an inference computes.
# fmt: off
BOILERPLATE = frozenset(
    {
        "attention_dropout", "initializer_range", "use_cache", "transformers_version", "torch_dtype",
        "auto_map", "_name_or_path", "dtype", "name_or_path", "output_attentions",
        "output_hidden_states", "return_dict", "chunk_size_feed_forward", "is_encoder_decoder",
        "id2label", "label2id", "problem_type", "keys_to_ignore_at_inference", "pretraining_tp",
        "bos_token_id", "eos_token_id", "pad_token_id", "architectures",
    }
)
# fmt: on


def read_config_json(source: Path | str | Mapping[str, object]) -> tuple[Mapping[str, object], str]:
    """The JSON object of `source` and the name to call it by in messages."""
    if isinstance(source, Mapping):
        return source, "config"
    path = Path(source)
    if path.is_dir():
        path = path / "config.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"No {path.name} in {path.parent}. A checkpoint folder holds config.json, tokenizer.json and "
            "*.safetensors files; point --model at such a folder."
        ) from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as JSON: {error}. Download the file again.") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds a JSON {type(content).__name__}, not an object.")
    return content, str(path)


def read_fields(cls: type[T], content: Mapping[str, object], *, origin: str, prefix: str = "") -> T:
    """Build dataclass `cls` from a JSON object; `prefix` is the dotted place of the object in the file."""
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    _refuse_unknown(content, fields.keys(), origin, prefix)
    values = {}
    for name, field in fields.items():
        key = prefix + name
        if name in content:
            values[name] = _convert(content[name], hints[name], key, origin)
        elif field.default is dataclasses.MISSING:
            raise ConfigError(f"{origin}: {key} is missing. It belongs to every deepseek_v41 configuration.")
    return cls(**values)


def _refuse_unknown(content: Mapping[str, object], known: typing.Collection[str], origin: str, prefix: str) -> None:
    for name, value in content.items():
        if name in known or name in BOILERPLATE or (name == "tie_word_embeddings" and value is False):
            continue
        near = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean {prefix}{near[0]}?" if near else ""
        raise ConfigError(
            f"{origin}: {prefix}{name} = {value!r} is not supported, and ignoring it could change what the "
            f"model computes.{hint}"
        )


def _convert(value: object, hint: Any, key: str, origin: str) -> object:
    """`value` as the annotated type. An int stands for a float, nothing else is converted."""
    if isinstance(hint, types.UnionType):
        if value is None:
            return None
        hint = next(option for option in typing.get_args(hint) if option is not type(None))
    if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        return read_fields(typing.cast("type[object]", hint), value, origin=origin, prefix=key + ".")
    if typing.get_origin(hint) is tuple and isinstance(value, (list, tuple)):
        element = typing.get_args(hint)[0]
        return tuple(_convert(item, element, f"{key}[{index}]", origin) for index, item in enumerate(value))
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is float and number:
        return float(typing.cast(float, value))
    if hint in (int, bool, str) and type(value) is hint:
        return value
    raise ConfigError(f"{origin}: {key} must be {_describe(hint)}, found {value!r}.")


def _describe(hint: Any) -> str:
    if dataclasses.is_dataclass(hint):
        return "an object"
    if typing.get_origin(hint) is tuple:
        return "a list"
    names = {int: "an integer", float: "a number", bool: "true or false", str: "a text"}
    return names[hint]
