"""Layouts that the export tests share, and how a script is run without a cluster."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atoll.answers.layout import LaunchFile
from atoll.export import export
from atoll.step.layout import Layout
from atoll.workload.load import load_config


@dataclass(frozen=True)
class Case:
    model: str
    layout: Layout
    sequence: int = 4096
    global_batch: int = 64
    precision: str = "bf16"
    stages: tuple[int, ...] | None = None
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the plan."""

    def export(self, target: str) -> LaunchFile:
        return export(
            target,
            load_config(self.model),
            self.layout,
            sequence=self.sequence,
            global_batch=self.global_batch,
            precision=self.precision,
            stages=self.stages,
            **self.more,
        )


DENSE = Case("llama3-70b", Layout(dp=8, tp=8, pp=4, vpp=5, zero=1), global_batch=128)
UNEVEN = Case("llama3-405b", Layout(dp=2, tp=8, pp=16, zero=1, recompute="full"))
SHARDED = Case("llama3-8b", Layout(dp=8, zero=3, recompute="full"))
LONG = Case("llama3-8b", Layout(dp=2, tp=2, cp=4, zero=3), sequence=32768)
EXPERTS = Case("qwen3-30b-a3b", Layout(dp=16, ep=8, zero=3))


def arguments_of(script: Path, *more: str) -> tuple[list[str], dict[str, str]]:
    """What the script hands to torchrun after the program's name, and its environment."""
    stand_in = script.parent / "bin" / "torchrun"
    stand_in.parent.mkdir(exist_ok=True)
    stand_in.write_text('#!/bin/sh\necho "$CUDA_DEVICE_MAX_CONNECTIONS"\nprintf "%s\\n" "$@"\n')
    stand_in.chmod(0o755)
    path = f"{stand_in.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [str(script), *more],
        env={"PATH": path, "NODE_RANK": "0", "MASTER_ADDR": "first"},
        capture_output=True,
        text=True,
        check=True,
    )
    connections, *words = done.stdout.splitlines()
    start = words.index("./pretrain_gpt.py") + 1
    return words[start:], {"CUDA_DEVICE_MAX_CONNECTIONS": connections}


def script_of(case: Case, folder: Path) -> Path:
    return case.export("megatron").save(folder)
