"""CUDA kernels run on the CPU: the text that NVRTC compiles, compiled by g++ and executed with a fibre a thread.

    with simt.machine() as launches:
        prepared = kernels.Prepared(call, operands, wrt)
        loss, denominator, state = kernels.forward(prepared, keep=True)

Inside the block, CPU tensors say that they are on a CUDA device, and the product's own code prepares, packs and launches; only
the compiler and the driver are others. `device/` holds the headers that kernels are compiled with, `host/` the machine itself. A
kernel that does what a GPU would not forgive (a divergent barrier, a race, an access outside of its buffers) ends its process with a
message, and the launch raises Fault.
"""

from tests.simt.driver import Fault, machine
from tests.simt.toolchain import Toolchain

__all__ = ["Fault", "Toolchain", "machine"]
