"""The structural check: float32 arithmetic, every discrete choice equal, every value within rounding.

Tolerances: logits and confidences 2e-4, per-layer streams 2e-5 relative (L2), the rest of a layer's inner values alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from golden.folder import Array, GoldenFolder, Prompt
from golden.report import Report
from golden.runner import Row, Runner

LOGITS, RELATIVE, EQUAL = 2e-4, 2e-5, 0.0


def relative(mine: Array, reference: Array) -> float:
    """L2 error relative to the reference."""
    return float(np.linalg.norm(mine - reference) / max(np.linalg.norm(reference), 1e-30))


def largest(mine: Array, reference: Array) -> float:
    return float(np.abs(mine - reference).max(initial=0.0))


def differing(mine: Any, reference: Any) -> float:
    """How many entries differ; shapes must agree."""
    a, b = np.asarray(mine), np.asarray(reference)
    return float("nan") if a.shape != b.shape else float((a != b).sum())


class Fp32Check:
    """All comparisons of one golden folder in fp32 mode."""

    def __init__(self, folder: GoldenFolder, runner: Runner, report: Report) -> None:
        self.folder, self.runner, self.report, self.text = folder, runner, report, runner.text

    def run(self) -> None:
        for prompt in self.folder.prompts:
            out = self.runner.run([Row(slot=0, before=(), tokens=prompt.ids)])
            self._prefill(prompt, out)
            self._caches(prompt)
            self._chunks(prompt, out["logits"])
            self._decode(prompt)
            self._verify_many(prompt)
            self._speculate(prompt)
        self._ragged([p for p in self.folder.prompts if self.folder.tensor(p, "logits") is not None][-4:])

    def _tensor(
        self,
        item: str,
        prompt: Prompt,
        what: str,
        mine: Array,
        *,
        common: bool = False,
        tolerance: float = RELATIVE,
    ) -> None:
        reference = self.folder.tensor(prompt, what, common=common)
        if reference is None:
            return
        error = {EQUAL: differing, LOGITS: largest}.get(tolerance, relative)(mine, reference)
        self.report.add(item, error, tolerance, f"{prompt.name}.{what}")

    def _prefill(self, prompt: Prompt, out: dict[str, Array]) -> None:
        layers = range(self.text.num_hidden_layers)
        if "hash_ids" in out:
            self._tensor("engram ids", prompt, "hash_ids", out["hash_ids"], common=True, tolerance=EQUAL)
        self._tensor("embeddings", prompt, "embed", out["embed"][:, 0], common=True, tolerance=EQUAL)
        stack = {
            "resid_hc": "per-layer streams",
            "pre_mix": "pre-mix",
            "attn_out": "attention outputs",
            "ffn_out": "expert outputs",
            "moe_w": "expert weights",
        }
        for what, item in stack.items():
            mine = np.stack([out[f"{what}.{i}"] for i in layers])
            if what == "pre_mix":
                mine = mine[..., : self.text.hc_mult]
            reference = self.folder.tensor(prompt, what)
            for i in layers if reference is not None else ():
                self.report.add(item, relative(mine[i], reference[i]), RELATIVE, f"{prompt.name}.{what}[{i}]")
        mean = np.stack([out[f"resid_hc.{i}"].mean(1) for i in layers])
        reference = self.folder.tensor(prompt, "resid")
        for i in layers if reference is not None else ():
            self.report.add("per-layer residual", relative(mean[i], reference[i]), RELATIVE, f"{prompt.name}[{i}]")
        self._tensor("expert ids", prompt, "moe_ids", np.stack([out[f"moe_ids.{i}"] for i in layers]), tolerance=EQUAL)
        for name in [n for n in out if n.startswith("engram_out")]:
            self._tensor("Engram outputs", prompt, name, out[name])
        self._selections(prompt, out)
        self._tensor("drafter features", prompt, "main_hidden", out["main_hidden"])
        self._tensor("logits", prompt, "logits", out["logits"], tolerance=LOGITS)
        drafted = self.folder.result(prompt).get("prefill_draft")
        if drafted:
            self._tensor("draft logits", prompt, "prefill_draft_logits", out["draft_logits"], tolerance=LOGITS)
            self.report.add(
                "draft ids",
                differing(out["next_draft_tokens"][0], drafted["ids"][1:]),
                EQUAL,
                f"{prompt.name} after prefill",
            )
            self.report.add(
                "confidences",
                largest(out["confidence"][0], np.array(drafted["confidence"])),
                LOGITS,
                f"{prompt.name} after prefill",
            )

    def _selections(self, prompt: Prompt, out: dict[str, Array]) -> None:
        for name in [n for n in out if n.startswith("topk.L")]:
            reference = self.folder.tensor(prompt, name)
            if reference is not None:
                mine = out[name][:, : reference.shape[1]]
                self.report.add("index selections", differing(mine, reference), EQUAL, f"{prompt.name}.{name}")
        for name in [n for n in out if n.startswith("cand.L")]:
            reference = self.folder.tensor(prompt, name)
            if reference is not None:
                mask = block_mask(out[name], self.text.candidate_block_size, reference.shape[1])
                visible = visible_rows(reference.shape, 1)
                self.report.add(
                    "candidate blocks",
                    differing(mask & visible, reference.astype(bool) & visible),
                    EQUAL,
                    f"{prompt.name}.{name}",
                )
        for name in [n for n in out if n.startswith("latent.L")]:
            ratio = self.text.compress_ratio(int(name.split("L")[-1]))
            self._tensor("compressed latents", prompt, name, out[name][ratio - 1 :: ratio])

    def _caches(self, prompt: Prompt) -> None:
        pages = self.runner.pages
        for item, what, leaf, offsets in (
            ("compressed KV", "ckv_cache", "compressed", pages.kv_offsets),
            ("index keys", "index_k", "keys", pages.key_offsets),
        ):
            for layer, offset in offsets.items():
                ratio = self.text.compress_ratio(layer)
                rows = self.runner.rows_of(leaf, 0, offset, ratio, len(prompt.ids) // ratio)
                self._tensor(item, prompt, f"{what}.L{layer}", rows)

    def _chunks(self, prompt: Prompt, whole: Array) -> None:
        """Any chunking of the prompt gives the one-shot numbers, bit for bit."""
        ids = prompt.ids
        for sizes in ((1,), (2,), (3,), (5,), (1, 6, 2, 9)):
            cuts, i = [0], 0
            while cuts[-1] < len(ids):
                cuts.append(min(cuts[-1] + sizes[i % len(sizes)], len(ids)))
                i += 1
            parts = [
                self.runner.run([Row(slot=1, before=ids[:a], tokens=ids[a:b])], draft=False)["logits"]
                for a, b in pairwise(cuts)
            ]
            self.report.add(
                "chunked prefill = one shot",
                largest(np.concatenate(parts), whole),
                EQUAL,
                f"{prompt.name} in chunks of {sizes}",
            )

    def _decode(self, prompt: Prompt) -> None:
        result = self.folder.result(prompt)
        if not result:
            return
        tokens, steps = result["tokens"], prompt.n_decode
        before = prompt.ids
        logits, hidden, picked = [], [], []
        drafts: list[tuple[Array, Array, Array]] = []
        chosen: dict[str, list[Array]] = {}
        for i in range(steps):
            out = self.runner.run([Row(slot=0, before=before, tokens=(tokens[i],))])
            before = (*before, tokens[i])
            logits.append(out["logits"][0])
            hidden.append(out["main_hidden"][0])
            picked.append(int(out["next_tokens"][0]))
            drafts.append((out["next_draft_tokens"][0], out["draft_logits"], out["confidence"][0]))
            for name in [n for n in out if n.startswith("topk.L")]:
                chosen.setdefault(name, []).append(out[name][0])
        self._tensor("decode logits", prompt, "decode_logits", np.stack(logits), tolerance=LOGITS)
        self._tensor("drafter features", prompt, "decode_main_hidden", np.stack(hidden))
        self.report.add("greedy tokens", differing(picked, tokens[1 : steps + 1]), EQUAL, prompt.name)
        for name, rows in chosen.items():
            self._tensor("decode index selections", prompt, f"decode_{name}", np.stack(rows), tolerance=EQUAL)
        if result.get("draft_ids"):
            mine = np.stack([ids for ids, _, _ in drafts])
            self.report.add("draft ids", differing(mine, np.array(result["draft_ids"])[:, 1:]), EQUAL, prompt.name)
            self.report.add(
                "confidences",
                largest(np.stack([c for _, _, c in drafts]), np.array(result["draft_confidence"])),
                LOGITS,
                prompt.name,
            )
        reference = self.folder.tensor(prompt, "draft_logits")
        if reference is not None:
            mine = np.stack([values for _, values, _ in drafts[: len(reference)]])
            self.report.add("draft logits", largest(mine, reference), LOGITS, prompt.name)

    def _verify_many(self, prompt: Prompt) -> None:
        """Verifying 1 … block right drafts at once gives the one-token-at-a-time logits, bit for bit."""
        tokens = self.folder.result(prompt).get("tokens")
        if not tokens:
            return
        single = []
        self.runner.run([Row(slot=2, before=(), tokens=prompt.ids)], draft=False)
        for i in range(self.text.dspark_block_size + 1):
            out = self.runner.run([Row(slot=2, before=(*prompt.ids, *tokens[:i]), tokens=(tokens[i],))], draft=False)
            single.append(out["logits"][0])
        for width in range(1, self.text.dspark_block_size + 1):
            row = Row(slot=0, before=prompt.ids, tokens=(tokens[0],), drafts=tuple(tokens[1 : width + 1]))
            self.runner.run([Row(slot=0, before=(), tokens=prompt.ids)], draft=False)
            out = self.runner.run([row], draft=False)
            self.report.add(
                "multi-token verify = decode",
                largest(out["logits"], np.stack(single[: width + 1])),
                EQUAL,
                f"{prompt.name} width {width}",
            )
            self.report.add("accepted counts", differing(out["num_accepted"], [width]), EQUAL, f"{prompt.name} forced")

    def _speculate(self, prompt: Prompt) -> None:
        """The golden rounds again: draft, verify the block at once, accept, bonus."""
        spec = self.folder.result(prompt).get("spec")
        if not spec:
            return
        tokens = self.folder.result(prompt)["tokens"]
        out = self.runner.run([Row(slot=0, before=(), tokens=prompt.ids)])
        before, made = prompt.ids, [int(out["next_tokens"][0])]
        while spec["rounds"] and len(before) - 1 < spec["rounds"][0]["start_pos"]:
            out = self.runner.run([Row(slot=0, before=before, tokens=(made[-1],))])
            before = (*before, made[-1])
            made.append(int(out["next_tokens"][0]))
        for number, expected in enumerate(spec["rounds"]):
            where = f"{prompt.name} round {number}"
            draft = tuple(int(t) for t in out["next_draft_tokens"][0])
            self.report.add("round drafts", differing(draft, expected["draft"]), EQUAL, where)
            out = self.runner.run([Row(slot=0, before=before, tokens=(made[-1],), drafts=draft)])
            accepted = int(out["num_accepted"][0])
            self.report.add("accepted counts", differing(accepted, expected["accepted"]), EQUAL, where)
            before = (*before, made[-1], *draft[:accepted])
            made += [*draft[:accepted], int(out["next_tokens"][0])]
        self.report.add("speculative tokens", differing(made[: len(tokens)], tokens[: len(made)]), EQUAL, prompt.name)

    def _ragged(self, prompts: Sequence[Prompt]) -> None:
        """Several prompts in one call give each prompt's own numbers."""
        rows = [Row(slot=i, before=(), tokens=p.ids) for i, p in enumerate(prompts)]
        if not rows:
            return
        logits, at = self.runner.run(rows)["logits"], 0
        for prompt in prompts:
            mine, at = logits[at : at + len(prompt.ids)], at + len(prompt.ids)
            self._tensor("ragged batch logits", prompt, "logits", mine, tolerance=LOGITS)


def block_mask(blocks: Array, size: int, rows: int) -> Array:
    """Candidate block ids [T, NB] (-1: none) as a mask [T, rows]."""
    mask = np.zeros((len(blocks), -(-rows // size)), bool)
    t, i = np.nonzero(blocks >= 0)
    mask[t, blocks[t, i]] = True
    return np.repeat(mask, size, axis=1)[:, :rows]


def visible_rows(shape: tuple[int, ...], ratio: int) -> Array:
    """Which compressed rows [T, J] each query of a sequence from its start sees."""
    visible: Array = np.arange(shape[1])[None] < ((np.arange(shape[0]) + 1) // ratio)[:, None]
    return visible
