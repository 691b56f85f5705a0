"""Three published findings about wafers, tried with this evaluator.

    python benchmarks/wafer_findings.py [tensor|memory|pipeline]

tensor:   tensor 4 x pipeline 8 against tensor 8 x pipeline 4 on 32 dies.
memory:   the same area with more compute or more memory: what recomputation is worth on each.
pipeline: one group of all dies against pipelines inside the wafer.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import product

from atoll.base.errors import AtollError
from atoll.fabric.digits import digit_systems
from atoll.fabric.mesh import snake
from atoll.hardware.wafer import Wafer
from atoll.hardware.wafer_files import load_wafer
from atoll.wafer.encoding.block import make_block
from atoll.wafer.encoding.block_parts import BlockMapping
from atoll.wafer.encoding.mapping import StageMapping, WaferMapping
from atoll.wafer.evaluate import MappingCost, evaluate, head_codes
from atoll.wafer.search import QUICK_CODES, PipelineShape, WaferSearch
from atoll.wafer.staging.planner import WaferOptions
from record import recorded


def megatron_like(
    wafer: Wafer, model: str, batch: int, width: int, height: int, stages: int, *, streaming: bool
) -> MappingCost:
    """Tensor parallel on a rectangle with sequence parallelism, everything kept."""
    block = make_block(model, 1)
    digits = digit_systems(width, height)[0]
    n = digits.count
    genes = BlockMapping(
        "s" * n, tuple(tag * n for tag in "nhknck"), ("optimizer",) * 6, (True,) * 7
    )
    rectangles = snake(wafer.rows, wafer.columns, width, height, stages)
    assert rectangles is not None
    layers = [block.layers // stages + (i < block.layers % stages) for i in range(stages)]
    head = head_codes(block, digits, genes.stream)[0]
    mapping = WaferMapping(
        model, batch, 1, block.sequence,
        tuple(StageMapping(r, digits, k, genes, head)
              for r, k in zip(rectangles, layers, strict=True)),
        streaming, "auto",
    )  # fmt: skip
    return evaluate(wafer, mapping)


def tensor() -> None:
    """Llama-2 70B on 4 x 8 of the default wafer's dies, with its links and with a tenth of them."""
    base = replace(load_wafer("default"), rows=4)
    slow = replace(base, stated_link_Bps=base.link_Bps / 10)
    ways = ((2, 2, 8), (4, 1, 8), (4, 2, 4), (8, 1, 4))
    heads = [f"{width * height} as {width}x{height}" for width, height, _ in ways]
    print(f"| links | collectives | {' | '.join(heads)} |")
    print("|---" * (len(heads) + 2) + "|")
    links = (("default", base), ("a tenth", slow))
    for (label, wafer), streaming in product(links, (False, True)):
        found = [megatron_like(wafer, "llama2-70b", 128, *w, streaming=streaming) for w in ways]
        cells = [f"{e.samples_per_s:.2f}" if e.fits else "does not fit" for e in found]
        words = "streamed" if streaming else "blocking"
        print(f"| {label} | {words} | {' | '.join(cells)} |", flush=True)


def memory() -> None:
    """Stacks traded for cores: as many cores as 40,000 mm2 leave; 6 x 8 dies, Llama-2 70B.

    Stacks of 28 GiB, so that a single one can hold the states at all.
    """
    default = load_wafer("default")
    base = replace(default, stack=replace(default.stack, capacity_bytes=28 * 2**30))
    for stacks in (1, 2, 3, 4):
        wafer = _fullest(base, stacks)
        cells = []
        for label, options in (
            ("with", WaferOptions()),
            ("without", WaferOptions(recompute=False)),
        ):
            search = WaferSearch(wafer, "llama2-70b", 128, 4096, options, (1,), None, QUICK_CODES)
            try:
                found = search.run()
            except AtollError:
                cells.append(f"{label} recomputation: does not fit")
                continue
            again = sum(s.parts_s["recomputation"] for s in found.best.stages)
            cells.append(
                f"{label} recomputation: {found.best.samples_per_s:.2f}/s"
                + (" (used)" if again > 1e-12 else "")
            )
        print(
            f"{wafer.name}, {wafer.memory_bytes / 2**30:.0f} GiB, "
            f"{wafer.core.peak_flops / 1e12:.0f} TFLOP/s a die, "
            f"links {wafer.link_Bps / 1e12:.2f} TB/s: " + "; ".join(cells),
            flush=True,
        )


def _fullest(base: Wafer, stacks: int) -> Wafer:
    """The most cores, in steps of 4, that leave room for so many stacks."""
    cores = 64
    best = None
    while True:
        core = replace(base.core, tensor_cores=cores, vector_cores=cores)
        try:
            best = replace(base, name=f"{stacks} stacks, {cores} cores", core=core, stacks=stacks)
        except AtollError:
            assert best is not None
            return best
        cores += 4


def pipeline() -> None:
    """All dies as one group, or stages."""
    base = load_wafer("default")

    def one(candidate: PipelineShape) -> bool:
        return candidate.stages == 1

    def several(candidate: PipelineShape) -> bool:
        return candidate.stages > 1

    for label, wafer in (
        ("default links", base),
        ("links / 10", replace(base, stated_link_Bps=base.link_Bps / 10)),
    ):
        for model, batch in (("llama2-70b", 128), ("llama2-70b", 16)):
            cells = []
            for words, accept in (("one group", one), ("pipeline", several)):
                found = WaferSearch(
                    wafer, model, batch, make_block(model, 1).sequence, None, (1, 2),
                    accept=accept,
                ).run()  # fmt: skip
                mapping = found.best.mapping
                cells.append(
                    f"{words}: {found.best.samples_per_s:.2f}/s ({len(mapping.stages)} x "
                    f"{mapping.stages[0].rectangle.size} dies)"
                )
            print(f"{label}, {model}, batch {batch}: " + "; ".join(cells), flush=True)


def main() -> None:
    parts = {"tensor": tensor, "memory": memory, "pipeline": pipeline}
    for name in sys.argv[1:] or parts:
        print(f"-- {name}")
        parts[name]()


if __name__ == "__main__":
    sys.exit(recorded(main))
