"""Reports in a real browser: they draw without an error, and answer to mouse and keyboard.

Every view leaves its picture in build/screenshots.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import atoll
from accessibility import problems, unfocused
from atoll.questions import EstimateQuestion
from atoll.report.folder import write_plan
from atoll.report.page import write_report
from browser import Browser, Page

pytestmark = pytest.mark.slow

READY = "document.documentElement.dataset.ready === 'yes'"


@contextmanager
def opened(
    browser: Browser, folder: Path, tmp_path: Path, width: int = 1280, *, dark: bool = False
) -> Iterator[Page]:
    """The report of a folder, drawn; at the end nothing may have gone wrong."""
    path = write_report(folder, tmp_path / "report.html")
    with browser.page(width, 900, dark=dark) as page:
        page.goto(path.as_uri())
        page.wait_for(READY)
        yield page
        assert page.errors == []
        assert page.requests == [path.as_uri()], "the file fetches nothing"


def sections(page: Page) -> set[str]:
    return set(page.eval("[...document.querySelectorAll('section')].map((s) => s.id)"))


def test_a_search_shows_every_view(browser: Browser, seed_run: Path, tmp_path: Path) -> None:
    with opened(browser, seed_run, tmp_path) as page:
        assert sections(page) == {
            "answer", "details", "chip", "space", "time", "schedule", "pipeline", "memory",
            "sensitivity",
        }  # fmt: skip
        assert "Proven optimal over 29,360 architectures" in page.text("#certificate")
        assert page.count("#chip-picture rect") > 10
        assert page.count("#schedule-picture rect.op") > 5
        assert page.count("#time .part") >= 3
        assert page.count("#memory .part") >= 2
        assert page.overflow() == 0
        page.screenshot("report-search")


def test_points_can_be_clicked_and_filters_change_the_counts(
    browser: Browser, seed_run: Path, tmp_path: Path
) -> None:
    with opened(browser, seed_run, tmp_path) as page:
        assert page.text("#space-count").startswith("29,360 of 29,360 chips")
        best = page.text("#space-detail")
        assert "100.00%" in best, "the best is chosen at first"
        left, top, width, height = page.box("#space-plot")
        page.click_at(left + 0.4 * width, top + height - 47)
        slow = page.text("#space-detail")
        assert slow != best and "ruled out" in slow and "at most" in slow
        page.screenshot("report-search-point", whole=False)
        counts = [29_360]

        def narrowed() -> None:
            counts.append(int(page.text("#space-count").split(" of ")[0].replace(",", "")))
            assert 0 < counts[-1] < counts[-2]

        data = "JSON.parse(document.getElementById('data').textContent)"
        page.set_value("#space-width", str(page.eval(f"{data}.best.width")))
        narrowed()
        page.set_value("#space-area", "275")
        narrowed()
        page.click("#space-state-0")
        narrowed()
        assert "evaluated" in page.text("#space-count")
        page.set_value("#space-axis", "power_W")
        assert "have no figure on this axis" in page.text("#space-count")
        page.click("#space-log")
        page.box("#space-plot")
        page.screenshot("report-search-filtered", whole=False)


def test_the_front_can_be_walked_with_the_keyboard(
    browser: Browser, tiny_run: Path, tmp_path: Path
) -> None:
    with opened(browser, tiny_run, tmp_path) as page:
        page.eval("document.getElementById('space-plot').focus()")
        seen = [page.text("#space-detail")]
        for _ in range(2):
            page.press("ArrowLeft")
            seen.append(page.text("#space-detail"))
        assert len(set(seen)) == 3
        page.press("End")
        assert page.text("#space-detail") == seen[0]
        assert page.count("#baseline-table tr") == 6


@pytest.mark.parametrize("kind", ["tiny_run", "plan_run", "wafer_run"])
def test_tab_reaches_every_control_and_the_focus_is_seen(
    browser: Browser, kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with opened(browser, request.getfixturevalue(kind), tmp_path) as page:
        assert unfocused(page) == []


def test_a_plan_says_what_its_text_answer_says(browser: Browser, tmp_path: Path) -> None:
    """The same lines in the same order; warnings stand out, and the launch file is saved."""
    tight = atoll.plan(
        "llama3-8b", "h100", 8, batch=64, tp=[1], pp=[1], recompute=["none"], tokens=1e9, price=2.5
    )
    write_plan(tight, tmp_path / "plan")
    with opened(browser, tmp_path / "plan", tmp_path) as page:
        lines = "[...document.querySelectorAll('#answer dl div')]"
        shown = page.eval(f"{lines}.map((e) => [...e.children].map((part) => part.textContent))")
        assert shown == [list(line) for line in tight.summary()]
        assert {"Run", "Step", "Memory", "Cost", "Confidence"} <= {label for label, _ in shown}
        warned = page.eval(f"{lines}.filter((e) => e.className === 'warn').map((e) => e.innerText)")
        assert bool(warned) == tight.best.tight == ("tight" in dict(tight.summary())["Memory"])
        page.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
        page.click("#launch-save")
        launch = next(f for f in tight.answer.launch if f.target == tight.answer.tool)
        saved = tmp_path / launch.file
        page.wait_until(saved.exists)
        assert saved.read_text(encoding="utf-8") == launch.text


def test_the_schedule_follows_its_chooser(browser: Browser, tiny_run: Path, tmp_path: Path) -> None:
    with opened(browser, tiny_run, tmp_path) as page:
        before = page.text("#schedule-about")
        page.set_value("#schedule-layer", "3")
        assert page.text("#schedule-about") != before


def test_a_plan_shows_its_layout_pipeline_and_launch_file(
    browser: Browser, plan_run: Path, tmp_path: Path
) -> None:
    with opened(browser, plan_run, tmp_path) as page:
        assert sections(page) == {
            "answer", "details", "layout", "time", "why", "schedule", "pipeline", "memory",
            "sensitivity", "launch",
        }  # fmt: skip
        assert page.count("#layout-picture rect.device") == 128
        devices = "document.querySelectorAll('rect.device')"
        colours = f"new Set([...{devices}].map((r) => r.getAttribute('fill'))).size"
        assert page.eval(colours) == 8, "pipeline stages"
        page.set_value("#layout-axis", "dp")
        assert page.eval(colours) == 2
        assert "--pipeline-model-parallel-size 8" in page.text("#launch-text")
        page.click("#launch-copy")
        said = "document.querySelector('#launch .controls').textContent"
        page.wait_for(f"/copied|selected/.test({said})")
        page.click("#pipeline-zoom-0")
        assert page.eval("document.getElementById('pipeline-plot-0').clientWidth") > 1280
        left, top, _, _ = page.box("#pipeline-plot-0")
        page.hover_at(max(left, 0) + 200, top + 10)
        assert "stage 0" in page.text(".tip")
        page.screenshot("report-plan")


def test_tools_that_cannot_run_a_layout_say_why_where_their_file_would_be(
    browser: Browser, tmp_path: Path
) -> None:
    tuned = atoll.estimate(
        "llama2-7b", "h100", 8, batch=64, zero=3, method="lora", out=tmp_path / "lora"
    )
    with opened(browser, tmp_path / "lora", tmp_path, 1400) as page:
        shown = []
        for number in range(page.count("#launch-tool option")):
            page.set_value("#launch-tool", str(number))
            shown.append(page.eval("document.querySelector('#launch').innerText"))
        files = tuned.answer.launch
        assert {bool(file.refused) for file in files} == {True, False}
        for number, (file, words) in enumerate(zip(files, shown, strict=True)):
            page.set_value("#launch-tool", str(number))
            assert not file.refused or file.refused in words
            copied = not page.eval("document.querySelector('#launch-copy').disabled")
            assert copied == (not file.refused)
        page.box("#launch")
        page.screenshot("report-no-launch-file", whole=False)


def test_a_wafer_shows_its_dies(browser: Browser, wafer_run: Path, tmp_path: Path) -> None:
    with opened(browser, wafer_run, tmp_path) as page:
        assert sections(page) == {
            "answer", "details", "wafer", "time", "baselines", "pipeline", "memory",
        }  # fmt: skip
        assert all(word in page.text("#details") for word in ("Proof", "Area", "PFLOP/s"))
        assert "earlier version" in page.text("#answer"), "the file has no summary"
        assert "×" in page.text("#wafer-picture"), "a dead die"
        assert page.count("#wafer-picture rect.die") == 48
        assert page.count("#wafer-picture line.link") > 40
        page.set_value("#wafer-colour", "memory")
        assert "%" in page.text("#wafer-picture")
        page.screenshot("report-wafer")


@pytest.mark.parametrize(
    ("width", "dark"), [(1400, False), (1400, True), (390, False), (390, True)]
)
@pytest.mark.parametrize("kind", ["tiny_run", "plan_run", "wafer_run"])
def test_nothing_sticks_out_and_all_is_labelled_and_legible(
    browser: Browser, kind: str, width: int, dark: bool, request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:  # fmt: skip
    with opened(browser, request.getfixturevalue(kind), tmp_path, width, dark=dark) as page:
        assert page.overflow() == 0 and problems(page) == []
        shade = page.eval("getComputedStyle(document.body).backgroundColor")
        assert (sum(int(v) for v in shade[4:-1].split(",")) < 150) == dark
        page.screenshot(f"report-{kind.removesuffix('_run')}-{width}{'-dark' if dark else ''}")


def test_a_sweep_is_drawn_with_a_line_for_every_value_of_the_other_field(
    browser: Browser, tmp_path: Path
) -> None:
    asked = EstimateQuestion.of(model="gpt2-xl", device="h100", batch=64, out=tmp_path / "sweep")
    found = atoll.sweep(asked, devices=[8, 16, 32], zero=[0, 1])
    with opened(browser, tmp_path / "sweep", tmp_path) as page:
        assert page.text("h1") == "Sweep of devices, zero"
        assert page.count("#charts .swatch") == page.count("#charts polyline") == 2
        assert page.count("#charts circle") == page.count("table tbody tr") == len(found.rows) == 6
        assert f"{found.rows[0].figures['tokens/s per device']:,.0f}" in page.text("#charts circle")
        page.set_value("#chart-figure", "1")
        page.wait_for("document.querySelector('#charts svg')?.textContent.includes('step s')")
        interval = page.eval("document.querySelector('#charts circle').textContent")
        assert f"{found.rows[0].figures['low s']:.4g} to " in interval
        assert problems(page) == []
        page.screenshot("report-sweep")


def test_two_runs_are_compared_side_by_side(browser: Browser, tmp_path: Path) -> None:
    files = []
    for devices in (8, 16):
        one = atoll.estimate("gpt2-xl", "h100", devices, batch=64)
        files.append(one.save(tmp_path / f"{devices}.json"))
    found = atoll.compare(*files)
    path = found.report(tmp_path / "compared.html")
    with browser.page(1280, 900) as page:
        page.goto(path.as_uri())
        page.wait_for(READY)
        assert page.text("h1") == "2 runs side by side"
        differing = page.eval(
            "[...document.querySelectorAll('tbody tr')]"
            ".filter((r) => r.cells[1].textContent === '≠').map((r) => r.cells[0].textContent)"
        )
        rows = (*found.asked, *found.figures)
        assert differing == [row.name for row in rows if row.differs]
        assert "devices" in differing and "step s" in differing
        ratio = next(row.ratios[1] for row in rows if row.name == "step s")
        assert f"({ratio:.3g}x)" in page.text("main")
        charts = page.eval("[...document.querySelectorAll('#charts h3')].map((e) => e.innerText)")
        assert "step s" in charts and set(charts) < set(differing)
        assert page.count("#charts rect") == 2 * len(charts), "a bar for each run"
        assert page.errors == [] and problems(page) == []
        page.screenshot("report-compared")
