"""The check of the model's own arithmetic: layers one at a time, then statistics from end to end.

One flipped code changes everything after it, so whole runs are compared statistically only; each layer, fed from golden
streams, must add what the reference adds: median row <= 0.035, 90 % of rows <= 0.06.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from golden.folder import Array, GoldenFolder, Prompt
from golden.report import Report
from golden.runner import Row, Runner

MEDIAN, NINETY, COSINE, AGREE, SAME_SETS = 0.035, 0.06, 0.85, 0.60, 0.90


def row_errors(mine: Array, reference: Array) -> Array:
    """Per row, L2 error relative to the reference row."""
    a, b = mine.reshape(len(mine), -1), reference.reshape(len(reference), -1)
    out: Array = np.linalg.norm(a - b, axis=1) / np.maximum(np.linalg.norm(b, axis=1), 1e-30)
    return out


def cosine(a: Array, b: Array) -> Array:
    out: Array = (a * b).sum(-1) / (np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1) + 1e-30)
    return out


class ExactCheck:
    """All comparisons of one golden folder in exact mode."""

    def __init__(self, folder: GoldenFolder, runner: Runner, report: Report) -> None:
        self.folder, self.runner, self.report, self.text = folder, runner, report, runner.text
        self._errors: dict[tuple[str, int], list[Array]] = {}
        self._same: dict[str, list[bool]] = {}

    def run(self) -> None:
        for prompt in self.folder.prompts:
            self._layers(prompt)
        for (what, layer), parts in self._errors.items():
            errors = np.concatenate(parts)  # of all prompts: one flipped choice in a short prompt is not a fault
            self.report.add(f"{what} adds: median row", float(np.median(errors)), MEDIAN, f"L{layer}")
            self.report.add(f"{what} adds: 90 % of rows", float(np.quantile(errors, 0.9)), NINETY, f"L{layer}")
        for what, same in self._same.items():
            self.report.add(f"{what}: rows with the same set", float(np.mean(same)), SAME_SETS, what, at_least=True)
        self._end_to_end()

    def _layers(self, prompt: Prompt) -> None:
        after, pre = self.folder.tensor(prompt, "resid_hc"), self.folder.tensor(prompt, "pre_mix")
        embed = self.folder.tensor(prompt, "embed", common=True)
        if after is None or pre is None or embed is None:
            return
        copies = self.text.hc_mult
        streams = np.concatenate([np.repeat(embed[None, :, None], copies, 2), after[:-1]])
        first = np.zeros((1, *pre.shape[1:]), np.float32)
        first[..., 0] = 1
        out = self.runner.run(
            [Row(slot=0, before=(), tokens=prompt.ids)],
            draft=False,
            streams=streams,
            pre=np.concatenate([first, pre[:-1]]),
        )
        for i in range(self.text.num_hidden_layers):
            entered = streams[i]
            if i in self.text.engram_layer_ids:
                golden = self.folder.tensor(prompt, f"engram_out.L{i}")
                if golden is not None:
                    self._rows("Engram", out[f"engram_out.L{i}"] - entered, golden - entered, i)
                    entered = golden
            self._rows("layer", out[f"resid_hc.{i}"] - entered, after[i] - entered, i)
        self._selections(prompt, out)

    def _rows(self, what: str, mine: Array, reference: Array, layer: int) -> None:
        self._errors.setdefault((what, layer), []).append(row_errors(mine, reference))

    def _selections(self, prompt: Prompt, out: dict[str, Array]) -> None:
        """Index selections and experts of a layer fed from golden streams, as sets; near-ties are excused."""
        for name in [n for n in out if n.startswith("topk.L")]:
            golden, gap = self.folder.tensor(prompt, name), self.folder.tensor(prompt, f"topk_gap.{name[5:]}")
            if golden is not None and gap is not None:
                self._sets("index selection", out[name], golden, gap)
        golden, gap = self.folder.tensor(prompt, "moe_ids"), self.folder.tensor(prompt, "moe_gap")
        for i in range(self.text.num_hidden_layers) if golden is not None and gap is not None else ():
            self._sets("experts", out[f"moe_ids.{i}"], golden[i], gap[i])

    def _sets(self, what: str, mine: Array, golden: Array, gap: Array) -> None:
        finite = gap[np.isfinite(gap)]
        # A gap below 1 % of the largest one stands for "below 1 % of the score spread", which golden does not record.
        clear = gap >= 0.01 * finite.max(initial=0.0)
        pairs = zip(mine[clear], golden[clear], strict=True)
        self._same.setdefault(what, []).extend(set(a[a >= 0]) == set(b[b >= 0]) for a, b in pairs)

    def _end_to_end(self) -> None:
        """Logits of whole runs with golden tokens forced: cosine and argmax agreement over all prompts."""
        mine: dict[str, list[Array]] = {"prefill": [], "decode": [], "draft": []}
        theirs: dict[str, list[Array]] = {"prefill": [], "decode": [], "draft": []}
        for prompt in self.folder.prompts:
            out = self.runner.run([Row(slot=0, before=(), tokens=prompt.ids)])
            self._pair(mine, theirs, "prefill", [out["logits"]], self.folder.tensor(prompt, "logits"))
            if self.folder.result(prompt).get("prefill_draft"):
                self._pair(
                    mine,
                    theirs,
                    "draft",
                    [out["draft_logits"]],
                    self.folder.tensor(prompt, "prefill_draft_logits"),
                )
            golden = self.folder.tensor(prompt, "decode_logits")
            if golden is not None:
                tokens, before, steps = self.folder.result(prompt)["tokens"], prompt.ids, []
                for token in tokens[: len(golden)]:
                    steps.append(self.runner.run([Row(slot=0, before=before, tokens=(token,))], draft=False)["logits"])
                    before = (*before, token)
                self._pair(mine, theirs, "decode", steps, golden)
        for name, rows in mine.items():
            if rows:
                a, b = np.concatenate(rows), np.concatenate(theirs[name])
                self.report.add(
                    f"{name} logits: median cosine",
                    float(np.median(cosine(a, b))),
                    COSINE,
                    name,
                    at_least=True,
                )
                self.report.add(
                    f"{name} logits: argmax equal",
                    float((a.argmax(-1) == b.argmax(-1)).mean()),
                    AGREE,
                    name,
                    at_least=True,
                )

    @staticmethod
    def _pair(
        mine: dict[str, list[Array]],
        theirs: dict[str, list[Array]],
        name: str,
        rows: Sequence[Array],
        golden: Array | None,
    ) -> None:
        if golden is not None:
            mine[name].append(np.concatenate(rows))
            theirs[name].append(golden)
