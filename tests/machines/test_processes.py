"""Many processes and threads, forked and spawned, killed, and with Python's flags."""

from __future__ import annotations

import os
import signal
import time

import pytest

from losszoo.jit import cache

from .conftest import FORKS, TRAIN, train_new_loss, trained

pytestmark = [pytest.mark.cpu_only, pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")]

AT_ONCE = """
import sys, threading
in_children(8, train)  # of a process that has imported losszoo, and not used it
os.environ["LOSSZOO_CACHE_DIR"] = sys.argv[1]
barrier, right = threading.Barrier(8), []
def work():
    barrier.wait()
    train()
    right.append(1)
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(right))
"""


def test_eight_processes_and_eight_threads_build_at_once(python, compiler, tmp_path):
    script, log = compiler()
    done = python(TRAIN + FORKS + AT_ONCE, arguments=(tmp_path / "of threads",), CXX=script)
    assert (done.stdout, done.stderr) == ("8\n", "")
    made = [len(list((tmp_path / cache).glob("*/kernel.so"))) for cache in ("cache", "of threads")]
    assert len(log.read_text().splitlines()) == sum(made) and made[0] == made[1] > 0


LOADER = (
    TRAIN
    + """
import sys
from losszoo.runtime import native

class Data(torch.utils.data.Dataset):
    criterion = losszoo.WIoULoss()  # copied to each worker

    def __len__(self):
        return 4

    def __getitem__(self, index):
        train()
        boxes = torch.tensor([[0.0, 0.0, 4.0, 4.0]])
        return float(self.criterion(boxes, boxes + 1))

if __name__ == "__main__":
    train()
    if not native.settled() or native.runtime() is None:
        raise RuntimeError("no native runtime")
    for method, workers in ("fork", 2), ("spawn", 1):
        data = torch.utils.data.DataLoader(Data(), num_workers=workers, multiprocessing_context=method)
        assert sum(len(batch) for batch in data) == 4
    print("right")
"""
)


def test_workers_of_a_data_loader(python, tmp_path):
    """Forked after use, or spawned and told what to do by pickles."""
    (tmp_path / "loader.py").write_text(LOADER)
    built = {"LOSSZOO_CACHE_DIR": cache.place(), "LOSSZOO_RUNTIME": ""}  # the tests' own, with the native runtime in it
    done = python(str(tmp_path / "loader.py"), "-W", "error", program="-u", **built)
    assert (done.stdout, done.stderr) == ("right\n", "")


def test_a_killed_builder_holds_nobody_up(compiler, tmp_path):
    script, log = compiler('echo $$ > "$0.pid"; exec sleep 60')
    environment = {"LOSSZOO_CACHE_DIR": tmp_path / "cache", "CXX": script}
    builder = os.fork()
    if builder == 0:
        try:
            train_new_loss(environment)
        finally:
            os._exit(1)
    while not (tmp_path / "compiler.pid").exists():
        assert os.waitpid(builder, os.WNOHANG) == (0, 0)
        time.sleep(0.02)
    os.kill(builder, signal.SIGKILL)
    assert os.waitpid(builder, 0)[1] == signal.SIGKILL
    begin = time.monotonic()
    compiler()  # by the same name, and so for the same entry under the same lock; now it works
    assert trained(**environment) == "right"
    assert time.monotonic() - begin < 30  # half of what the lock is waited for
    os.kill(int((tmp_path / "compiler.pid").read_text()), signal.SIGKILL)


FLAGS = (
    TRAIN
    + """
train()
for labels in [0, 3], [0, 1, 2]:
    try:
        losszoo.cross_entropy(torch.zeros(2, 3), torch.tensor(labels))
    except (IndexError, ValueError) as error:
        print(error)
with open("/proc/self/maps") as file:
    print(__debug__, "nvrtc" in file.read())
"""
)


def test_without_assertions_and_with_warnings_as_errors(python, compiler, tmp_path):
    """Also of a build of the native runtime that goes on in the background when the process ends."""
    compiler('case "$*" in *-std=c++20*) exit 1;; esac; exec c++ "$@"')
    done = python(FLAGS, "-O", "-W", "error", CXX="./compiler", LOSSZOO_CACHE_DIR="cache", LOSSZOO_RUNTIME="")
    assert done.stderr == ""
    label, shape, end = done.stdout.splitlines()
    assert label.startswith("target: row 1 has label 3") and shape.startswith("target: got shape (3,)")
    assert end == "False False"  # and nothing of CUDA's is touched for the CPU
    deadline = time.monotonic() + 120
    while not list((tmp_path / "cache").glob("losszoo_runtime-*/failure.txt")):  # here, and not where a relative path leads elsewhere
        assert time.monotonic() < deadline
        time.sleep(0.1)
