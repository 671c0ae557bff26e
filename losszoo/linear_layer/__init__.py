"""A loss of rows fused with the linear layer before it.

surface makes the public function, problem checks a call, function binds it to autograd; rows (and classes) go through the logits in
chunks, with torch's matrix products and the loss's own kernels between them.
"""

from losszoo.linear_layer.surface import linear

__all__ = ["linear"]
