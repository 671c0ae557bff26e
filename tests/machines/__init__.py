"""Machines as users have them: each situation ends in the right result or in one clear message. Where each is tested:

| situation | tests |
|---|---|
| no compiler | tests/test_fallback.py, test_doctor.py |
| an old compiler; one that fails; one for another kind of machine | test_compilers.py; messages in tests/jit/test_build.py |
| a compiler that cannot be started | tests/jit/test_build.py |
| a home that cannot be written; no home at all | test_places.py; tests/jit/test_cache.py |
| a full disk; a file system without exec | test_places.py, where mounting is allowed (docs/machines.md shows both); a quota everywhere |
| a cache from another version or machine | test_places.py; the key in tests/jit/test_build.py |
| a damaged cache | test_places.py; kinds of damage in tests/jit/test_cache.py |
| others can write the cache, another user owns it | tests/jit/test_cache.py |
| 8 processes and 8 threads at once; fork after import, and after use | test_processes.py; tests/jit/test_cache.py and test_build.py |
| a killed builder | test_processes.py; tests/jit/test_cache.py |
| spaces and non-ASCII letters in every path | test_places.py; tests/jit/test_build.py |
| LOSSZOO_CACHE_DIR on a file | test_places.py; tests/jit/test_cache.py |
| a torch without CUDA | test_processes.py (CI's torch has none) |
| a driver older than NVRTC's output; no driver; a broken NVRTC | tests/jit/test_cuda_driver.py, tests/jit/test_build.py |
| DataLoader workers, forked and spawned | test_processes.py |
| pickling and deep-copying | tests/spec/test_copying.py |
| python -O, -W error | test_processes.py |
| an installed wheel | tests/test_wheel.py |
"""
