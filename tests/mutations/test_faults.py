"""The faults can be planted: each one's text is in its file, once. (That they are caught, `python -m tests.mutations` tells.)"""

from __future__ import annotations

import pytest

from tests.mutations.__main__ import ROOT, places
from tests.mutations.faults import read

pytestmark = pytest.mark.cpu_only


@pytest.mark.parametrize("fault", read(), ids=lambda fault: fault.name)
def test_there_is_one_place_for_it(fault):
    assert places(ROOT, fault) == 1, f"change its text in faults.txt as that of {fault.file} was changed"
    assert fault.old != fault.new and all(fault.stages)


def test_they_are_many():
    assert len(read()) >= 80
