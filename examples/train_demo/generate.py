"""Plain decoding with the training model, many sequences at once, and the position-keyed Gumbel noise.

The next token at a position is argmax(logits / T + g) with g drawn from (seed, position). A drafter that adds
the same g samples the same token whenever its distribution is close enough: coupled draws.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import quant
import torch
from compress import Published
from engram import Table
from fused import enable
from layers import Linear
from model import Model
from moe import Experts
from torch import Tensor


def gumbel(seed: int, position: int, rows: int, vocab: int, device: torch.device) -> Tensor:
    """Return the noise [rows, vocab] of one position."""
    generator = torch.Generator(device=device).manual_seed(seed * 1_000_003 + position)
    uniform = torch.rand(rows, vocab, generator=generator, device=device)
    return -torch.log(-torch.log(uniform.clamp(1e-9, 1 - 1e-7)))


@contextmanager
def baked(model: Model) -> Iterator[None]:
    """Hold every weight at its exported value meanwhile, so that steps need not quantise weights again."""
    if not model.mode.quant_weights:
        yield
        return
    masters = {name: value.detach().clone() for name, value in model.named_parameters()}
    for name, module in model.named_modules():
        stored: list[tuple[Tensor, Tensor]] = []
        if isinstance(module, Linear):
            stored = [(module.weight, module.value())]
        elif isinstance(module, Table):
            stored = [(module.weight, quant.fp8_rows(module.weight))]
        elif isinstance(module, Experts):
            stored = [(weight, quant.mxfp4(weight)) for weight in (module.w1, module.w3, module.w2)]
        elif name == "head" or name.endswith((".gate", "_head.embed", "_head.head", "_head.proj")):
            stored = [(module.weight, module.weight.bfloat16())]
        for parameter, value in stored:
            parameter.data.copy_(value.detach().float())
    model.mode.quant_weights = False
    yield
    model.mode.quant_weights = True
    for name, parameter in model.named_parameters():
        parameter.data.copy_(masters[name])


class Decoder:
    """One decoding step over a fixed batch, captured as a CUDA graph on a GPU."""

    def __init__(self, model: Model, rows: int, capacity: int) -> None:
        device = model.head.weight.device
        self.model = model
        self.position = torch.zeros((), dtype=torch.long, device=device)
        self.recent = torch.zeros(rows, model.config.engram_max_ngram_size, dtype=torch.long, device=device)
        self.shared = Published(position=self.position, capacity=capacity)
        self.graph: torch.cuda.CUDAGraph | None = None
        if device.type == "cuda":
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self._run()
            torch.cuda.current_stream().wait_stream(stream)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.logits = self._run()

    def _run(self) -> Tensor:
        shared = Published(self.shared.cache, self.position, self.shared.capacity)
        return self.model.logits(self.model(self.recent, shared).hidden_BTD[:, -1])

    def step(self, ids_B: Tensor, position: int) -> Tensor:
        """Feed the token at `position`; return the logits [B,V] of the next one."""
        self.position.fill_(position)
        self.recent.copy_(torch.cat([self.recent[:, 1:], ids_B.unsqueeze(1)], 1))
        if self.graph is None:
            return self._run()
        self.graph.replay()
        return self.logits


@torch.no_grad()
def generate(model: Model, prompts_BT: Tensor, new: int, temperature: float, seed: int) -> Tensor:
    """Return the prompts followed by `new` tokens each; temperature 0 takes the argmax."""
    training = model.training
    model.eval()
    enable(False)
    with baked(model):
        rows, prompt = prompts_BT.shape
        decoder = Decoder(model, rows, -(-(prompt + new) // 64) * 64)
        ids = torch.zeros(rows, prompt + new, dtype=torch.long, device=prompts_BT.device)
        ids[:, :prompt] = prompts_BT
        for position in range(prompt + new - 1):
            logits = decoder.step(ids[:, position], position)
            if position + 1 < prompt:
                continue
            if temperature > 0:
                logits = logits / temperature + gumbel(seed, position + 1, *logits.shape, logits.device)
            ids[:, position + 1] = logits.argmax(-1)
    model.train(training)
    return ids
