"""Who proposes drafts for a run: `--method` and `--draft-model`, looked up before a model is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from specdecode.cli.settings import Settings
from specdecode.core.errors import ModelError, UsageError
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
from specdecode.core.models.deepseek_v41.eagle_checkpoint import FOLDER
from specdecode.core.models.deepseek_v41.eagle_config import EagleConfig

RULES = {
    "match": "a draft is accepted if it is the token that the target draws itself, keyed by seed and position",
    "rejection": "a draft is accepted with probability min(1, p/q), else redrawn from the residual",
    "block": "drafts are accepted by block verification against the drafter's probabilities",
}


@dataclass(frozen=True, kw_only=True)
class Proposer:
    """Where drafts come from.

    Attributes:
        method: dspark, eagle, ngram or none.
        most: drafts of a round; source: which key of which file says so.
        folder: a drafter's own folder, where it has one.
    """

    method: str
    most: int
    source: str
    folder: Path | None = None

    def width(self, asked: int | None) -> int:
        """Drafts of a round; all that it makes where nobody asks for fewer.

        Raises:
            UsageError: more than it makes.
        """
        if asked is not None and not 0 <= asked <= self.most:
            raise UsageError(
                f"--draft-tokens {asked} is not possible: the {self._owner} drafter makes up to {self.most} "
                f"({self.source} in config.json). Use 0 to {self.most}."
            )
        return self.most if asked is None else asked

    @property
    def _owner(self) -> str:
        return "EAGLE" if self.folder is not None else "checkpoint's"

    def describe(self, width: int, rule: str) -> str:
        """One line for people on how a run speculates, by a rule of acceptance."""
        if width == 0:
            return "plain decoding, one token per step; draws are keyed by seed and position"
        if self.method == "ngram":
            return f"prompt lookup (n-grams of 4 to 2 tokens), up to {width} drafts per round; {rule}"
        name = "EAGLE" if self.method == "eagle" else "DSpark"
        return f"{name} speculation, up to {width} drafts per round ({self.source} {self.most}); {rule}"


def proposer(settings: Settings, model: Path, config: DeepseekV41Config) -> Proposer:
    """What the command line asks for, with the checkpoint in `model`.

    Raises:
        UsageError: a drafter's folder for a method that has none.
        ModelError: the checkpoint comes without such a drafter, or it does not fit.
    """
    text = config.text_config
    if settings.method != "eagle":
        if settings.draft_model is not None:
            raise UsageError("--draft-model names a drafter for --method eagle. Add that, or leave it out.")
        return Proposer(method=settings.method, most=text.dspark_block_size, source="dspark_block_size")
    folder = model / FOLDER if settings.draft_model is None else Path(settings.draft_model).expanduser()
    if not folder.is_dir():
        if settings.draft_model is not None:
            raise ModelError(f"--draft-model {settings.draft_model} is not a folder.")
        raise ModelError(f"{model} comes without an EAGLE drafter ({FOLDER}/). Name one's folder with --draft-model.")
    eagle = EagleConfig.from_folder(folder, text)
    return Proposer(method="eagle", most=eagle.num_draft_tokens, source="num_draft_tokens", folder=folder)
