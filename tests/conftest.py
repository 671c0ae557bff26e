"""`pytest --device cuda` runs every test of a loss on the GPU; the default is the CPU."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator

import pytest
import torch
from hypothesis import HealthCheck, settings

from losszoo.runtime import native

MEASURE = "COVERAGE_PROCESS_START"  # by which coverage finds its way into a process
MEASURED = os.environ.get(MEASURE)
settings.register_profile(
    "losszoo",
    max_examples=25,
    deadline=None,  # the first example of a kernel compiles it
    derandomize=os.environ.get("CI") == "true",
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("losszoo")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", choices=("cpu", "cuda"), default="cpu", help="where the tensors of the tests live")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "cuda_only: needs a GPU; deselected without --device cuda")
    config.addinivalue_line("markers", "cpu_only: about the CPU; deselected with --device cuda")
    config.addinivalue_line("markers", "large: needs tens of gigabytes on the GPU")
    if config.getoption("--device") == "cuda" and not torch.cuda.is_available():
        raise pytest.UsageError("--device cuda: torch finds no GPU here")
    # The tests use the native runtime from the start; processes that they start with caches of their own build none.
    native.wait()
    os.environ["LOSSZOO_RUNTIME"] = "python"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    unfit = "cuda_only" if config.getoption("--device") == "cpu" else "cpu_only"
    config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker(unfit)])
    items[:] = [item for item in items if not item.get_closest_marker(unfit)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Of a test's cases only the first is measured by coverage, which doubles the time that Python takes. So it is a lower bound.

    Nor are the processes that a test starts, for which it would look on while torch is imported, unless the test says so.
    """
    os.environ.pop(MEASURE, None)
    module, cases = sys.modules.get("coverage"), getattr(item, "callspec", None)
    tracing = module and module.Coverage.current()
    if not (tracing and cases and any(cases.indices.values())):
        return (yield)
    tracing.stop()
    try:
        return (yield)
    finally:
        tracing.start()


def pytest_collection_finish() -> None:
    gc.freeze()  # what is there by now stays: no collection need look at it again


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes that the test starts are measured by coverage, if this one is."""
    if MEASURED:
        monkeypatch.setenv(MEASURE, MEASURED)


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> str:
    return request.config.getoption("--device")
