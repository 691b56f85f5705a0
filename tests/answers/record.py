"""Write the schemas anew: `python tests/answers/record.py`.

Scripts read these keys: say in the changelog what a change of them means.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from atoll.answers.kinds import ANSWERS, answer_schema

KEPT = Path(__file__).parent / "schemas.json"


def schemas() -> str:
    """One line a type: what it is made of, without words."""
    found: dict[str, Any] = {command: _bare(answer_schema(command)) for command in ANSWERS}
    types = {name: made for told in found.values() for name, made in told.pop("$defs").items()}
    rows = [
        f"{json.dumps(name)}: {json.dumps(kind)}" for name, kind in sorted((types | found).items())
    ]
    return "{\n" + ",\n".join(rows) + "\n}\n"


def _bare(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_bare(value) for value in schema]
    if isinstance(schema, dict):
        return {
            name: _bare(value)
            for name, value in schema.items()
            if name not in ("title", "description") or isinstance(value, dict)
        }
    return schema


if __name__ == "__main__":
    KEPT.write_text(schemas(), encoding="utf-8")
