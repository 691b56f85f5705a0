"""Write goldens anew: `python tests/contract/record.py [NAME ...]` (all without a name).

Record only what a change moves on purpose, look at the difference, and say in the changelog which
goldens moved and why.
"""

from __future__ import annotations

import json
import sys

from questions import GOLDENS, QUESTIONS, kept


def main(names: list[str]) -> None:
    unknown = [name for name in names if name not in QUESTIONS]
    if unknown:
        sys.exit(f"no such question: {', '.join(unknown)}")
    GOLDENS.mkdir(exist_ok=True)
    for name in names or QUESTIONS:
        answer = kept(QUESTIONS[name]())
        text = json.dumps(answer, indent=1, sort_keys=True, allow_nan=False)
        (GOLDENS / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        print(name)


if __name__ == "__main__":
    main(sys.argv[1:])
