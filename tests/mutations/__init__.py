"""Faults planted one at a time, to see that the tests catch them: `python -m tests.mutations --help`."""
