"""Data-parallel training on two processes, mixed precision, and the mean over all ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import losszoo

ROOT = Path(__file__).parent.parent.parent
WORKER = """
import sys
import torch, torch.distributed as dist, torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
import losszoo

rank, place = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=2)
torch.manual_seed(0)
x, y = torch.randn(16, 12), torch.randint(5, (16,))
y[:7] = -100  # the ranks keep 1 and 8 rows
mine = slice(8 * rank, 8 * rank + 8)

def gradients(loss, *batch):
    torch.manual_seed(1)
    model = DistributedDataParallel(torch.nn.Linear(12, 5))
    loss(model(batch[0]), batch[1]).backward()
    return [p.grad for p in model.parameters()]

for ours, theirs in zip(gradients(losszoo.cross_entropy, x[mine], y[mine]), gradients(F.cross_entropy, x[mine], y[mine]), strict=True):
    torch.testing.assert_close(ours, theirs)

def over_all_ranks(logits, labels):
    return losszoo.cross_entropy(logits, labels, normalizer=losszoo.parallel.global_count((labels != -100).sum()))

torch.manual_seed(1)
alone = torch.nn.Linear(12, 5)
F.cross_entropy(alone(x), y).backward()
for ours, theirs in zip(gradients(over_all_ranks, x[mine], y[mine]), alone.parameters(), strict=True):
    torch.testing.assert_close(ours, theirs.grad)
dist.destroy_process_group()
print("same")
"""


@pytest.mark.cpu_only
def test_two_processes(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment.pop("LOSSZOO_RUNTIME")
    command, pipes = [sys.executable, "-c", WORKER], {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    workers = [subprocess.Popen([*command, str(rank), str(tmp_path / "store")], env=environment, **pipes) for rank in range(2)]
    for worker in workers:
        out, err = worker.communicate(timeout=300)
        assert worker.returncode == 0 and out == "same\n", err


def test_alone_the_count_is_the_count():
    count = torch.tensor(3)
    got = losszoo.parallel.global_count(count)
    assert got == 3 and got.shape == () and got.data_ptr() != count.data_ptr()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_training_with_autocast_and_a_scaler(dtype, device):
    def weights(loss):
        torch.manual_seed(0)
        model = torch.nn.Linear(32, 10).to(device)
        x, y = torch.randn(64, 32, device=device), torch.randint(10, (64,), device=device)
        optimizer, scaler = torch.optim.SGD(model.parameters(), 0.5), torch.amp.GradScaler(device, init_scale=1024.0)
        for _ in range(5):
            optimizer.zero_grad()
            with torch.autocast(device, dtype=dtype):
                value = loss(model(x), y, label_smoothing=0.1)
            scaler.scale(value).backward()
            scaler.step(optimizer)
            scaler.update()
        return model.weight

    torch.testing.assert_close(weights(losszoo.cross_entropy), weights(F.cross_entropy), rtol=2e-2, atol=2e-3)
