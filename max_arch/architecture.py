"""What MAX has to know of the model: its name, its tokenizer, its pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from max.graph.weights import WeightsFormat
from max.pipelines.context import TextContext
from max.pipelines.lib.registry import SupportedArchitecture
from max.pipelines.modeling.types import PipelineTask
from transformers import AutoConfig, PretrainedConfig

from specdecode.max_arch.pipeline import SpeculativePipeline
from specdecode.max_arch.tokenizer import ConversationTokenizer

MODEL_TYPE = "deepseek_v41"
NAME = "DeepseekV41ForCausalLM"


class CheckpointConfig(PretrainedConfig):  # type: ignore[misc]
    """config.json as it stands, for MAX's checks; the model reads the file itself."""

    model_type = MODEL_TYPE


AutoConfig.register(MODEL_TYPE, CheckpointConfig, exist_ok=True)


class OwnModel:
    """Stands where MAX has a `PipelineModel`: the pipeline loads its own model and plans its own memory."""


@dataclass(frozen=True, kw_only=True)
class LengthLimit:
    """MAX's `ArchConfig`: how long a sequence may be."""

    max_seq_len: int

    @classmethod
    def initialize(cls, pipeline_config: Any, model_config: Any = None, *, max_seq_len: int) -> LengthLimit:
        """From what MAX has resolved."""
        return cls(max_seq_len=max_seq_len)

    def get_max_seq_len(self) -> int:
        return self.max_seq_len

    @classmethod
    def calculate_max_seq_len(cls, huggingface_config: Any, model_config: Any) -> int:
        """What the user asks for, up to the checkpoint's max_position_embeddings.

        Raises:
            ValueError: more than that.
        """
        text = huggingface_config.text_config
        most = int(text["max_position_embeddings"] if isinstance(text, dict) else text.max_position_embeddings)
        asked = model_config.max_length
        if asked is not None and asked > most:
            raise ValueError(f"--max-length {asked} is more than the checkpoint's max_position_embeddings, {most}.")
        return int(asked or most)


ARCHITECTURES = [
    SupportedArchitecture(
        name=NAME,
        example_repo_ids=["deepseek-ai/DeepSeek-V4.1-Flash"],
        # MAX asks whether a device has an encoding; the model has its weights in their stored ones, on every device.
        default_encoding="float32",
        supported_encodings={"float8_e4m3fn", "bfloat16", "float32"},
        pipeline_model=OwnModel,
        task=PipelineTask.TEXT_GENERATION,
        tokenizer=ConversationTokenizer,
        default_weights_format=WeightsFormat.safetensors,
        context_type=TextContext,
        config=LengthLimit,
        pipeline_cls=SpeculativePipeline,
    )
]
