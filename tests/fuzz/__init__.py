"""Random specs: kernels against the interpreter. `python -m tests.fuzz --help`."""
