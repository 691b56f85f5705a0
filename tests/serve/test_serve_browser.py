"""The explorer in a real browser: every view renders, and does what its controls say.

Pictures of the views go to build/screenshots, for people to look at.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from serve_runs import (
    design,
    open_store,
    random_designs,
    serving,
    write_designs,
    write_wafer,
    write_wafer_search,
)

import atoll
from accessibility import problems, unfocused
from atoll.serve.server import Explorer

if TYPE_CHECKING:
    from browser import Browser, Page

pytestmark = pytest.mark.slow

COUNT = "Number(document.querySelector('#count')?.dataset.count)"
DRAWN = "document.querySelector('#scatter')?.dataset.shown > 0"
ROWS = "document.querySelectorAll('tr[data-chip]').length > 0"
POINT = (
    "(() => {{const c = document.querySelector('#scatter');"
    "c.scrollIntoView({{block: 'center', behavior: 'instant'}});"
    "const b = c.getBoundingClientRect(); return [b.left, b.top, b.width, b.height]}})()"
)


@pytest.fixture(scope="module")
def explorer(
    tiny_run: Path, plan_run: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Explorer]:
    folder = tmp_path_factory.mktemp("many")
    many = write_designs(folder / "many", random_designs(3000))
    with serving(tiny_run, plan_run, many) as started:
        yield started


def assert_clean(page: Page) -> None:
    assert page.errors == []
    assert page.foreign_requests() == []
    assert page.overflow() == 0


SIZES = [
    pytest.param(1400, False, id="desktop-light"),
    pytest.param(1400, True, id="desktop-dark"),
    pytest.param(390, False, id="phone-light"),
    pytest.param(390, True, id="phone-dark"),
]
VIEWS = {
    "run": ("run=tiny&view=run", "!!document.querySelector('#certificate')"),
    "designs": ("run=tiny&view=designs", f"{DRAWN} && {ROWS}"),
    "cells": ("run=many&view=designs", f"{DRAWN} && {ROWS}"),
    "compare": ("run=tiny&view=compare", "document.querySelectorAll('.stacked').length == 4"),
    "whatif": ("run=tiny&view=whatif&w_link=0.5", "!!document.querySelector('#answered')"),
    "report": ("run=tiny&view=report", "!!document.querySelector('#chip-picture')"),
    "layouts": ("run=gpt2", "document.querySelectorAll('.stacked').length >= 2"),
    "plan-compare": ("run=gpt2&view=compare", "document.querySelectorAll('.stacked').length == 4"),
    "plan-whatif": ("run=gpt2&view=whatif", "!!document.querySelector('#answered')"),
    "runs": (
        "view=runs&with=tiny,gpt2",
        "document.querySelectorAll('#compared table').length == 2",
    ),
    "plan-report": ("run=gpt2&view=report", "!!document.querySelector('#launch-text')"),
}


@pytest.mark.parametrize(("width", "dark"), SIZES)
def test_every_view_renders_without_errors(
    browser: Browser, explorer: Explorer, width: int, dark: bool
) -> None:
    with browser.page(width, 900, dark=dark) as page:
        for name, (query, ready) in VIEWS.items():
            page.goto(f"{explorer.address}?{query}")
            page.wait_for(ready)
            size = "phone" if width < 600 else "desktop"
            page.screenshot(f"explorer-{name}-{size}-{'dark' if dark else 'light'}")
            assert_clean(page)
            assert problems(page) == [], name


@pytest.mark.parametrize("name", ["run", "designs", "whatif", "layouts", "runs", "plan-report"])
def test_tab_reaches_every_control_and_the_focus_is_seen(
    browser: Browser, explorer: Explorer, name: str
) -> None:
    query, ready = VIEWS[name]
    with browser.page(1400, 900) as page:
        page.goto(f"{explorer.address}?{query}")
        page.wait_for(ready)
        assert unfocused(page) == []


def test_the_home_view_of_a_plan_says_what_its_text_answer_says(
    browser: Browser, explorer: Explorer, plan_run: Path
) -> None:
    query, ready = VIEWS["layouts"]
    with browser.page(1400, 900) as page:
        page.goto(f"{explorer.address}?{query}")
        page.wait_for(ready)
        shown = page.eval(
            "[...document.querySelectorAll('#answer dl div')]"
            ".map((e) => [...e.children].map((part) => part.textContent))"
        )
        plan = json.loads((plan_run / "plan.json").read_text(encoding="utf-8"))
        assert shown == plan["summary"] and len(shown) >= 4
        assert "megatron.sh" in page.text("#launch-save")
        assert page.count("#time button") == len(plan["runners_up"])


SWATCHES = (
    "[...document.querySelectorAll('.parts')].map((chart) => [...chart.querySelectorAll('.swatch')]"
    ".map((s) => getComputedStyle(s).backgroundColor))"
)


def test_no_two_parts_of_a_bar_have_the_same_colour(browser: Browser, explorer: Explorer) -> None:
    with browser.page() as page:
        for name in ("compare", "layouts", "plan-compare", "whatif", "plan-whatif"):
            query, ready = VIEWS[name]
            page.goto(f"{explorer.address}?{query}")
            page.wait_for(ready)
            charts = page.eval(SWATCHES)
            assert charts and all(len(set(chart)) == len(chart) for chart in charts), name
        # Parts that have no colour of their own, or share it with another part of the chart.
        chosen = page.eval(
            "import('/static/base/colours.js').then((m) => [...m.partColours(['activations',"
            " 'kept', 'rebuilt', 'transient', 'states', 'weights', 'more'])]"
            ".map(([, colour]) => colour))"
        )
        assert len(chosen) == len(set(chosen)) == 7


def test_one_is_not_many(browser: Browser, explorer: Explorer) -> None:
    with browser.page() as page:
        page.goto(explorer.address)
        page.wait_for("!!document.querySelector('#badge')")
        words = page.eval(
            "import('/static/base/units.js')"
            ".then((m) => [0, 1, 2].map((n) => m.counted(n, 'design')))"
        )
        assert words == ["0 designs", "1 design", "2 designs"]


def test_marks_of_an_axis_say_where_they_stand(browser: Browser, explorer: Explorer) -> None:
    with browser.page() as page:
        page.goto(explorer.address)
        page.wait_for("!!document.querySelector('#badge')")
        marks = (
            "import('/static/base/units.js').then((m) => [[7.5, 2.5], [12.5, 2.5], [0.25, 0.25],"
            " [0.3, 0.1], [1.0, 0.1 + 0.2 - 0.2], [2e9, 5e8], [1500, 250]]"
            ".map(([value, step]) => m.tickText(value, step)))"
        )
        assert page.eval(marks) == ["7.5", "12.5", "0.25", "0.3", "1", "2,000,000,000", "1,500"]


def test_filters_change_the_counts_and_live_in_the_address(
    browser: Browser, explorer: Explorer
) -> None:
    with browser.page() as page:
        page.goto(f"{explorer.address}?run=many&view=designs")
        page.wait_for(f"{COUNT} === 3000 && {ROWS}")
        left, top, width, height = page.box("[data-column=area_mm2] svg")
        page.drag((left + width * 0.3, top + height / 2), (left + width * 0.6, top + height / 2))
        page.wait_for(f"{COUNT} > 0 && {COUNT} < 3000")
        brushed = page.eval(COUNT)
        assert "area_mm2=" in page.eval("location.search")
        page.set_value("[data-column=width] input", "64")
        page.wait_for(f"{COUNT} < {brushed}")
        both, address = page.eval(COUNT), page.eval("location.href")
        assert page.eval("document.querySelector('#pager').textContent.includes('of ')")
        page.goto(address)
        page.wait_for(f"{COUNT} === {both}")
        page.click("#clear")
        page.wait_for(f"{COUNT} === 3000")
        assert_clean(page)


def test_a_rectangle_in_the_scatter_looks_closer(browser: Browser, explorer: Explorer) -> None:
    with browser.page() as page:
        page.goto(f"{explorer.address}?run=many&view=designs")
        page.wait_for(f"{DRAWN} && {ROWS} && {COUNT} === 3000")
        assert page.eval("document.querySelector('#scatter').dataset.mode") == "cells"
        assert "counted in" in page.text("#caption")
        left, top, width, height = page.eval(POINT.format())
        start = left + width * 0.3, top + height * 0.2
        page.drag(start, (left + width * 0.6, top + height * 0.6))
        page.wait_for("document.querySelector('#scatter').dataset.mode === 'points'")
        assert 0 < page.eval(COUNT) < 1500
        assert "each a point" in page.text("#caption")
        assert_clean(page)


def test_points_can_be_clicked_and_compared(browser: Browser, explorer: Explorer) -> None:
    with browser.page() as page:
        page.goto(f"{explorer.address}?run=tiny&view=designs")
        page.wait_for(f"{DRAWN} && {ROWS}")
        left, top, width, height = page.eval(POINT.format())
        found = None
        for x in range(70, int(width), 12):  # along the scatter until a point is hit
            for y in range(10, int(height) - 40, 12):
                page.click_at(left + x, top + y)
                if page.eval("new URLSearchParams(location.search).get('chip')"):
                    found = page.eval("new URLSearchParams(location.search).get('chip')")
                    break
            if found:
                break
        assert found
        page.wait_for("!!document.querySelector('#set-a')")
        assert f"Design {found}" in page.text("#chosen")
        page.click("#set-a")
        page.wait_for("!!document.querySelector('#chosen .tag.a')")
        rows = "[...document.querySelectorAll('tr[data-chip]')]"
        chips = page.eval(f"{rows}.map(r => r.dataset.chip)")
        other = next(chip for chip in chips if chip != found)
        page.click(f"tr[data-chip='{other}'] button")
        page.wait_for(f"document.querySelector('#chosen').textContent.includes('Design {other}')")
        page.click("#set-b")
        page.wait_for("!document.querySelector('#to-compare').disabled")
        page.click("#to-compare")
        page.wait_for("document.querySelectorAll('.stacked').length == 4")
        shown = page.text("#view")
        assert found in shown
        assert other in shown
        assert page.eval("document.querySelector('#field-a').value") == found
        assert page.eval("document.querySelector('#field-b').value") == other
        page.eval("history.back()")
        page.wait_for("document.querySelector('#view').dataset.view === 'designs'")
        assert_clean(page)


def test_the_what_if_answers_the_sliders(browser: Browser, explorer: Explorer) -> None:
    with browser.page() as page:
        page.goto(f"{explorer.address}?run=tiny&view=whatif")
        page.wait_for("!!document.querySelector('#answered')")
        before = page.text("#whatif-figures")
        page.eval("document.querySelector('#w_devices').focus()")
        page.press("ArrowRight")
        page.wait_for(f"document.querySelector('#whatif-figures').textContent !== {before!r}")
        assert "w_devices=128" in page.eval("location.search")
        assert "on 128 devices" in page.text("#answered")
        page.set_value("#w_microbatch", "7")
        page.wait_for("location.search.includes('w_microbatch=128')")
        page.wait_for("!!document.querySelector('#problem, #whatif-figures')")
        page.click("#reset")
        page.wait_for("!location.search.includes('w_')")
        same = "document.querySelector('#whatif-figures')?.textContent.slice(0, 30)"
        page.wait_for(f"{same} === {before[:30]!r}")
        assert_clean(page)


def test_a_plan_is_made_again(browser: Browser, explorer: Explorer) -> None:
    with browser.page() as page:
        page.goto(f"{explorer.address}?run=gpt2&view=whatif&w_compute=2&w_batch=128")
        page.wait_for("!!document.querySelector('#answered')")
        assert "moved" in page.eval("document.querySelector('[data-slider=compute]').className")
        page.click("#again")
        page.wait_for("document.querySelector('#answered').textContent.includes('Planned again')")
        assert "proven best of" in page.text("#answered")
        assert_clean(page)


def test_runs_are_compared_by_what_differs(browser: Browser, explorer: Explorer) -> None:
    with browser.page() as page:
        page.goto(explorer.address)
        page.wait_for("!!document.querySelector('#badge')")
        page.click("#runs")
        page.wait_for("document.querySelectorAll('#compared table').length == 2")
        few = page.eval("document.querySelectorAll('#compared tr').length")
        page.click("#differing")
        page.wait_for(f"document.querySelectorAll('#compared tr').length >= {few}")
        assert "≠" in page.text("#compared")
        page.goto(f"{explorer.address}?run=gpt2&view=compare&differing=1")
        page.wait_for("document.querySelectorAll('.stacked').length == 4")
        assert "same" not in page.text("#view table")
        assert_clean(page)


def test_the_best_design_is_marked_on_a_stepped_front(browser: Browser, explorer: Explorer) -> None:
    with browser.page() as page:
        page.goto(f"{explorer.address}?run=tiny&view=designs")
        page.wait_for(f"{DRAWN} && {ROWS}")
        best = page.eval("document.querySelector('tr[data-chip]').dataset.chip")
        assert page.eval("document.querySelector('#scatter').dataset.best") == best
        assert "the best is ringed" in page.text("#view")


def test_the_keyboard_alone_reaches_a_design(browser: Browser, explorer: Explorer) -> None:
    with browser.page() as page:
        page.goto(f"{explorer.address}?run=tiny&view=designs")
        page.wait_for(f"{DRAWN} && {ROWS}")
        for _ in range(80):
            page.press("Tab")
            if page.eval("document.activeElement.id") == "scatter":
                break
        assert page.eval("document.activeElement.id") == "scatter"
        page.press("ArrowRight")
        assert "design" in page.text("#said")
        page.press("Enter")
        page.wait_for("!!document.querySelector('#set-a')")
        assert_clean(page)


def test_a_run_is_drawn_as_in_its_report(
    browser: Browser, explorer: Explorer, tmp_path: Path
) -> None:
    """The explorer's view and the file have the same sections, tables and keys."""
    shown = (
        "[...document.querySelectorAll('section')].map((s) => [s.id, "
        "...[...s.querySelectorAll('h2, p, dl, table, .key')].map((e) => e.innerText)])"
    )
    with browser.page() as page:
        for run in ("tiny", "gpt2"):
            page.goto(f"{explorer.address}?run={run}&view=report")
            page.wait_for(
                "!!document.querySelector('#memory') && !!document.querySelector('canvas')"
            )
            live = page.eval(shown)
            source = page.eval(
                "fetch(document.querySelector('#report-file').href).then(r => r.text())"
            )
            path = tmp_path / f"{run}.html"
            path.write_text(source, encoding="utf-8")
            assert_clean(page)
            page.goto(path.as_uri())
            page.wait_for("document.documentElement.dataset.ready === 'yes'")
            assert page.eval(shown) == live
            assert page.errors == []


def test_downloads_are_offered(browser: Browser, explorer: Explorer) -> None:
    with browser.page() as page:
        page.goto(f"{explorer.address}?run=many&view=designs&width=64..")
        page.wait_for(ROWS)
        lines = page.eval(
            "fetch(document.querySelector('#csv').href).then(r => r.text())"
            ".then(t => t.trim().split('\\n').length)"
        )
        assert lines == page.eval(COUNT) + 1
        size = page.eval(
            "new Promise(r => document.querySelector('#scatter').toBlob(b => r(b.size)))"
        )
        assert size > 2000
        assert_clean(page)


def test_a_running_search_is_followed_live(browser: Browser, tmp_path: Path) -> None:
    with open_store(tmp_path / "live") as store:
        store.put_designs(random_designs(10))
        store.put_progress("bounding", 500, 900, 1, 20.0, 90.0)
        with serving(tmp_path / "live") as explorer, browser.page() as page:
            page.goto(explorer.address)
            page.wait_for("document.querySelector('#badge').textContent.includes('500 of 900')")
            page.wait_for("document.querySelector('#answer').textContent.includes('77.78%')")
            store.put_designs([design(9999, 80.0, 150.0)])
            store.put_progress("bounding", 100, 900, 9999, 80.0, 90.0)
            page.wait_for("document.querySelector('#badge').textContent.includes('100 of 900')")
            page.wait_for("document.querySelector('#answer').textContent.includes('11.11%')")
            page.click("[data-view=designs]")
            page.wait_for(f"{COUNT} === 11")
            store.put_designs([design(10_000, 81.0, 150.0)])
            page.wait_for(f"{COUNT} === 12")
            assert_clean(page)


def test_a_token_is_taken_from_the_address_and_not_left_there(
    browser: Browser, tiny_run: Path
) -> None:
    with serving(tiny_run, token="a-long-enough-token") as explorer, browser.page() as page:
        page.goto(f"{explorer.address}&run=tiny&view=designs")
        page.wait_for(ROWS)
        assert "token" not in page.eval("location.href")
        page.goto(page.eval("location.href"))
        page.wait_for(ROWS)
        assert_clean(page)


def test_a_wafer_search_is_drawn(browser: Browser, tmp_path: Path) -> None:
    write_wafer_search(tmp_path / "on-wafer")
    with serving(tmp_path / "on-wafer") as explorer, browser.page(1280, 900) as page:
        page.goto(explorer.address)
        page.wait_for("document.querySelector('#certificate')?.textContent.includes('optimal')")
        assert page.eval("document.querySelector('#answer h2').textContent").endswith("on 8 dies")
        tabs = "[...document.querySelectorAll('#tabs button')].map((b) => b.innerText)"
        assert page.eval(tabs) == ["Answer", "Report"]
        page.click("[data-view=report]")
        page.wait_for("!!document.querySelector('#wafer-picture')")
        assert page.count("#wafer-picture rect.die") == 8
        assert_clean(page)


def test_a_plan_is_followed_until_it_is_there(browser: Browser, tmp_path: Path) -> None:
    pages: list[Page] = []
    badge = "document.querySelector('#badge').textContent"
    with ExitStack() as opened:

        def listen(phase: str, *figures: float) -> None:
            if pages or phase != "search":
                return
            pages.append(opened.enter_context(browser.page(1280, 900)))
            pages[0].goto(opened.enter_context(serving(tmp_path / "laid-out")).address)
            pages[0].wait_for(f"{badge}.includes('layouts left')")
            title = "document.querySelector('#answer h2')?.textContent"
            pages[0].wait_for(f"{title} === 'gpt2-xl on 16 devices'")

        asked = {"devices": 16, "batch": 64, "out": tmp_path / "laid-out"}
        atoll.plan("gpt2-xl", "h100", progress=listen, **asked)
        (page,) = pages
        page.wait_for("document.querySelector('#tabs').textContent.includes('What if')")
        page.wait_for("document.querySelector('#view').dataset.view === 'layouts'")
        assert_clean(page)


def test_a_sweep_is_drawn_among_the_runs(browser: Browser, tmp_path: Path) -> None:
    asked = atoll.EstimateQuestion.of(
        model="gpt2-xl", device="h100", batch=64, out=tmp_path / "sizes"
    )
    atoll.sweep(asked, devices=[8, 16, 32], zero=[0, 1])
    write_designs(tmp_path / "one", random_designs(30))
    with serving(tmp_path) as explorer, browser.page(1400, 900) as page:
        page.goto(f"{explorer.address}?run=sizes")
        page.wait_for("document.querySelectorAll('#report table tbody tr').length === 6")
        page.wait_for("!!document.querySelector('#charts svg')")
        assert page.text("#badge") == "sweep"
        assert "sizes: sweep of devices, zero" in page.text("#run")
        page.screenshot("explorer-sweep", whole=False)
        page.click("#runs")
        page.wait_for("!!document.querySelector('#compared')")
        boxes = "[...document.querySelectorAll('#view input[type=checkbox][value]')]"
        assert "sizes" not in page.eval(f"{boxes}.map((box) => box.value)")
        page.set_value("#run", "one")
        page.wait_for("document.querySelector('#view').dataset.view === 'run'")
        assert page.foreign_requests() == [] and page.overflow() == 0


def test_a_run_that_is_not_here_is_said_and_no_other_shown_for_it(
    browser: Browser, tmp_path: Path
) -> None:
    write_designs(tmp_path / "one", random_designs(30))
    write_wafer(tmp_path / "wafer")
    said = "document.querySelector('#missing')?.textContent ?? ''"
    with serving(tmp_path) as explorer, browser.page(1280, 900) as page:
        for name, words in (("wafer", "atoll report"), ("gone", "No run gone here")):
            page.goto(f"{explorer.address}?run={name}&view=designs")
            page.wait_for(f"({said}).includes('{words}')")
            assert page.eval("document.querySelectorAll('tr[data-chip]').length") == 0
        choices = "[...document.querySelectorAll('#run option')]"
        assert page.eval(f"{choices}.map(choice => choice.textContent)") == [
            "one: synthetic",
            "wafer: cannot be shown",
        ]
        page.set_value("#run", "wafer")
        page.wait_for(f"({said}).includes('atoll report')")
        page.eval(
            "(() => {const s = document.querySelector('#run'); s.value = 'one';"
            "s.dispatchEvent(new Event('change'))})()"
        )
        page.wait_for(ROWS)
        assert page.eval("document.querySelector('#missing')") is None
        assert_clean(page)
