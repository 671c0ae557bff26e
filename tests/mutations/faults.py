"""The faults: a file, a text in it, what stands there instead, and the tests that should notice first."""

from __future__ import annotations

from typing import NamedTuple

IR = "tests/ir tests/fuzz"
CPU = "tests/losses/test_classification.py tests/losses/test_boxes.py tests/losses/test_elementwise.py tests/examples tests/fuzz"
ENGINE = "tests/losses/test_engine.py"
ROWS = "tests/simt/test_losses.py -k rows"
STRIDED = "tests/simt/test_losses.py -k strided"
ITEMS = "tests/simt/test_losses.py -k items"
JIT = "tests/jit"


class Fault(NamedTuple):
    name: str
    file: str
    old: str
    new: str
    tests: str


PRIMITIVES, ALGEBRA, SIMPLIFY = (f"losszoo/ir/{name}.py" for name in ("primitives", "algebra", "simplify"))
MONOID, DEVICE, HOST = (f"csrc/losszoo/{name}.h" for name in ("monoid", "device", "host"))
CUDA_ROWS, CUDA_COLUMNS, CUDA_ITEMS = (f"templates/cuda/{name}.cu.j2" for name in ("rows", "columns", "items"))
CPU_ROWS, CPU_COLUMNS, CPU_ITEMS = (f"templates/cpu/{name}.cpp.j2" for name in ("rows", "columns", "items"))

FAULTS = (
    # the table of primitives
    Fault("tanh's derivative has a wrong sign", PRIMITIVES, "b.sub(ONE, b.mul(n, n))", "b.add(ONE, b.mul(n, n))", IR),
    Fault("a tie of maximum gives each the whole gradient", PRIMITIVES, 'b.apply("eq", x, y), b.div(g, TWO)', 'b.apply("eq", x, y), g', IR),
    Fault("clamp stops the gradient at its lower bound", PRIMITIVES, '_clamp_vjp("ge")', '_clamp_vjp("gt")', IR),
    Fault("equal largest values do not share max's gradient", PRIMITIVES, "share = b.div(g, b.sum(b.where(at_max, ONE, ZERO)))", "share = g", IR),
    Fault("atan2's arguments are swapped in its derivative", PRIMITIVES, "return b.mul(scale, x), b.neg(b.mul(scale, y))", "return b.mul(scale, y), b.neg(b.mul(scale, x))", IR),
    Fault("pow's derivative at the power 0", PRIMITIVES, 'b.apply("eq", power, ZERO), ZERO, b.mul(g, slope)', 'b.apply("eq", power, ONE), ZERO, b.mul(g, slope)', IR),
    Fault("log1p's derivative forgets the 1", PRIMITIVES, 'b.div(g, b.add(ONE, n.args[0])),), "lz::log1p', 'b.div(g, n.args[0]),), "lz::log1p', IR),
    Fault("abs has a gradient at 0", PRIMITIVES, 'b.where(b.apply("gt", x, ZERO), g, b.where(b.apply("lt"', 'b.where(b.apply("ge", x, ZERO), g, b.where(b.apply("lt"', IR),
    Fault("floor is spelled as another function", PRIMITIVES, '"lz::floor({0})"', '"lz::floor({0} + R(0.5))"', "tests/codegen"),
    Fault("logsumexp's derivative forgets what comes from above", PRIMITIVES, "(b.mul(g, b.softmax(n.args[0])),)", "(b.softmax(n.args[0]),)", IR),
    # differentiation and simplification
    Fault("a value that was broadcast along classes gets one class's gradient", "losszoo/ir/autodiff.py", "contribution = b.sum(contribution)", "contribution = b.max_(contribution)", IR),
    Fault("of two uses of a value, one gives the gradient", "losszoo/ir/autodiff.py", "b.add(adjoints[arg], contribution) if arg in adjoints", "contribution if arg in adjoints", IR),
    Fault("a square is simplified to its base", SIMPLIFY, 'return _again("mul", a, a)', "return a", IR),
    Fault("a nested selection takes the other side", SIMPLIFY, 'return _again("where", c, a.args[1], b)', 'return _again("where", c, a.args[2], b)', IR),
    Fault("a selection's factor is applied to its other side too", SIMPLIFY, 'return _again("where", c, a, op(b))', 'return _again("where", c, b, op(a))', IR),
    Fault("-(a - b) stays a - b", SIMPLIFY, 'return _again("sub", a.args[1], a.args[0])', 'return _again("sub", a.args[0], a.args[1])', IR),
    # the algebra of sums, and scheduling
    Fault("what is subtracted in a sum is added", ALGEBRA, 'right if e.op == "add" else [replace(t, factor=b.neg(t.factor)) for t in right]', "right", IR),
    Fault("the pivot of a shifted sum has the wrong sign", ALGEBRA, 'b.sub(pivot, b.apply("peak", x))', 'b.sub(b.apply("peak", x), pivot)', IR),
    Fault("a product forgets one factor", ALGEBRA, "Term(b.mul(s.factor, t.factor), b.mul(s.rest, t.rest), logits, shifted)", "Term(s.factor, b.mul(s.rest, t.rest), logits, shifted)", IR),
    Fault("a selection keeps both sides", ALGEBRA, "b.where(c, ZERO, getattr(t, side))}) for t in right", "getattr(t, side)}) for t in right", IR),
    Fault("passes forget what they wait for", "losszoo/ir/schedule.py", "depth[node] = below + (", "depth[node] = 0 * below + (", IR),
    Fault("the gradient of an absent item is not 0", "losszoo/ir/schedule.py", "b.where(absent, ZERO, g)", "b.where(absent, g, g)", f"{IR} {ENGINE}"),
    # what both processors share
    Fault("the online softmax forgets to rescale", MONOID, "s[n][l] = sums[n][l] * rescale;", "s[n][l] = sums[n][l];", CPU),
    Fault("merged softmax states are not rescaled", MONOID, "other.sums[n][o] * there;", "other.sums[n][o];", ROWS),
    Fault("a masked maximum is a shift", MONOID, "return select(top == -infinity<R>(), R(0), top);", "return top;", CPU),
    Fault("a shifted sum forgets to move", MONOID, "s[n][l] = sums[n][l] + moved(sums[n + S][l], old - now);", "s[n][l] = sums[n][l];", CPU),
    Fault("a nan is no maximum", MONOID, "top[l] = maximum(top[l], v[g * L + l]);", "top[l] = v[g * L + l] > top[l] ? v[g * L + l] : top[l];", CPU),
    Fault("bfloat16 is cut off, not rounded", "csrc/losszoo/numeric.h", "uint32 rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;", "uint32 rounded = bits >> 16;", "tests/csrc"),
    # CPU kernels
    Fault("the padding of a block is left as it was", CPU_ROWS, "for (int k = n; k < groups * L; ++k) {", "for (int k = n + 1; k < groups * L; ++k) {", CPU),
    Fault("an ignored row keeps its gradient", CPU_ROWS, "const R absent = ignored ? R(0) : lz::nan<R>();", "const R absent = ignored ? R(1) : lz::nan<R>();", CPU),
    Fault("the last classes of a strided row are lost", CPU_COLUMNS, "classes - base < GROUPS ? classes - base : GROUPS", "classes - base < GROUPS ? classes - base - 1 : GROUPS", CPU),
    Fault("ignored rows count in a strided mean", CPU_COLUMNS, "count = ignored ? R(0) : count;", "count = ignored ? R(1) : count;", CPU),
    Fault("items take their neighbour's upstream gradient", CPU_ITEMS, "a.grad_output[(first + l) * a.grad_output_item]", "a.grad_output[first * a.grad_output_item]", CPU),
    Fault("the mean's denominator and the normalizer are swapped", HOST, "a.normalizer ? double(a.normalizer[0]) : a.mean ? count : 1.0", "a.mean ? count : a.normalizer ? double(a.normalizer[0]) : 1.0", CPU),
    Fault("a range's sum is left in the place of another", HOST, "const int64 range = begin / a.grain;", "const int64 range = 0;", ENGINE),
    Fault("a stray label is not reported", HOST, "if (first_stray < 0) first_stray = row;", "first_stray = -1;", "tests/test_bad_input.py"),
)
