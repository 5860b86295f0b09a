"""Train the demo checkpoint: target, quantisation-aware target with drafter, then the drafter alone.

    python train.py --data tokens.npz --model presets/demo --out run --minutes 7

Stages, in order (`--stages` picks some, the recipe's shares divide the minutes among them):
`dense`   the target attends to every compressed row while its indexer learns;
`sparse`  the target attends to the indexer's choices;
`joint`   all quantisers act, and the drafter's loss reaches the target through its taps;
`align`   the target's entropy is lowered and it moves towards what the drafter can predict;
`distil`  the target is frozen, the drafter learns from text that the target wrote.
A checkpoint and log.json are written after each of the last three.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import checkpoint
import torch
from batches import Corpus
from config import Config
from optim import Optimizer
from run import Recipe, Run


def train(run: Run, stages: list[str], seconds: float) -> None:
    """Run the chosen stages; learning rates fall from stage to stage and end near zero twice."""
    recipe, mode = run.recipe, run.mode
    shares = {name: getattr(recipe, name) for name in stages}
    times = {name: seconds * share / sum(shares.values()) for name, share in shares.items()}
    optimizer: Optimizer | None = None
    top = recipe.start_lr
    for name in stages:
        mode.dense = name == "dense"
        mode.quant_acts = mode.quant_weights = name not in ("dense", "sparse")
        if name in ("dense", "sparse"):
            optimizer = optimizer or run.optimizer("target")
            end = top if name == "dense" else top / 2
            losses = partial(run.target_losses, weight=0.0, align=False)
        elif name == "joint":
            optimizer, end = run.optimizer("both"), top / 2
            losses = partial(run.target_losses, weight=recipe.joint_weight, align=False)
        elif name == "align":
            optimizer, end = optimizer or run.optimizer("both"), 0.005
            losses = partial(run.target_losses, weight=recipe.align_weight, align=True)
        else:
            run.write_own()
            optimizer, top, end = run.optimizer("drafter"), recipe.distil_lr, 0.005
            losses = run.drafter_losses
        run.stage(name, losses, optimizer, times[name], partial(lambda a, b, s: a + (b - a) * s, top, end))
        top = end
        run.measure(name, name not in ("dense", "sparse"))
        if name not in ("dense", "sparse"):
            run.save()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="tokens.npz written by pack.py")
    parser.add_argument("--model", type=Path, required=True, help="folder with config.json")
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint and log.json")
    parser.add_argument("--minutes", type=float, default=7.0, help="training time of all stages together")
    parser.add_argument("--stages", default="dense,sparse,joint,align,distil", help="which stages to run")
    parser.add_argument("--resume", type=Path, help="state file, or folder of a checkpoint, to start from")
    parser.add_argument("--state", type=Path, help="file for the full-precision state after every stage")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="change the recipe")
    args = parser.parse_args()
    changes = dict(item.split("=", 1) for item in args.set)
    types = {name: type(value) for name, value in asdict(Recipe()).items()}
    recipe = replace(Recipe(), **{name: types[name](value) for name, value in changes.items()})
    torch.backends.cuda.matmul.allow_tf32 = True
    args.out.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    run = Run(Corpus(args.data), Config.load(args.model), recipe, args.out, device)
    run.state_file = args.state
    parameters = sum(p.numel() for p in run.model.parameters())
    run.note(event="start", device=device.type, parameters=parameters, stages=args.stages)
    if args.resume and args.resume.is_dir():
        checkpoint.load(run.model, args.resume)
    elif args.resume:
        run.model.load_state_dict(torch.load(args.resume, map_location=device))
    train(run, args.stages.split(","), args.minutes * 60)


if __name__ == "__main__":
    main()
