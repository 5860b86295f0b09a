"""The slots of every expert, worked out one by one."""


struct Groups(Copyable, Movable):
    """A batch's (row, choice) pairs in slots, by expert, then row."""

    var active: List[Int]  # experts in use
    var starts: List[Int]  # first slot of every expert, and the number of slots
    var pairs: List[Int]  # the pair row * k + choice of every slot
    var slot_of: List[Int]  # k a row: its slots by ascending expert

    def __init__(out self, ids: List[Int], experts: Int, k: Int):
        """Groups ids [T k], a row's k different experts after another's."""
        self.active = List[Int]()
        self.starts = List[Int]()
        self.pairs = List[Int]()
        self.slot_of = List[Int](length=len(ids), fill=0)
        for e in range(experts):
            self.starts.append(len(self.pairs))
            for i in range(len(ids)):
                if ids[i] == e:
                    self.pairs.append(i)
            if len(self.pairs) > self.starts[e]:
                self.active.append(e)
        self.starts.append(len(self.pairs))
        # Slots ascend with experts, so a row finds its own in the right order.
        var found = List[Int](length=len(ids) // k, fill=0)
        for slot in range(len(self.pairs)):
            var r = self.pairs[slot] // k
            self.slot_of[r * k + found[r]] = slot
            found[r] += 1

    def lists(self, experts: Int) -> List[Int]:
        """Everything in the order of the kernels' lists: active [E + 1], starts [E + 1], pairs [T k]."""
        var all = self.active.copy()
        for _ in range(len(self.active), experts):
            all.append(0)
        all.append(len(self.active))
        for start in self.starts:
            all.append(start)
        for pair in self.pairs:
            all.append(pair)
        return all^
