"""One training run: its recipe, batches, losses, measured stages, and what it writes.

A stage is timed, not counted, and on a GPU one whole step (forward, backward, optimizer, router balance) is a
CUDA graph: at this size launching kernels would otherwise cost more than running them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import checkpoint
import fused
import numpy as np
import torch
from batches import Corpus, crops, heldout_prompts
from capture import captured
from config import Config
from generate import generate
from layers import Mode
from losses import draft_loss, next_token_loss
from measure import acceptance, bits_per_byte
from model import Model
from moe import Gate
from optim import Optimizer
from torch import Tensor

Losses = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Recipe:
    """Everything that shapes a run; written into the log."""

    rows: int = 64
    length: int = 512
    anchors: int = 96
    muon_lr: float = 6e-3
    adam_lr: float = 3e-3
    warmup: int = 100
    decay: float = 0.85
    tv: float = 0.5
    joint_weight: float = 0.3
    align_weight: float = 0.5
    entropy: float = 0.5
    dense: float = 40
    sparse: float = 200
    joint: float = 100
    align: float = 60
    distil: float = 45
    start_lr: float = 1.0
    distil_lr: float = 0.5
    own_rows: int = 2048
    own_tokens: int = 320
    seed: int = 20260401


class Run:
    """One training run on one device."""

    def __init__(self, corpus: Corpus, config: Config, recipe: Recipe, out: Path, device: torch.device) -> None:
        torch.manual_seed(recipe.seed)
        self.corpus, self.recipe, self.out, self.device = corpus, recipe, out, device
        self.rng = np.random.default_rng(recipe.seed)
        self.mode = Mode(dtype=torch.bfloat16, exact_scores=False)
        self.model = Model(config, corpus.compressed, self.mode).to(device).train()
        self.begin = time.monotonic()
        self.log: list[dict[str, object]] = []
        self.own: Tensor | None = None
        self.steps = 0
        self.state_file: Path | None = None

    def note(self, **row: object) -> None:
        """Append to the log and print."""
        self.log.append({"seconds": round(time.monotonic() - self.begin, 1), "step": self.steps} | row)
        print(self.log[-1], flush=True)

    def batch(self) -> tuple[Tensor, Tensor]:
        """Return ids [B,T] and anchors [B,A]; rows of the target's own text once there are some."""
        recipe = self.recipe
        ids = crops(self.corpus, recipe.rows, recipe.length, self.model.config.vocab_size, self.rng)
        result = torch.from_numpy(ids)
        if self.own is not None:
            length, count = self.own.shape[1], recipe.rows * 3 // 4
            pick = torch.from_numpy(self.rng.integers(0, len(self.own), count))
            result[:count, :length] = self.own[pick]
        limit = recipe.length - self.model.config.dspark_block_size - 1
        anchors = torch.from_numpy(self.rng.integers(0, limit, (recipe.rows, recipe.anchors)))
        return result, anchors

    def target_losses(self, ids: Tensor, anchors: Tensor, weight: float, align: bool) -> Tensor:
        """Run forward and backward for the target (and drafter); return a row of scalars to log."""
        model, recipe = self.model, self.recipe
        out = model(ids)
        logits = model.logits(out.hidden_BTD)
        loss, entropy = next_token_loss(logits, ids)
        index = torch.stack(out.index_losses).sum()
        total = loss + index
        extra = torch.zeros(2 * model.config.dspark_block_size, device=ids.device)
        if weight:
            p = logits if align else logits.detach()
            draft = draft_loss(model, out.taps_BTF, p, ids, anchors, recipe.decay, recipe.tv)
            total = total + weight * draft.total + (recipe.entropy * entropy if align else 0.0)
            extra = torch.cat([draft.tv_G, draft.match_G])
        total.backward()
        return torch.cat([torch.stack([loss, entropy, index]).detach(), extra])

    def drafter_losses(self, ids: Tensor, anchors: Tensor) -> Tensor:
        """Run forward and backward for the drafter alone."""
        model, recipe = self.model, self.recipe
        with torch.no_grad():
            out = model(ids)
            logits = model.logits(out.hidden_BTD)
        draft = draft_loss(model, out.taps_BTF, logits, ids, anchors, recipe.decay, recipe.tv)
        draft.total.backward()
        return torch.cat([draft.total.detach().view(1), draft.tv_G, draft.match_G])

    def stepper(self, losses: Losses, optimizer: Optimizer) -> Callable[[], Tensor]:
        """Return a function that trains one step: a CUDA graph on a GPU, plain calls elsewhere."""
        gates = [m for m in self.model.modules() if isinstance(m, Gate) and m.weight.requires_grad]
        ids, anchors = (t.to(self.device) for t in self.batch())

        def step() -> Tensor:
            for parameter in optimizer.parameters():
                parameter.grad = None
            scalars = losses(ids, anchors)
            optimizer.step()
            with torch.no_grad():
                for gate in gates:
                    gate.balance(2e-3)
            return scalars

        def feed() -> None:
            new_ids, new_anchors = self.batch()
            ids.copy_(new_ids.pin_memory() if ids.is_cuda else new_ids, non_blocking=True)
            anchors.copy_(new_anchors.pin_memory() if ids.is_cuda else new_anchors, non_blocking=True)

        play = captured(step, self.device)
        return lambda: (feed(), play())[1]

    def stage(
        self,
        name: str,
        losses: Losses,
        optimizer: Optimizer,
        seconds: float,
        schedule: Callable[[float], float],
    ) -> None:
        """Train for `seconds`; `schedule` maps the elapsed share to a learning-rate multiplier."""
        fused.enable(self.device.type == "cuda")
        optimizer.lr.zero_()
        step = self.stepper(losses, optimizer)
        self.note(stage=name, event="captured")
        start, count = time.monotonic(), 0
        while True:
            elapsed = time.monotonic() - start
            if elapsed >= seconds:
                break
            warm = min(1.0, (count + 1) / self.recipe.warmup)
            optimizer.lr.fill_(schedule(elapsed / seconds) * warm)
            scalars = step()
            count, self.steps = count + 1, self.steps + 1
            if count % 100 == 0 or count == 10:
                values = [round(v, 4) for v in scalars.tolist()]
                self.note(stage=name, lr=round(optimizer.lr.item(), 4), values=values)
            elif count % 10 == 0 and self.device.type == "cuda":
                torch.cuda.synchronize()
        self.note(stage=name, event="done", steps=count, per_second=round(count / seconds, 2))
        fused.enable(False)

    def measure(self, stage: str, full: bool) -> None:
        """Log held-out bits per byte and acceptance."""
        held = bits_per_byte(self.model, self.corpus.held, self.corpus.held_bytes)
        row: dict[str, object] = {"heldout_bpb": round(held, 4)}
        if full:
            prompts = heldout_prompts(self.corpus, 128, 48, np.random.default_rng(7))
            for temperature in (0.0, 1.0):
                found, _ = acceptance(self.model, prompts, 128, temperature, rows=128)
                row[f"T{temperature:g}"] = [round(found.length, 3), *(round(v, 3) for v in found.conditional)]
        self.model.train()
        self.note(stage=stage, event="measured", **row)

    def write_own(self) -> None:
        """Let the target continue training crops: two thirds sampled, one third greedy."""
        recipe = self.recipe
        prompts = torch.from_numpy(crops(self.corpus, recipe.own_rows, 32, self.model.config.vocab_size, self.rng)).to(
            self.device
        )
        cut = recipe.own_rows * 2 // 3
        seed = int(self.rng.integers(1 << 20))
        parts = [generate(self.model, prompts[:cut], recipe.own_tokens, 1.0, seed)]
        parts.append(generate(self.model, prompts[cut:], recipe.own_tokens, 0.0, seed))
        self.own = torch.cat(parts).cpu()
        self.note(event="wrote own text", tokens=self.own.numel())

    def save(self) -> None:
        """Write the checkpoint, the full-precision state if wanted, and the log."""
        checkpoint.save(self.model, self.out)
        if self.state_file:
            torch.save(self.model.state_dict(), self.state_file)
        document = {"recipe": asdict(self.recipe), "log": self.log}
        (self.out / "log.json").write_text(json.dumps(document) + "\n")

    def optimizer(self, part: str) -> Optimizer:
        """Return a fresh optimizer over the target, the drafter or both, and freeze the rest."""
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(part == "both" or (part == "drafter") == name.startswith("mtp."))
        return Optimizer(self.model, self.device, self.recipe.muon_lr, self.recipe.adam_lr)
