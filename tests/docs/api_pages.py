"""Write the pages of the Python reference: `python tests/docs/api_pages.py` (also by surface.py).

docs/api has an index, a page per function, and a page per type below docs/api/types and
docs/api/answers. The contents are docstrings, which mkdocstrings reads; a test compares the pages.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import atoll
import atoll.answers
from docs.written import ROOT

API = ROOT / "docs" / "api"
_HEAD = """# Python reference

After `import atoll`, every command is a function. Keywords are the
[options of the command](../options.md): `--time-limit` is `time_limit=`. Quantities are numbers in
SI units or texts such as "80 GiB". Errors are `AtollError`, with one sentence.

```python
import atoll

plan = atoll.plan("llama3-70b", "h100", 512, batch=1024, sequence=8192, tool="megatron-lm")
print(plan.explain())  # as `atoll explain` prints it
plan.export("megatron").save("megatron.sh")
plan.report("plan.html")
plan.save("plan.json")  # read again by atoll.load

swept = atoll.sweep(
    atoll.PlanQuestion, model="llama3-70b", device="h100", batch=1024, devices=[256, 512]
)
swept.to_dataframe()  # pandas
swept.chart("step s").save("steps.svg")  # notebooks show it
```

A question can be created once and asked again: `atoll.plan(job=question, devices=1024)`.
`plan.answer` is the data that `--json` prints.
"""
_TITLES = {
    "": "Functions",
    "types": "Results, questions and errors",
}


def named() -> Iterator[tuple[str, str, str, str]]:
    """Folder, public name, full path and summary of every name in the reference."""
    for module, folder in ((atoll, "types"), (atoll.answers, "answers")):
        for name in module.__all__:
            value = getattr(module, name)
            if name in ("__version__", "answers"):
                continue
            path = f"atoll.answers.kinds.{name}"
            if inspect.isfunction(value) or isinstance(value, type):
                path = f"{value.__module__}.{name}"
            summary = (inspect.getdoc(value) or "").partition("\n")[0]
            if not isinstance(value, type) and not inspect.isfunction(value):
                summary = "One entry of the catalogue: a device, chip, network, space or wafer."
            yield "" if inspect.isfunction(value) else folder, name, path, summary


def pages() -> dict[str, str]:
    """Text of every page by its path below docs/api."""
    written: dict[str, str] = {}
    rows: dict[str, list[str]] = {folder: [] for folder in _TITLES}
    answers: list[str] = []
    for folder, name, path, summary in named():
        result = folder == "types" and not name.endswith("Question")
        inherited = "      inherited_members: true\n" if result else ""
        file = f"{folder}/{name}.md".lstrip("/")
        written[file] = f"# {name}\n\n::: {path}\n    options:\n      heading_level: 2\n{inherited}"
        if folder == "answers":
            answers.append(f"[`{name}`]({file})")
        else:
            rows[folder].append(f"| [`{name}`]({file}) | {summary} |\n")
    tables = [
        f"\n## {title}\n\n| name | what it is |\n|---|---|\n" + "".join(rows[folder])
        for folder, title in _TITLES.items()
    ]
    data = "\n## Answers as data\n\n" + ",\n".join(answers) + ".\n"
    return {"index.md": _HEAD + "".join(tables) + data} | written


def main() -> None:
    for old in API.rglob("*.md"):
        old.unlink()
    for file, text in pages().items():
        (API / file).parent.mkdir(parents=True, exist_ok=True)
        (API / file).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
