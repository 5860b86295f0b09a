"""The sequential driver on toys whose acceptance is chosen: forced from none to all, with caches that can be read."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.toy_drafters import DRAFTS, LENGTH, VOCABULARY, ToyGraph

ROUNDS = 50


@pytest.fixture(scope="module")
def toy() -> ToyGraph:
    return ToyGraph()


def tables(wrong_after: set[int]) -> tuple[np.ndarray, np.ndarray]:
    """The target's: each token is followed by the next; the drafter's: the same, but 0 after some."""
    target = np.zeros((VOCABULARY, VOCABULARY), np.float32)
    target[np.arange(VOCABULARY), (np.arange(VOCABULARY) + 1) % VOCABULARY] = 1
    drafter = target.copy()
    for token in wrong_after:
        drafter[token] = 0
        drafter[token, 0] = 1
    return target, drafter


class Requests:
    """Requests whose texts and caches are known, stepped by hand."""

    def __init__(self, toy: ToyGraph, starts, wrong_after=()) -> None:
        self.toy = toy
        self.texts = [[start] for start in starts]
        self.cached = np.zeros(len(starts), np.uint32)
        self.target, self.drafter = tables(set(wrong_after))
        self.caches = {name: np.zeros((len(starts), LENGTH), np.float32) for name in ("window", "compressed")}

    def step(self, chunks, drafts, *, draft=True, following=None):
        """Run tokens and drafts int64 [B, K]; both drivers' outputs."""
        b, k = drafts.shape
        ends = np.cumsum([0, *map(len, chunks)]).astype(np.uint32)
        merged = int(ends[-1]) + b * k
        zeros = np.zeros(b, np.float32)
        values = {
            "tokens": np.concatenate(chunks).astype(np.int64),
            "vision_scatter_indices": np.zeros(0, np.int32),
            "input_row_offsets": ends,
            "return_n_logits": np.ones(1, np.int64),
            **{f"kv_{name}": cache for name, cache in self.caches.items()},
            "kv_keys": np.zeros((b, LENGTH), np.float32),
            "kv_open_groups": np.zeros((b, LENGTH), np.float32),
            "cache_lengths": self.cached.copy(),
            "lookup_table": np.zeros((b, 1), np.uint32),
            "draft_tokens": drafts,
            "draft_probs_full": np.zeros((b, 0, VOCABULARY), np.float32),
            "seed": np.arange(b, dtype=np.uint64),
            "temperature": zeros,
            "top_k": np.full(b, -1, np.int64),
            "max_k": np.array(-1, np.int64),
            "top_p": zeros + 1,
            "min_top_p": np.array(1, np.float32),
            "min_p": zeros,
            "acceptance": np.zeros(b, np.int32),
            "penalties": np.tile(np.array([1, 0, 0], np.float32), (b, 1)),
            "free_from": np.zeros(b, np.uint32),
            "edit_offsets": np.zeros(b + 1, np.uint32),
            "edit_tokens": np.zeros(0, np.int32),
            "edit_marks": np.zeros(0, np.int32),
            "edit_bias": np.zeros(0, np.float32),
            "draft_slot_ids": np.arange(b if draft else 0, dtype=np.int32),
            "draft_block_offsets": np.arange(b + 1, dtype=np.uint32),
            "draft_next_tokens": np.array(following if following is not None else [-1] * b, np.int64),
            "shifted_rows": np.zeros(merged if draft else 0, np.int8),
            "target_table": self.target,
            "drafter_table": self.drafter,
            "merged_rows": np.zeros(merged, np.int8),
        }
        return self.toy.run(values)

    def commit(self, chunks, drafts, outputs) -> None:
        for s, accepted in enumerate(outputs["num_accepted"]):
            self.texts[s] += drafts[s, :accepted].tolist()
            self.cached[s] += len(chunks[s]) + accepted
            self.texts[s].append(int(outputs["next_tokens"][s]))

    def holds(self, *, own_cache: bool) -> None:
        """What the caches hold of each text is that text, token by token; the drafter's is one token ahead."""
        for s, text in enumerate(self.texts):
            length = int(self.cached[s])
            assert len(text) == length + 1
            assert (self.caches["window"][s, :length] - 1).tolist() == text[:-1]
            if own_cache:
                assert (self.caches["compressed"][s, :length] - 1).tolist() == text[1:]


def test_forced_acceptance_leaves_both_caches_right(toy):
    """50 rounds of 0, 1, …, K accepted drafts in turn, another turn for each request."""
    starts, wrong = (1, 260), set()
    wanted = [[(n + s) % (DRAFTS + 1) for n in range(ROUNDS)] for s in range(2)]
    for start, counts in zip(starts, wanted, strict=True):
        token = start + 1  # what follows the prompt
        for count in counts:
            if count < DRAFTS:
                wrong.add(token + count)
            token += count + 1
    requests = Requests(toy, starts, wrong)
    chunks = [np.array([start]) for start in starts]
    own, cross = requests.step(chunks, np.zeros((2, 0), np.int64))
    requests.commit(chunks, np.zeros((2, 0), np.int64), own)
    for n in range(ROUNDS):
        drafts = own["next_draft_tokens"]
        for s, counts in enumerate(wanted):  # what follows a wrong draft is each drafter's own guess
            assert drafts[s, : counts[n] + 1].tolist() == cross["next_draft_tokens"][s, : counts[n] + 1].tolist()
        before = requests.cached.copy()
        chunks = [np.array([text[-1]]) for text in requests.texts]
        own, cross = requests.step(chunks, drafts)
        assert own["num_accepted"].tolist() == [counts[n] for counts in wanted]
        assert cross["num_accepted"].tolist() == own["num_accepted"].tolist()
        requests.commit(chunks, drafts, own)
        requests.holds(own_cache=True)
        told(own, cross, before, requests.cached)
    assert all(text == list(range(text[0], text[0] + len(text))) for text in requests.texts)


def told(own, cross, before, after) -> None:
    """What each draft call was told of lengths and offsets."""
    for outputs, kept in ((own, False), (cross, True)):
        first, *later = outputs["calls"]
        for name in ("draft_lengths", "collection_lengths", "swapped_lengths", "kept_lengths"):
            assert first[name].tolist() == before.tolist(), name
        assert first["query_offsets"].tolist() == first["merged_offsets"].tolist()
        for n, call in enumerate(later):
            lengths = (after + n).tolist()
            assert call["draft_lengths"].tolist() == lengths
            assert call["collection_lengths"].tolist() == (before.tolist() if kept else lengths)
            assert call["swapped_lengths"].tolist() == lengths
            assert call["kept_lengths"].tolist() == before.tolist()
            assert call["query_offsets"].tolist() == list(range(len(before) + 1))
            assert call["merged_offsets"].tolist() == first["merged_offsets"].tolist()


@pytest.mark.parametrize("shift", [-1, 1])
def test_a_length_that_is_one_off_is_noticed(toy, shift):
    """The wrong twin: rows are then written one place beside where they belong."""
    requests = Requests(toy, (1,))
    chunks, none = [np.array([1])], np.zeros((1, 0), np.int64)
    own, _ = requests.step(chunks, none)
    requests.commit(chunks, none, own)
    requests.holds(own_cache=True)
    requests.cached += np.uint32(shift % 2**32)
    own, _ = requests.step([np.array([2])], own["next_draft_tokens"])
    requests.cached -= np.uint32(shift % 2**32)
    requests.commit([np.array([2])], np.array([[3, 4, 5]]), own)
    with pytest.raises(AssertionError):
        requests.holds(own_cache=True)


def test_a_chunk_knows_the_token_behind_it(toy):
    requests = Requests(toy, (1, 260))
    chunks = [np.array([1, 2, 3]), np.array([260])]
    requests.step(chunks, np.zeros((2, 0), np.int64), following=[77, -1])
    assert (requests.caches["compressed"][0, :3] - 1).tolist() == [2, 3, 77]
    assert (requests.caches["compressed"][1, :1] - 1).tolist() == [261]


def test_a_step_in_which_nobody_drafts_stores_nothing(toy):
    requests = Requests(toy, (1, 260))
    own, cross = requests.step([np.array([1]), np.array([260])], np.zeros((2, 0), np.int64), draft=False)
    assert own["next_draft_tokens"].tolist() == cross["next_draft_tokens"].tolist() == [[-1] * DRAFTS] * 2
    assert not requests.caches["compressed"].any()
    assert own["next_tokens"].tolist() == [2, 261]
