"""ONNX files: the forward graph runs as a PyTorch module on fake tensors, and is captured like one.

So the backward pass is the one that autograd derives, and everything behind it (layers, kernels,
what is kept, tensor parallelism) is the same code as for a module. Tensor data are not used:
weights may lie in files that are not there.
"""

from atoll.tracing.from_onnx.capture import capture_onnx

__all__ = ["capture_onnx"]
