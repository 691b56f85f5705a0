"""Matrix products of a search's answer, evaluated by ZigZag from the files that Atoll exports.

    atoll search --out runs/mine
    pip install zigzag-dse==3.9.1 six
    python benchmarks/zigzag_files.py runs/mine

Both evaluate the same mapping. Atoll's cycles are the longest of arrays, shared buffer and HBM,
without the losses of its template, which ZigZag does not have; joules are those of multiply-adds
and core buffers, the shared buffer and HBM.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

import atoll
from atoll.answers.search import SearchAnswer
from atoll.export.zigzag import mapped_products, write_zigzag
from atoll.hardware.energy import core_buffer_bytes_per_mac, template_energy
from atoll.hardware.silicon.systolic import SYSTOLIC
from record import recorded

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "atoll-zigzag" / "src"))

from atoll_zigzag.engine import evaluated


def main() -> None:
    print("| m x n x k | resident | Atoll cycles | ZigZag | ratio | Atoll mJ | ZigZag mJ |")
    print("|---|---|---|---|---|---|---|")
    ratios, energies, seen = [], [], set()
    for run in sys.argv[1:]:
        answer = atoll.load(Path(run) / "result.json")
        assert isinstance(answer, SearchAnswer)
        chip = answer.best.accelerator.device()
        energy = template_energy(chip.template or SYSTOLIC)
        mac_J = energy.mac_J + energy.core_buffer_J_per_byte * float(
            core_buffer_bytes_per_mac(chip.width, chip.depth)
        )
        hbm_Bpc = chip.hbm.bandwidth_Bps / chip.clock_Hz
        with tempfile.TemporaryDirectory() as folder:
            write_zigzag(answer, Path(folder))
            costs = {cost.layer.name: cost for cost, _ in evaluated(Path(folder), 6)[0][1]}
        for name, product in mapped_products(answer):
            shape = product.m, product.n, product.k, run
            if shape in seen:
                continue
            seen.add(shape)
            traffic = product.hbm_bytes / hbm_Bpc, product.glb_bytes / chip.glb_bandwidth_Bpc
            cycles = max(product.cycles, *traffic)
            joules = product.m * product.n * product.k * mac_J
            joules += product.glb_bytes * energy.glb_J_per_byte
            joules += product.hbm_bytes * energy.hbm_J_per_byte
            peer = costs[name]
            peer_J = peer.energy_total * 1e-12
            ratios.append(cycles / peer.latency_total2)
            energies.append(joules / peer_J)
            print(
                f"| {product.m} x {product.n} x {product.k} | {product.resident} | {cycles:,.0f} | "
                f"{peer.latency_total2:,.0f} | {ratios[-1]:.2f} | {joules * 1e3:.2f} | "
                f"{peer_J * 1e3:.2f} |"
            )
    near = sum(abs(ratio - 1) <= 0.1 for ratio in ratios)
    medians = f"{statistics.median(ratios):.2f}, of energy {statistics.median(energies):.2f}"
    print(f"\n{near} of {len(ratios)} products within 10 %; median ratio of cycles {medians}.")


if __name__ == "__main__":
    sys.exit(recorded(main))
