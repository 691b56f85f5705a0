"""The line of a launch file that starts it under Slurm, with stand-ins for Slurm's commands."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from export_cases import DENSE, Case

STAND_INS = {
    "sbatch": 'echo "sbatch ${@:1:$#-1}"; bash -c "${@: -1}"',
    "srun": 'SLURM_NODEID=3 "$@"',
    "torchrun": 'echo "torchrun $*"',
    "hostname": "echo first-node",
}


@pytest.mark.parametrize(
    ("target", "case", "said"),
    [
        ("megatron", DENSE, "--node-rank 3"),
        ("torchtitan", DENSE, "--rdzv-endpoint first-node:29500"),
    ],
)
def test_every_node_starts_its_rank_and_meets_at_the_first(
    target: str, case: Case, said: str, tmp_path: Path
) -> None:
    for name, body in STAND_INS.items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    made = case.export(target)
    made.save(tmp_path)
    (line,) = [x for x in made.text.splitlines() if x.startswith("# Under Slurm: ")]
    done = subprocess.run(
        ["bash", "-c", line.removeprefix("# Under Slurm: ")],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    asked, started = done.stdout.splitlines()
    nodes = case.layout.devices // 8
    assert asked == (
        f"sbatch --nodes {nodes} --ntasks-per-node 1 --gpus-per-node 8 --exclusive --wrap"
    )
    assert started.startswith(f"torchrun --nnodes {nodes} --nproc-per-node 8 ")
    assert said in started
    assert "first-node" in started
