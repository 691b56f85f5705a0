"""Megatron's own road from a script to a configuration, on a machine without a GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from export_cases import arguments_of

from atoll.step.layout import Layout


def parsed(
    parser: Any, monkeypatch: pytest.MonkeyPatch, script: Path, layout: Layout
) -> tuple[Any, Any]:
    """Arguments after Megatron's own checks, and the configuration that it makes of them."""
    words, environment = arguments_of(script)
    monkeypatch.setattr(sys, "argv", ["pretrain_gpt.py", *words])
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WORLD_SIZE", str(layout.devices))
    monkeypatch.setenv("RANK", "0")
    stand_for_hopper(parser, monkeypatch)
    checked = parser.validate_args(parser.parse_args())
    return checked, parser.core_transformer_config_from_args(checked)


def stand_for_hopper(parser: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Megatron asks of the machine: an H100 with Transformer Engine."""
    from megatron.core import utils
    from megatron.core.models.common.embeddings import rope_utils

    monkeypatch.setattr(parser, "get_device_arch_version", lambda: 9)
    monkeypatch.setattr(parser.torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(utils, "_te_version", utils.PkgVersion("2.9.0"))
    monkeypatch.setattr(rope_utils, "fused_apply_rotary_pos_emb", lambda: None)
