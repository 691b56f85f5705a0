"""Size of the PHAZE space's report, and how soon it can be used in a real browser.

    python benchmarks/report_page.py [FOLDER]

Without a folder, all 29,360 chips are searched for a small job first. Needs Chromium.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from record import recorded

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import atoll
from atoll.report.page import write_report
from browser import start_browser

REPEATS = 5


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(scratch) / "run"
        if not folder.exists():
            atoll.search(
                model="bert-large", devices=64, batch=256, microbatch=[4],
                tp=[1], space="phaze", baselines=False, out=folder,
            )  # fmt: skip
        path = write_report(folder, Path(scratch) / "report.html")
        print(f"size                   {path.stat().st_size / 1e6:6.2f} MB")
        with start_browser() as browser:
            for width, what in ((1280, "desktop"), (390, "phone")):
                ready, redrawn = [], []
                for _ in range(REPEATS):
                    with browser.page(width) as page:
                        page.goto(path.as_uri())
                        page.wait_for("document.documentElement.dataset.ready === 'yes'")
                        ready.append(page.eval("performance.now()"))
                        page.eval("window.began = performance.now()")
                        page.set_value("#space-width", "64")
                        redrawn.append(page.eval("performance.now() - window.began"))
                print(f"ready, {what:<8}        {sorted(ready)[REPEATS // 2]:6.0f} ms")
                print(f"filter, {what:<8}       {sorted(redrawn)[REPEATS // 2]:6.0f} ms")


if __name__ == "__main__":
    sys.exit(recorded(main))
