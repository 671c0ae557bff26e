"""What the language cannot say is refused when it is declared, with the file, the line and what is wrong."""

from __future__ import annotations

import textwrap

import pytest

from losszoo.errors import SpecError
from tests.spec.declaring import FUTURE, HEAD, module, refusal

# What is wrong -> the loss, with the line that is blamed marked, and what the message says.
IN_THE_BODY = {
    "if on a symbolic value": ("""
        @loss
        def f(x: Elem):
            if x > 0:  # here
                return x
            return -x
        """, "no truth value"),
    "and, which asks for a truth value": ("""
        @loss
        def f(x: Elem):
            y = exp(x)
            return where(x > 0 and y < 1, x, y)  # here
        """, "use where(condition, a, b), & , | and ~"),
    "a chain of comparisons": ("""
        @loss
        def f(x: Elem):
            return where(0 < x < 1, x, 1)  # here
        """, "no truth value"),
    "Python's own maximum": ("""
        @loss
        def f(x: Elem, t: Elem):
            return builtins.max(x, t)  # here
        """, "no truth value"),
    "math.exp": ("""
        @loss
        def f(x: Elem):
            return math.exp(x)  # here
        """, "use the functions of losszoo.spec, not those of math"),
    "numpy.exp": ("""
        @loss
        def f(x: Elem):
            return numpy.exp(x)  # here
        """, "exp"),
    "float(x)": ("""
        @loss
        def f(x: Elem):
            return x * float(x)  # here
        """, "no Python number"),
    "a loop over a row": ("""
        @loss
        def f(x: Row):
            total = 0
            for value in x:  # here
                total = total + value
            return total
        """, "not iterable"),
    "a slice": ("""
        @loss
        def f(x: Row):
            return sum(x[1:])  # here
        """, "slice"),
    "the index of a list": ("""
        @loss
        def f(x: Row, y: Index):
            return x[y] * [1.0, 2.0][y]  # here
        """, "no Python number"),
    "an index that varies along the row": ("""
        @loss
        def f(x: Row, t: Row):
            return sum(x[t])  # here
        """, "one class a row"),
    "onehot of a row": ("""
        @loss
        def f(x: Row):
            return sum(where(onehot(x), x, 0))  # here
        """, "onehot(y) takes one class a row"),
    "softmax of one value": ("""
        @loss
        def f(x: Row, y: Index):
            return softmax(x[y])  # here
        """, "softmax takes a row"),
    "log_softmax of one value": ("""
        @loss
        def f(x: Elem):
            return log_softmax(x)  # here
        """, "log_softmax takes a row"),
    "classes of one value": ("""
        @loss
        def f(x: Elem):
            return x / classes(x)  # here
        """, "classes takes a row"),
    "position in one value": ("""
        @loss
        def f(x: Elem):
            return x * position(x)  # here
        """, "position takes a row"),
    "& of values": ("""
        @loss
        def f(x: Elem):
            return where(x & (x > 0), x, 0)  # here
        """, "join conditions"),
    "~ of a value": ("""
        @loss
        def f(x: Elem):
            return where(~x, x, 0)  # here
        """, "join conditions"),
    "| of a number": ("""
        @loss
        def f(x: Elem):
            return where(1 | (x > 0), x, 0)  # here
        """, "join conditions"),
    "where on a value": ("""
        @loss
        def f(x: Elem):
            return where(x, 1, 0)  # here
        """, "takes a condition first"),
    "clamp without a bound": ("""
        @loss
        def f(x: Elem):
            return clamp(x)  # here
        """, "min, max or both"),
    "a text in a formula": ("""
        @loss
        def f(x: Elem):
            return exp("x")  # here
        """, "expected a symbolic value or a number, got str"),
    "a complex number": ("""
        @loss
        def f(x: Elem):
            return x * 1j  # here
        """, "got complex"),
    "an operator that is no primitive": ("""
        @loss
        def f(x: Elem):
            return x % 2  # here
        """, "unsupported operand"),
    "a box has no such side": ("""
        @loss
        def f(p: Box):
            return p.h * p.width  # here
        """, "'width'"),
    "a number that a tuple lacks": ("""
        @loss
        def f(p: Tuple[3]):
            return p[3]  # here
        """, "index out of range"),
    "running_mean of no Scalar": ("""
        @loss
        def f(x: Elem, m: Scalar = 1.0):
            return x, running_mean(x, x)  # here
        """, "takes a Scalar operand first"),
    "an error of the author's": ("""
        MODES = {"a": 1.0}

        @loss
        def f(x: Elem):
            factor = (
                MODES["b"]  # here
            )
            return factor * x
        """, "KeyError: 'b'"),
    "an error in a helper of the same file": ("""
        def positive(x):
            return x if x > 0 else 0  # here

        @loss
        def f(x: Elem):
            return positive(x)
        """, "no truth value"),
    "a parameter that may be None and is not looked at": ("""
        @loss
        def f(x: Elem, cap: float | None = None):
            return x * cap  # here
        """, "got NoneType"),
    "an error in one of two static choices": ("""
        @loss
        def f(x: Elem, mode: Static["a", "b"] = "a"):
            if mode == "a":
                return x
            return x.sum()  # here
        """, "AttributeError"),
    "a class that can be counted off the end": ("""
        @loss
        def f(x: Row):
            return x[-1]  # here
        """, "-1"),
    "half a class": ("""
        @loss
        def f(x: Row):
            return x[0.5]  # here
        """, "0.5"),
}  # fmt: skip

# Of these the whole function is blamed: the line of its decorator.
IN_THE_SIGNATURE = {
    "no annotation": ("def f(x: Elem, t):\n    return x - t", "argument 't' has no annotation"),
    "an unknown annotation": ("def f(x: Elem, n: int = 2):\n    return x * n", "argument 'n': cannot be a"),
    "bool": ("def f(x: Elem, on: bool = True):\n    return x", "argument 'on': cannot be a"),
    "a text": ("def f(x: Elem, t: 'Elem of mine'):\n    return x", "Elem of mine"),
    "a name that is not there": ("def f(x: Elem, t: Element):\n    return x - t", "'Element' is not defined"),
    "*args": ("def f(x: Elem, *args: Elem):\n    return x", "argument 'args'"),
    "**kwargs": ("def f(x: Elem, **kwargs: Elem):\n    return x", "argument 'kwargs'"),
    "positional only": ("def f(x: Elem, /, t: Elem):\n    return x - t", "argument 'x'"),
    "Index without Row": ("def f(x: Elem, y: Index):\n    return x", "Index needs a Row"),
    "ClassWeight without Row": ("def f(x: Elem, w: ClassWeight):\n    return x", "ClassWeight needs a Row"),
    "Elem beside Row": ("def f(x: Row, t: Elem):\n    return sum(x) - t", "Elem and Row together"),
    "no gradient": ("def f(x: PerRow):\n    return x", "no operand has a gradient"),
    "no operand": ("def f(*, a: float = 1.0):\n    return a", "no operand has a gradient"),
    "a default of an operand": ("def f(x: Elem, t: PerRow = 'a'):\n    return x", "operand 't': its default must be the number"),
    "a default of a parameter": ("def f(x: Elem, a: float = 'a'):\n    return x", "parameter 'a': its default must be a number"),
    "True for a number": ("def f(x: Elem, a: float = True):\n    return x", "parameter 'a': its default must be a number"),
    "None for a number": ("def f(x: Elem, a: float = None):\n    return x * a", "parameter 'a'"),
    "None for Zero": ("def f(x: Elem, a: float | Zero = None):\n    return x * a", "parameter 'a'"),
    "a static default": ("def f(x: Elem, m: Static[1, 2] = 3):\n    return x", "argument 'm': its default 3 is not one of (1, 2)"),
    "the engine's reduction": ("def f(x: Elem, reduction: float = 1.0):\n    return x", "'reduction'"),
    "the engine's normalizer": ("def f(x: Elem, normalizer: PerRow = 1.0):\n    return x", "'normalizer'"),
    "the engine's ignore_index": ("def f(x: Row, y: Index, ignore_index: float = 1.0):\n    return x[y]", "'ignore_index'"),
    "the engine's box_format": ("def f(x: Box, box_format: Static['xyxy'] = 'xyxy'):\n    return x.w", "'box_format'"),
    "a weight that is no operand": ("def f(x: Elem, weight: float = 1.0):\n    return x", "'weight'"),
    "a class axis left": ("def f(x: Row):\n    y = x * x\n    return y", "the loss has a value for each class: reduce it"),
    "a class axis left in counts": ("def f(x: Row):\n    return sum(x), counts(x)", "counts(...) has a value for each class"),
    "a class axis left in an output": ("def f(x: Row):\n    return sum(x), {'hit': x > 0}", "the output 'hit' has a value for each class"),
    "the same for all": ("def f(x: Elem, a: float = 1.0):\n    return a * 2", "depends on no operand"),
    "a constant": ("def f(x: Elem):\n    return 1.0", "depends on no operand"),
    "nothing returned": ("def f(x: Elem):\n    exp(x)", "the loss is a NoneType"),
    "a list": ("def f(x: Elem):\n    return [x]", "the loss is a list"),
    "a box": ("def f(x: Box):\n    return x", "not a value made of the operands"),
    "a generator": ("def f(x: Elem):\n    yield x", "the loss is a generator"),
    "two losses": ("def f(x: Elem):\n    return x, exp(x)", "beside the loss"),
    "no loss": ("def f(x: Elem):\n    return (counts(1),)", "returns no loss"),
}  # fmt: skip


@pytest.fixture(params=["", FUTURE], ids=["", "future annotations"])
def head(request) -> str:
    """The same with annotations as objects and as texts."""
    return request.param + HEAD


@pytest.mark.parametrize("what", IN_THE_BODY)
def test_the_line_in_the_body(tmp_path, head, what):
    body, says = IN_THE_BODY[what]
    message = refusal(tmp_path, textwrap.dedent(body), head)
    assert message.startswith("loss 'f': ") and says in message


@pytest.mark.parametrize("what", IN_THE_SIGNATURE)
def test_the_line_of_the_loss(tmp_path, what):
    body, says = IN_THE_SIGNATURE[what]
    message = refusal(tmp_path, f"\n\n@loss  # here\n{body}\n", FUTURE + HEAD)
    assert message.startswith("loss 'f': ") and says in message


@pytest.mark.parametrize("annotation", ["Tuple[0]", "Tuple['a']", "spec.Rwo", "Index | Row | 3", "Static[[1], [2]]", "1 + 'a'"])
def test_annotations_that_fail_when_they_are_evaluated(tmp_path, annotation):
    """With annotations as texts it is the decorator that evaluates them; else Python itself names the line."""
    message = refusal(tmp_path, f"@loss  # here\ndef f(x: Row, t: {annotation} = 1):\n    return sum(x)\n", FUTURE + HEAD)
    assert message.startswith("loss 'f': ")


def test_a_bad_reduction(tmp_path):
    body = "@loss(reduction='average')  # here\ndef f(x: Elem):\n    return x\n"
    assert "reduction must be 'none', 'mean' or 'sum', got 'average'" in refusal(tmp_path, body)


@pytest.mark.parametrize("body", ["@loss  # here\nclass F:\n    pass\n", "F = loss(len)\n", "F = loss(3)\n"])
def test_what_is_no_function(tmp_path, body):
    with pytest.raises((SpecError, TypeError)):
        module(tmp_path, body)


def test_a_static_without_a_default_before_an_operand(tmp_path):
    """Whether it may stand there or not, Python's own error about a text that nobody wrote is no answer."""
    body = "@loss\ndef f(x: Elem, mode: Static['a', 'b'], t: Elem):\n    return x - t\n"
    try:
        assert module(tmp_path, body).f.spec.order == ("x", "mode", "t")
    except SpecError as refused:
        assert "'mode'" in str(refused) or "'t'" in str(refused)


def test_the_cause_is_kept(tmp_path):
    """The author's own exception, with its traceback, is the cause of the refusal."""
    with pytest.raises(SpecError) as caught:
        module(tmp_path, "@loss\ndef f(x: Elem):\n    return {}['a']\n")
    assert isinstance(caught.value.__cause__, KeyError) and isinstance(caught.value, ValueError)
