"""What a check found: one line a case, and an error at the end of a program in which a case failed."""

from std.memory import bitcast
from std.sys import argv
from kernels.common import F32P, I32P


def asked_for(option: String) -> Bool:
    """Whether the program was started with this word."""
    for word in argv():
        if String(word) == option:
            return True
    return False


def bits_off(a: F32P, b: F32P, n: Int) -> Int:
    """In how many of n values the bits differ."""
    var off = 0
    for i in range(n):
        if bitcast[DType.uint32](a[unsafe_offset=i]) != bitcast[DType.uint32](b[unsafe_offset=i]):
            off += 1
    return off


struct Report(Movable):
    """Collects what is expected of a case between `begin` and `end`."""

    var name: String
    var detail: String
    var good: Bool
    var cases: Int
    var failed: Int
    var small: Bool  # leave out what takes long, for a sanitizer

    def __init__(out self):
        self.name = String()
        self.detail = String()
        self.good = True
        self.cases = 0
        self.failed = 0
        self.small = asked_for("small")

    def begin(mut self, name: String):
        self.name = name
        self.detail = String()
        self.good = True

    def end(mut self):
        print("ok  " if self.good else "FAIL", self.name + self.detail, flush=True)
        self.cases += 1
        self.failed += 0 if self.good else 1

    def finish(self) raises:
        print("cases:", self.cases, "failed:", self.failed)
        if self.failed > 0 or self.cases == 0:
            raise Error("not all cases passed")

    def expect(mut self, what: String, good: Bool):
        """Something that has to hold; only a failure is mentioned."""
        if not good:
            self.detail += " | NOT: " + what
            self.good = False

    def same(mut self, what: String, a: F32P, b: F32P, n: Int):
        """The bits have to agree."""
        var off = bits_off(a, b, n)
        self.expect(what + " the same bits (" + String(off) + " of " + String(n) + " differ)", off == 0)

    def same_ints(mut self, what: String, got: I32P, want: List[Int]):
        var off = 0
        for i in range(len(want)):
            off += 1 if Int(got[unsafe_offset=i]) != want[i] else 0
        self.expect(what + " (" + String(off) + " of " + String(len(want)) + " differ)", off == 0)

    def close(mut self, what: String, got: F32P, want: F32P, n: Int, tolerance: Float32, most_off: Int = 0):
        """At most `most_off` values differ by more than tolerance (0.01 + |value|); a NaN belongs where one is."""
        var worst = Float32(0)
        var off = 0
        for i in range(n):
            var a = got[unsafe_offset=i]
            var b = want[unsafe_offset=i]
            if (a != a) != (b != b):
                self.expect(what + ": NaN at " + String(i) + " on one side only", False)
            elif a == a and a != b:
                var e = abs(a - b) / (0.01 + abs(b))
                worst = max(worst, e)
                off += 1 if e > tolerance else 0
        self.detail += " | " + what + " " + String(worst)
        if most_off > 0:
            self.detail += ", " + String(off) + " of " + String(n) + " off"
        self.expect(what + " close, " + String(off) + " off, " + String(most_off) + " may be", off <= most_off)

    def within(mut self, what: String, got: F32P, want: F32P, n: Int, share: Float32):
        """No value differs by more than `share` of the largest."""
        var worst = Float32(0)
        var top = Float32(0)
        for i in range(n):
            var e = abs(got[unsafe_offset=i] - want[unsafe_offset=i])
            # A NaN must not hide behind a comparison.
            worst = e if not (e <= worst) and not (worst != worst) else worst
            top = max(top, abs(want[unsafe_offset=i]))
        self.detail += " | " + what + " " + String(worst / top)
        self.expect(what + " within " + String(share) + " of the largest", worst <= share * top)
