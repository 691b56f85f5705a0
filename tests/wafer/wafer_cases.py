"""Small wafers and models for the wafer tests."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from atoll.hardware.accelerator import MIB, Accelerator, Hbm
from atoll.hardware.template.stalls import NO_STALLS, SCRATCHPAD, Stalls
from atoll.hardware.wafer import DramStack, Wafer
from atoll.wafer.encoding.block import make_block
from atoll.wafer.encoding.block_parts import WaferBlock

LOSSES = replace(SCRATCHPAD, start_s=2e-8, fill_s=1e-8, mask_rows=4)
"""What small dies lose: starts are as short as their operators."""


def small_wafer(
    rows: int = 2,
    columns: int = 2,
    link_Bps: float = 50e9,
    memory_bytes: int = 64 * MIB,
    latency_s: float = 1e-8,
    stalls: Stalls = NO_STALLS,
) -> Wafer:
    core = Accelerator(4, 4, 8, 8, 8, 2 * MIB, 256.0, 1e9, Hbm(1, 1.0), stalls=stalls)
    return Wafer(
        name="small",
        rows=rows,
        columns=columns,
        core=core,
        stacks=1,
        stack=DramStack(memory_bytes, 40e9, 1.0, 0.1),
        usable_mm2=1e4,
        halo_mm2=1.0,
        link_latency_s=latency_s,
        io_Bps=10e9,
        stated_link_Bps=link_Bps,
    )


_FOLDER = TemporaryDirectory(prefix="atoll-wafer-")


@cache
def small_model(hidden: int = 64, heads: int = 4, ffn: int = 96, layers: int = 4) -> str:
    """A Llama-like configuration on disk; its path is its name."""
    path = Path(_FOLDER.name) / f"{hidden}-{heads}-{ffn}-{layers}" / "config.json"
    config = {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "vocab_size": 128,
        "max_position_embeddings": 4096,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(config))
    return str(path)


def sub_block(block: WaferBlock, chains: tuple[int, ...]) -> WaferBlock:
    """The block with some of its chains only."""
    return replace(block, chains=tuple(block.chains[i] for i in chains))


def small_block(microbatch: int = 1, sequence: int = 24, **shape: int) -> WaferBlock:
    return make_block(small_model(**shape), microbatch, sequence)


def small_file(folder: Path) -> Path:
    """A wafer of 2 x 4 dies as a file."""
    path = folder / "wafer.yaml"
    path.write_text(
        "name: little\nusable_area: 5000 mm2\ngrid: [2, 4]\n"
        "die: {tensor_cores: 16, vector_cores: 16, width: 16, depth: 16, sram: 8 MiB,"
        " clock: 1 GHz}\n"
        "dram: {stacks: 1, capacity: 1 GiB, bandwidth: 200 GB/s}\n"
        "link: {bandwidth: 100 GB/s, latency: 50 ns}\nio_bandwidth: 50 GB/s\n"
    )
    return path
