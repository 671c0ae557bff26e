"""The same losses by the native runtime and by Python alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import losszoo
from losszoo.runtime import dispatch, native
from losszoo.surface import expose


@pytest.fixture
def by_python(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | Callable], Callable]:
    """A loss, or the one of a name, whose calls never reach the native runtime."""

    def get(loss: str | Callable) -> Callable:
        function = expose((getattr(losszoo, loss) if isinstance(loss, str) else loss).spec)
        with monkeypatch.context() as patch:
            patch.setattr(native, "_settled", True)
            patch.setattr(native, "_runtime", None)
            function.__globals__["_call_"], final = dispatch.caller(function.spec, "loss", False)
        assert final
        return function

    return get


@pytest.fixture
def fresh() -> Callable[[str], Callable]:
    """A loss, by its name, for which the native runtime knows no plan yet."""
    return lambda name: expose(getattr(losszoo, name).spec)
