"""Models from real PyTorch modules: forward and backward on fake tensors (needs `atoll[torch]`).

torch is imported in torch_api.py and huggingface.py only, and only when a capture begins.
"""

from atoll.tracing.capture import capture, capture_target

__all__ = ["capture", "capture_target"]
