"""The target's law and the acceptance rules once more, in NumPy and by the definitions; kernels share nothing of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
NOTHING = -np.inf
TESTING, CORRECTING, DRAFTING = 0x74657374, 0x636F7272, 0x6472616674


def mix(x: int) -> int:
    """SplitMix64's finaliser."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def key_of(seed: int, position: int) -> int:
    return mix((mix((seed + GOLDEN) & MASK) + position * GOLDEN) & MASK)


def fresh(seed: int, start: int, purpose: int) -> int:
    return mix(key_of(seed, start) ^ purpose)


def uniform(key: int, token: int) -> float:
    """A uniform in (0, 1) with 32 bits."""
    return ((mix((key + (token + 1) * GOLDEN) & MASK) >> 32) + 0.5) * 2.0**-32


def gumbel(key: int, size: int) -> NDArray[np.float64]:
    return np.array([-np.log(-np.log(uniform(key, token))) for token in range(size)])


@dataclass(frozen=True, kw_only=True)
class Law:
    """What a request asks for. edits: token -> (banned, seen, count, bias)."""

    temperature: float
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    edits: dict[int, tuple[bool, bool, int, float]]
    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    free_from: int = 0


def edited(row: NDArray[np.float32], law: Law, drafts: Sequence[int], position: int, allowed=None):
    """A row behind `drafts`, its token's position given, and what a grammar allows; float32 [V]."""
    z = row.astype(np.float32).copy()
    if allowed is not None:
        z[~allowed] = NOTHING
    f = np.float32
    for token in {*law.edits, *drafts}:
        banned, seen, count, bias = law.edits.get(token, (False, False, 0, 0.0))
        if banned and position < law.free_from:
            z[token] = NOTHING
            continue
        v = f(z[token] + f(bias))
        times = list(drafts).count(token)
        if seen or times:
            v = f(v / f(law.repetition)) if v > 0 else f(v * f(law.repetition))
        if count + times:
            v = f(v - f(f(f(law.frequency) * f(count + times)) + f(law.presence)))
        z[token] = v
    return z


def kept(z: NDArray[np.float32], law: Law) -> NDArray[np.bool_]:
    """Tokens that min_p, top_k and then top_p leave."""
    heat = max(float(np.float32(law.temperature)), 1e-5)
    order = np.argsort(-z, kind="stable")
    values = z[order].astype(np.float64)
    alive = values > NOTHING
    if law.min_p > 0:
        alive &= values >= values[0] + heat * np.log(float(np.float32(law.min_p)))
    if law.top_k > 0:
        alive &= np.arange(len(z)) < law.top_k
    if law.top_p < 1:
        mass = np.where(alive, np.exp((values - values[0]) / heat), 0)
        before = np.cumsum(mass) - mass
        alive &= (before < float(np.float32(law.top_p)) * mass.sum()) | (np.arange(len(z)) == 0)
    result = np.zeros(len(z), np.bool_)
    result[order] = alive
    return result


def probabilities(z: NDArray[np.float32], law: Law) -> NDArray[np.float64]:
    """float64 [V]; one token's where the temperature is argmax."""
    if np.float32(law.temperature) < np.float32(1e-5):
        return np.eye(len(z))[int(np.argmax(z))]
    values = np.where(kept(z, law), z.astype(np.float64), NOTHING) / float(np.float32(law.temperature))
    mass = np.exp(values - values.max())
    return mass / mass.sum()


def draw(p: NDArray[np.float64], key: int) -> int:
    """The token with the largest log p plus noise."""
    with np.errstate(divide="ignore"):
        return int(np.argmax(np.log(p) + gumbel(key, len(p))))


def match(rows: Sequence[NDArray[np.float64]], drafts: Sequence[int], seed: int, start: int) -> tuple[int, int]:
    """Sample and match: accepted drafts and the next token; rows are laws."""
    for n, p in enumerate(rows):
        token = draw(p, key_of(seed, start + n))
        if n == len(drafts) or drafts[n] != token:
            return n, token
    raise AssertionError("a row is missing")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What a ratio test makes of a block: how likely each draft's own test passes, and the laws behind each prefix."""

    passes: tuple[float, ...]
    residuals: tuple[NDArray[np.float64], ...]
    joint: bool

    def accepted(self, uniforms: Sequence[float]) -> int:
        """How many drafts stay: up to the last test that passes if joint, up to the first that fails if not."""
        ok = [u < p for u, p in zip(uniforms, self.passes, strict=True)]
        if self.joint:
            return max((n + 1 for n, passed in enumerate(ok) if passed), default=0)
        return ok.index(False) if False in ok else len(ok)

    def chances(self) -> list[float]:
        """How likely each number of accepted drafts is."""
        chances, rest = [0.0] * (len(self.passes) + 1), 1.0
        places = range(len(self.passes), 0, -1) if self.joint else range(len(self.passes))
        for n in places:
            passed = self.passes[n - 1 if self.joint else n]
            chances[n] += rest * (passed if self.joint else 1 - passed)
            rest *= 1 - passed if self.joint else passed
        chances[0 if self.joint else len(self.passes)] += rest
        return chances


def rejection(p: NDArray[np.float64], q: NDArray[np.float64], drafts: Sequence[int]) -> Trial:
    """Leviathan et al. 2023: p [n + 1, V], q [n, V]."""
    passes = [min(1.0, p[i, x] / q[i, x]) if q[i, x] > 0 else 0.0 for i, x in enumerate(drafts)]
    residuals = [_normal(np.maximum(p[i] - q[i], 0), p[i]) for i in range(len(drafts))]
    return Trial(passes=tuple(passes), residuals=(*residuals, p[len(drafts)]), joint=False)


def block(p: NDArray[np.float64], q: NDArray[np.float64], drafts: Sequence[int]) -> Trial:
    """Sun et al. 2024."""
    n, weights, passes = len(drafts), [1.0], []
    for i, x in enumerate(drafts):
        weights.append(min(1.0, weights[-1] * p[i, x] / q[i, x]) if q[i, x] > 0 else 0.0)
    for i in range(1, n + 1):
        if i == n:
            passes.append(weights[n])
            continue
        more = np.maximum(weights[i] * p[i] - q[i], 0).sum()
        whole = more + 1 - weights[i]
        passes.append(more / whole if whole > 0 else 1.0)
    residuals = [_normal(np.maximum(weights[i] * p[i] - q[i], 0), p[i]) for i in range(n)]
    return Trial(passes=tuple(passes), residuals=(*residuals, p[n]), joint=True)


def tested(trial: Trial, seed: int, start: int) -> tuple[int, int]:
    """The accepted drafts and the next token that the kernels' keyed uniforms and noise give."""
    keys = [key_of(fresh(seed, start, TESTING), start + n) for n in range(len(trial.passes))]
    n = trial.accepted([uniform(key, 0) for key in keys])
    return n, draw(trial.residuals[n], key_of(fresh(seed, start, CORRECTING), start + n))


def _normal(mass: NDArray[np.float64], otherwise: NDArray[np.float64]) -> NDArray[np.float64]:
    return mass / mass.sum() if mass.sum() > 0 else otherwise
