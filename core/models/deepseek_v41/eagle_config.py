"""What an EAGLE drafter's config.json says, and whether it belongs to a target."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from specdecode.core.errors import ConfigError
from specdecode.core.models.deepseek_v41.config import TextConfig

MODEL_TYPE = "specdecode_eagle"


@dataclass(frozen=True, kw_only=True)
class EagleConfig:
    """One autoregressive drafter layer on a target's hidden states; fields are those of its config.json.

    Attributes:
        num_draft_tokens: tokens drafted a round.
        markov_rank: rank of the bigram term of its logits.
        target_layer_ids: the target layers whose inputs it reads.
        n_routed_experts, num_experts_per_tok: of its one layer.
        sliding_window: newest of its own rows that a row attends to.
        hidden_size, vocab_size: the target's.
    """

    num_draft_tokens: int
    markov_rank: int
    target_layer_ids: tuple[int, ...]
    n_routed_experts: int
    num_experts_per_tok: int
    sliding_window: int
    hidden_size: int
    vocab_size: int

    @classmethod
    def from_folder(cls, folder: Path, target: TextConfig) -> EagleConfig:
        """Read a drafter's folder and check it against its target.

        Raises:
            ConfigError: no readable config.json, another kind of model, or one that was made for another target.
        """
        path = folder / "config.json"
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(f"{path} does not exist, so {folder} holds no drafter.") from None
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} is not a JSON file: {error}.") from None
        kind = content.get("model_type") if isinstance(content, dict) else None
        if kind != MODEL_TYPE:
            raise ConfigError(f"{path} has model_type {kind!r}; an EAGLE drafter's is {MODEL_TYPE!r}.")
        config = cls(**{known.name: _value(content, known.name, path) for known in fields(cls)})
        config.check(target, path)
        return config

    def check(self, target: TextConfig, path: Path) -> None:
        """Refuse a drafter that a target cannot feed.

        Raises:
            ConfigError: naming the value and what the target has.
        """
        wanted = {
            "hidden_size": target.hidden_size,
            "vocab_size": target.vocab_size,
            "target_layer_ids": tuple(target.dspark_target_layer_ids),
        }
        for name, value in wanted.items():
            if getattr(self, name) != value:
                raise ConfigError(
                    f"{path} has {name} {getattr(self, name)}, but the target has {value}: the drafter was made for "
                    "another model."
                )
        most = target.dspark_block_size
        if not 1 <= self.num_draft_tokens <= most:
            raise ConfigError(f"{path} has num_draft_tokens {self.num_draft_tokens}; 1 to {most} are possible.")
        if not 1 <= self.num_experts_per_tok <= self.n_routed_experts:
            raise ConfigError(
                f"{path} has num_experts_per_tok {self.num_experts_per_tok} of {self.n_routed_experts} experts."
            )


def _value(content: dict[str, Any], name: str, path: Path) -> Any:
    value = content.get(name)
    if name == "target_layer_ids":
        if isinstance(value, list) and value and all(isinstance(item, int) for item in value):
            return tuple(value)
        raise ConfigError(f"{path} has {name} {value!r}; it is a list of layer numbers.")
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{path} has {name} {value!r}; it is a whole number from 1 on.")
    return value
