"""Where things lie: the per-layer settings tensor and the paged cache leaves."""

from .common import F32P, I32P, U32P

# int32 settings of one layer, in the order in which core/kernels/settings.py writes them.
comptime LAYER = 0  # its layer in the window leaf
comptime RATIO = 1  # tokens per compressed row; 0: window only
comptime KV_OFFSET = 2  # first compressed row of its kv source within a page
comptime OPEN_LAYER = 3  # its layer in the open-group leaf (ratio > 1 sources)
comptime KEY_OFFSET = 4  # first index-key row of its key owner within a page
comptime PAGE_SIZE = 5  # tokens per page
comptime WINDOW = 6
comptime BLOCK = 7  # draft block size; 0 in the target
comptime OWNS_KEYS = 8
comptime CANDIDATES = 9  # 0: no part in it, 1: publishes candidate blocks, 2: chooses among them
comptime CANDIDATE_BLOCK = 10
comptime EXPERTS_PER_TOKEN = 11
comptime HC_ITERATIONS = 12

# int32 mode of a run.
comptime EXACT = 0  # 1: the model's own rounding; 0: plain float32
comptime THREADS = 1  # threads that one kernel may use

# float32 settings of the model.
comptime RMS_EPS = 0
comptime HC_EPS = 1
comptime SWIGLU_LIMIT = 2
comptime ROUTED_SCALING = 3


struct Leaf(Copyable, Movable):
    """A cache leaf [pages, 1, layers, slots, 1, dim] addressed by sequence and token position."""

    var data: Pointer[Float32, MutUntrackedOrigin]
    var layers: Int
    var slots: Int
    var dim: Int
    var table: Pointer[UInt32, MutUntrackedOrigin]  # [sequences, width] physical page of each logical page
    var width: Int
    var page_size: Int

    def __init__(
        out self, data: F32P, layers: Int, slots: Int, dim: Int, table: U32P, width: Int, page_size: Int
    ):
        self.data = data.unsafe_origin_cast[MutUntrackedOrigin]()
        self.layers = layers
        self.slots = slots
        self.dim = dim
        self.table = table.unsafe_origin_cast[MutUntrackedOrigin]()
        self.width = width
        self.page_size = page_size

    def at(self, seq: Int, layer: Int, token: Int, slot: Int) -> F32P:
        """The row of `slot` on the page that holds `token`."""
        var page = Int(self.table[unsafe_offset=seq * self.width + token // self.page_size])
        var row = (page * self.layers + layer) * self.slots + slot
        return self.data.unsafe_offset(row * self.dim).unsafe_origin_cast[MutAnyOrigin]()

    def window(self, seq: Int, layer: Int, position: Int) -> F32P:
        """The window row of a position."""
        return self.at(seq, layer, position, position % self.page_size)

    def compressed(self, seq: Int, offset: Int, ratio: Int, row: Int) -> F32P:
        """Compressed row `row` of the source whose rows start at `offset` on every page."""
        # Divisions of 32 bits: this runs for every row that is scored or attended to.
        var rows = UInt32(self.page_size) // UInt32(ratio)
        var page = Int(self.table[unsafe_offset=seq * self.width + Int(UInt32(row) // rows)])
        var slot = page * self.slots + offset + Int(UInt32(row) % rows)
        return self.data.unsafe_offset(slot * self.dim).unsafe_origin_cast[MutAnyOrigin]()

    def open_group(self, seq: Int, layer: Int, position: Int) -> F32P:
        """The kept inputs of the group that `position`, an even one, opens."""
        return self.at(seq, layer, position, (position // 2) % self.slots)
