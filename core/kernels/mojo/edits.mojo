"""What a request changes of the target's logits before a token is drawn: bans, biases and penalties.

They hold for every verified row: row j, the law of the token after j drafts, counts those drafts as output. Order:
bans, biases, then repetition, frequency and presence penalties, as in vLLM's sampler.
"""

from .common import F32P, Held, I64P, at, lent

comptime BANNED = Int32(1)  # before position free_from
comptime SEEN = Int32(2)  # occurs in the prompt or the output
comptime COUNT = 2  # the bits above count occurrences in the output


@fieldwise_init
struct Edits(Copyable, ImplicitlyCopyable, Movable):
    """Entries offsets[s] … offsets[s + 1] - 1 of request s: tokens (each once), marks, bias.

    penalties [B, 3]: repetition (1: none), frequency and presence (0: none). `entries` is the number of all.
    """

    var offsets: Held[DType.uint32]
    var tokens: Held[DType.int32]
    var marks: Held[DType.int32]
    var bias: Held[DType.float32]
    var penalties: Held[DType.float32]
    var free_from: Held[DType.uint32]
    var entries: Int

    @always_inline
    def begin(self, s: Int) -> Int:
        return Int(self.offsets[unsafe_offset=s])

    @always_inline
    def penalises(self, s: Int) -> Bool:
        var p = lent(self.penalties).unsafe_offset(3 * s)
        return at(p, 0) != 1 or at(p, 1) != 0 or at(p, 2) != 0

    @always_inline
    def any(self, s: Int) -> Bool:
        return self.begin(s + 1) > self.begin(s) or self.penalises(s)

    @always_inline
    def penalised(self, s: Int, z: Float32, seen: Bool, count: Int) -> Float32:
        """A logit of a token that is in the context, or `count` times in the output."""
        var p = lent(self.penalties).unsafe_offset(3 * s)
        var v = z
        if seen:
            v = v / at(p, 0) if v > 0 else v * at(p, 0)
        if count > 0:
            v -= at(p, 1) * Float32(count) + at(p, 2)
        return v

    @always_inline
    def edited(self, s: Int, e: Int, z: Float32, position: Int, drafted: Int) -> Float32:
        """The logit of entry e's token at `position`, which follows `drafted` drafts that are this token."""
        var mark = self.marks[unsafe_offset=e]
        if mark & BANNED != 0 and position < Int(self.free_from[unsafe_offset=s]):
            return Float32.MIN
        return self.penalised(
            s, z + at(lent(self.bias), e), mark & SEEN != 0 or drafted > 0, Int(mark >> COUNT) + drafted
        )


@always_inline
def occurrences(drafts: I64P, j: Int, token: Int) -> Int:
    """How many of the first j drafts are `token`."""
    var n = 0
    for i in range(j):
        n += 1 if Int(drafts[unsafe_offset=i]) == token else 0
    return n


def edit_row(z: F32P, edits: Edits, s: Int, j: Int, drafts: I64P, position: Int):
    """Edits row j of request s in place; `drafts` are that request's."""
    var begin = edits.begin(s)
    var end = edits.begin(s + 1)
    for e in range(begin, end):
        var token = Int(edits.tokens[unsafe_offset=e])
        z[unsafe_offset=token] = edits.edited(s, e, at(z, token), position, occurrences(drafts, j, token))
    if not edits.penalises(s):
        return
    for i in range(j):
        var token = Int(drafts[unsafe_offset=i])
        var known = token < 0 or occurrences(drafts, i, token) > 0
        for e in range(begin, end):
            known = known or Int(edits.tokens[unsafe_offset=e]) == token
        if not known:
            z[unsafe_offset=token] = edits.penalised(s, at(z, token), True, occurrences(drafts, j, token))
