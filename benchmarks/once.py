"""Every problem of gpu.py once, forward and backward: `ncu -k 'regex:^(forward|backward)$' --metrics ... python benchmarks/once.py`.

Prints the problems in the order in which a profiler then meets their kernels, two each. For spills:
smsp__inst_executed_op_local_ld.sum, smsp__inst_executed_op_local_st.sum, launch__registers_per_thread.
"""

from __future__ import annotations

import sys

import torch
from gpu import problems


def main() -> None:
    for problem in problems():
        if not sys.argv[1:] or any(part in problem.name for part in sys.argv[1:]):
            input, *others = problem.make()
            loss = problem.ours(input.requires_grad_(), *others)
            torch.autograd.grad(loss, input, torch.ones_like(loss))
            torch.cuda.synchronize()
            print(problem.name, flush=True)
            del input, others, loss
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
