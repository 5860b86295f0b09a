"""Train the EAGLE drafter of a finished checkpoint, whose target stays as it is.

    python eagle_train.py --data tokens.npz --model presets/demo --out run3 --seconds 150

Every sequence is unrolled from all its positions at once, as drafting would do it: the first row of a branch
reads the target's taps, later rows the drafter's own output. Writes OUT/eagle and OUT/eagle_log.json.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import checkpoint
import eagle_export
import numpy as np
import torch
import torch.nn.functional as F
from batches import Corpus, heldout_prompts
from capture import captured
from config import Config
from eagle import Eagle, EagleConfig
from eagle_data import Pool, make_pool
from eagle_measure import PROMPT, report
from layers import Mode
from losses import distances, match_label
from model import Model
from optim import Optimizer
from torch import Tensor, nn

BALANCE_RATE, LOG_EVERY = 2e-3, 100
COLUMNS = "values: loss, total variation at steps 1-4, coupled matches at steps 1-4"


@dataclass(frozen=True)
class Recipe:
    """Everything that shapes a run; written into the log."""

    rows: int = 32
    steps: int = 4
    muon_lr: float = 6e-3
    adam_lr: float = 3e-3
    warmup: int = 100
    last_lr: float = 0.005
    decay: float = 0.85
    tv: float = 0.5
    sure: float = 0.1
    own_rows: int = 3072
    own_tokens: int = 384
    crop_rows: int = 3072
    prompts: int = 128
    new: int = 128
    seed: int = 20261130


def unrolled_loss(
    eagle: Eagle, model: Model, ids_BT: Tensor, taps_BTF: Tensor, hidden_BTD: Tensor, recipe: Recipe
) -> tuple[Tensor, Tensor]:
    """Return the loss, and total variation and coupled matches by step [2,G].

    A draft is only judged when every earlier draft was accepted, which means they equal the sequence; so the
    sequence's tokens are what every row sees.
    """
    with torch.no_grad():
        law = model.logits(hidden_BTD).log_softmax(-1)
    anchors, steps, gate = ids_BT.shape[1] - recipe.steps, recipe.steps, eagle.layer.ffn.gate
    weights = recipe.decay ** np.arange(steps)
    total = law.new_zeros(())
    loads, shown = [], []
    guess, branches = eagle.start(model, taps_BTF[:, :anchors], ids_BT[:, 1 : anchors + 1])
    for step in range(steps):
        if step:
            guess, branches = eagle.extend(model, branches, ids_BT[:, step + 1 : step + 1 + anchors])
        loads.append(gate.load.clone())
        p, q = law[:, step + 1 : step + 1 + anchors], guess.logits
        kl, distance = distances(p, q)
        noise = -torch.log(-torch.log(torch.rand_like(q).clamp(1e-9, 1 - 1e-7)))
        match = match_label(p, q.detach(), noise)
        score = eagle.confidence(replace(guess, state=guess.state.detach(), row=guess.row.detach()))
        sure = F.binary_cross_entropy_with_logits(score, match)
        distill = ((1 - recipe.tv) * kl + recipe.tv * distance).mean()
        total = total + float(weights[step] / weights.sum()) * distill + recipe.sure / steps * sure
        shown.append(torch.stack([distance.detach().mean(), match.mean()]))
    gate.load.copy_(torch.stack(loads).mean(0))
    return total, torch.stack(shown, 1)


def truncate(head_a: Tensor, head_b: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return the two factors [V,rank] nearest to the product head_a @ head_b.T of a higher rank."""
    (qa, ra), (qb, rb) = torch.linalg.qr(head_a), torch.linalg.qr(head_b)
    u, s, vh = torch.linalg.svd(ra @ rb.T)
    root = s[:rank].sqrt()
    return qa @ u[:, :rank] * root, qb @ vh[:rank].T * root


@torch.no_grad()
def begin_from(eagle: Eagle, model: Model) -> None:
    """Start from DSpark's first stage, its norm and its Markov head; add embedding and taps in `proj`."""
    first, last = model.mtp[0], model.mtp[-1]
    own = eagle.layer.state_dict()
    eagle.layer.load_state_dict({name: value for name, value in first.state_dict().items() if name in own})
    eagle.fc.load_state_dict(first.main_proj.state_dict())
    eagle.fc_norm.load_state_dict(first.main_norm.state_dict())
    eagle.norm.load_state_dict(last.norm.state_dict())
    rank = eagle.eagle_config.markov_rank
    embed, head = truncate(last.markov_head.embed.weight, last.markov_head.head.weight, rank)
    eagle.markov_head.embed.weight.copy_(embed)
    eagle.markov_head.head.weight.copy_(head)
    unit = torch.eye(len(eagle.norm.weight), device=embed.device)
    eagle.proj.weight.mul_(0.2).add_(torch.cat([unit, unit], 1))


class Log:
    """Rows of the run, printed as they come."""

    def __init__(self, recipe: Recipe, out: Path) -> None:
        self.begin, self.recipe, self.out = time.monotonic(), recipe, out
        self.rows: list[dict[str, object]] = []

    def note(self, **row: object) -> None:
        """Append a row, print it and write the file."""
        self.rows.append({"seconds": round(time.monotonic() - self.begin, 1)} | row)
        print(self.rows[-1], flush=True)
        rows = ",\n  ".join(json.dumps(line) for line in self.rows)
        head = json.dumps({"columns": COLUMNS, "recipe": asdict(self.recipe)})
        (self.out / "eagle_log.json").write_text(f'{head[:-1]},\n "log": [\n  {rows}]}}\n')


def train(eagle: Eagle, model: Model, pool: Pool, recipe: Recipe, seconds: float, log: Log) -> None:
    """Train for `seconds`, the learning rate falling linearly; export now and then."""
    device = pool.ids.device
    rng = np.random.default_rng(recipe.seed + 1)
    optimizer = Optimizer(nn.ModuleDict({"eagle": eagle}), device, recipe.muon_lr, recipe.adam_lr)
    chosen = pool.pick(recipe.rows, rng).to(device)

    def step() -> Tensor:
        for parameter in optimizer.parameters():
            parameter.grad = None
        loss, shown = unrolled_loss(eagle, model, pool.ids[chosen], pool.taps[chosen], pool.hidden[chosen], recipe)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            eagle.layer.ffn.gate.balance(BALANCE_RATE)
        return torch.cat([loss.detach().view(1), shown.flatten()])

    play = captured(step, device)
    log.note(event="captured")
    start, count, exported = time.monotonic(), 0, 0.0
    while (elapsed := time.monotonic() - start) < seconds:
        falling = 1 + (recipe.last_lr - 1) * elapsed / seconds
        optimizer.lr.fill_(falling * min(1.0, (count + 1) / recipe.warmup))
        chosen.copy_(pool.pick(recipe.rows, rng))
        scalars = play()
        count += 1
        if count % LOG_EVERY == 0 or count in (1, 10):
            log.note(step=count, lr=round(optimizer.lr.item(), 4), values=[round(v, 4) for v in scalars.tolist()])
        elif count % 10 == 0 and device.type == "cuda":
            torch.cuda.synchronize()
        if elapsed - exported > 30:
            exported = elapsed
            eagle_export.save(eagle, log.out / "eagle")
    log.note(event="done", steps=count, per_second=round(count / seconds, 2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="tokens.npz written by pack.py")
    parser.add_argument("--model", type=Path, required=True, help="checkpoint folder of the target")
    parser.add_argument("--out", type=Path, required=True, help="folder for eagle/ and eagle_log.json")
    parser.add_argument("--seconds", type=float, default=150.0, help="training time, text and measurement excluded")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="change the recipe")
    args = parser.parse_args()
    changes = dict(item.split("=", 1) for item in args.set)
    types = {name: type(value) for name, value in asdict(Recipe()).items()}
    recipe = replace(Recipe(), **{name: types[name](value) for name, value in changes.items()})
    args.out.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(recipe.seed)
    corpus, config, log = Corpus(args.data), Config.load(args.model), Log(recipe, args.out)
    model = Model(config, corpus.compressed, Mode(dtype=torch.bfloat16, quant_acts=True, exact_scores=False))
    checkpoint.load(model, args.model)
    model.to(device).eval().requires_grad_(False)
    mode = Mode(dtype=torch.bfloat16, quant_acts=True, quant_weights=True, exact_scores=False)
    eagle = Eagle(config, EagleConfig(), mode).to(device).train()
    begin_from(eagle, model)
    log.note(event="start", device=device.type, parameters=sum(p.numel() for p in eagle.parameters()))
    rng = np.random.default_rng(recipe.seed)
    pool = make_pool(model, corpus, recipe.own_rows, recipe.crop_rows, recipe.own_tokens, rng)
    log.note(event="pool", own=recipe.own_rows, crops=recipe.crop_rows, tokens=pool.ids.numel())
    torch.backends.cuda.matmul.allow_tf32 = True
    train(eagle, model, pool, recipe, args.seconds, log)
    torch.backends.cuda.matmul.allow_tf32, model.mode.exact_scores = False, True
    eagle_export.save(eagle, args.out / "eagle")
    exported = eagle_export.load(args.out / "eagle", config, model.mode).to(device).eval()
    prompts = heldout_prompts(corpus, recipe.prompts, PROMPT, np.random.default_rng(7))
    for temperature in (0.0, 1.0):
        log.note(event="measured", **report(exported, model, prompts, temperature, recipe.new))


if __name__ == "__main__":
    main()
