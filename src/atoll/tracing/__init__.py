"""Models from real PyTorch modules: forward and backward on fake tensors (needs `atoll[torch]`).

torch is imported in `record/` and `from_onnx/` only, and only when a capture begins.
"""

from atoll.tracing.capture import capture
from atoll.tracing.target import capture_target

__all__ = ["capture", "capture_target"]
