"""`python -m atoll.questions DOCS`: write again what is written of questions."""

import sys
from pathlib import Path

from atoll.questions.texts import STUB, stub, with_tables

STUB.write_text(stub(), encoding="utf-8")
for page in Path(sys.argv[1]).glob("*.md"):
    page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
