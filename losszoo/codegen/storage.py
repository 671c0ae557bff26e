"""How the kernels spell and size what tensors are stored as."""

STORAGE = {"float64": "double", "float32": "float", "float16": "lz::half", "bfloat16": "lz::bfloat16", "int64": "lz::int64"}
SIZE = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8}
