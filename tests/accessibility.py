"""What keyboards, screen readers and narrow screens need of a page, asked of the browser.

    assert problems(page) == []
    assert unfocused(page) == []

The thresholds are those of WCAG 2.2, level AA: contrast of text 4.5 (3 if large), targets of
24 pixels, no sideways scrolling of the page.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from browser import Page

_AUDIT = (Path(__file__).parent / "accessibility.js").read_text(encoding="utf-8")

_STOPS = (
    "[...document.querySelectorAll('a[href], button, select, input, textarea, summary,"
    ' [tabindex="0"]\')].filter((e) => e.checkVisibility() && !e.disabled)'
)
_FOCUSED = r"""(() => {
  const e = document.activeElement;
  if (!e || e === document.body) return null;
  const style = getComputedStyle(e), box = e.getBoundingClientRect();
  const seen = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2;
  const inside = box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth;
  const name = `${e.tagName.toLowerCase()}#${e.id} ${e.innerText?.slice(0, 30)}`;
  return [STOPS.indexOf(e), seen && inside, name];
})()""".replace("STOPS", _STOPS)


def problems(page: Page) -> list[str]:
    """Missing names and headers, what sticks out, small targets, pale text."""
    found: list[str] = page.eval(_AUDIT)
    return found


def unfocused(page: Page) -> list[str]:
    """Controls that Tab does not reach, or on which the focus is not seen."""
    page.eval("(document.activeElement?.blur(), scrollTo(0, 0))")
    names: list[str] = page.eval(f"{_STOPS}.map((e) => `${{e.tagName.toLowerCase()}}#${{e.id}}`)")
    reached, unseen = set(), []
    for _ in range(2 * len(names) + 2):
        page.press("Tab")
        focused = page.eval(_FOCUSED)
        if focused is None or focused[0] in reached:
            break
        reached.add(focused[0])
        if not focused[1]:
            unseen.append(f"focus not seen: {focused[2]}")
    return unseen + [f"not reached: {n}" for i, n in enumerate(names) if i not in reached]
