"""The law of the target's token at a verified row: its logits after edits, grammar and limits."""

from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder
from .common import F32P, Held, I64P, at, lent
from .edits import Edits, edit_row
from .sampling import is_finite, truncate


@fieldwise_init
struct Verified(Copyable, DevicePassable, ImplicitlyCopyable, Movable):
    """What there is to verify: k drafts a request and their k + 1 rows of v logits, and how each request draws.

    probs [B, prob_rows, V], the drafters' probabilities, prob_rows = 0 where no request tests ratios; bitmask
    [B, mask_rows, mask_words], mask_rows = 0 where there is no grammar.
    """

    var logits: Held[DType.float32]
    var drafts: Held[DType.int64]
    var offsets: Held[DType.uint32]
    var cache_lengths: Held[DType.uint32]
    var probs: Held[DType.float32]
    var seed: Held[DType.uint64]
    var temperature: Held[DType.float32]
    var top_k: Held[DType.int64]
    var top_p: Held[DType.float32]
    var min_p: Held[DType.float32]
    var acceptance: Held[DType.int32]
    var edits: Edits
    var bitmask: Held[DType.int32]
    var b: Int
    var k: Int
    var v: Int
    var prob_rows: Int
    var mask_rows: Int
    var mask_words: Int

    # A kernel takes it as one argument, as it is.
    comptime device_type: AnyType = Self

    def _to_device_type(self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]):
        encoder.encode(self, target)

    @staticmethod
    def get_type_name() -> String:
        return "Verified"

    @always_inline
    def start(self, s: Int) -> Int:
        """The position whose law is request s's first row."""
        var tokens = Int(self.offsets[unsafe_offset=s + 1]) - Int(self.offsets[unsafe_offset=s])
        return Int(self.cache_lengths[unsafe_offset=s]) + tokens

    @always_inline
    def drafts_of(self, s: Int) -> I64P:
        return lent(self.drafts).unsafe_offset(s * self.k)

    @always_inline
    def allowed(self, s: Int, j: Int, token: Int) -> Bool:
        """Whether the grammar allows a token at row j."""
        var bits = self.bitmask.unsafe_offset((s * self.mask_rows + j) * self.mask_words)
        return (UInt32(bits[unsafe_offset=token >> 5]) >> UInt32(token & 31)) & 1 == 1

    def check(self) raises:
        if self.mask_rows > 0 and (self.mask_rows < self.k + 1 or self.mask_words * 32 < self.v):
            raise Error("sd_verify: the bitmask has fewer rows than verified tokens, or fewer bits than the vocabulary")
        if self.prob_rows != 0 and self.prob_rows < self.k:
            raise Error("sd_verify: the drafters' probabilities have fewer rows than there are drafts")


def law(verified: Verified, s: Int, j: Int, spare: F32P) -> Tuple[F32P, Bool]:
    """Row j of request s with edits, mask and limits applied, in `spare` if there are any, and whether it is finite."""
    var v = verified.v
    var row = lent(verified.logits).unsafe_offset((s * (verified.k + 1) + j) * v)
    var edited = verified.edits.any(s)
    var keep = Int(verified.top_k[unsafe_offset=s])
    var mass = at(lent(verified.top_p), s)
    var least = at(lent(verified.min_p), s)
    var limited = keep > 0 or mass < 1 or least > 0
    if not edited and not limited and verified.mask_rows == 0:
        return (row, is_finite(row, v))
    for i in range(v):
        spare[unsafe_offset=i] = at(row, i)
    if verified.mask_rows > 0:
        for i in range(v):
            if not verified.allowed(s, j, i):
                spare[unsafe_offset=i] = Float32.MIN
    if edited:
        edit_row(spare, verified.edits, s, j, verified.drafts_of(s), verified.start(s) + j)
    var fine = is_finite(spare, v)
    if limited:
        truncate(spare, v, at(lent(verified.temperature), s), keep, mass, least)
    return (spare, fine)
