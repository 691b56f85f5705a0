"""A launch file that is pasted or dropped into the explorer, judged as `atoll check` does.

It is written to a temporary folder; nothing that it names is run, nothing is kept, and no
other file of this machine is read or looked for.
"""

from __future__ import annotations

import json
import re
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from atoll.answers.validation import CheckAnswer
from atoll.base.errors import AtollError
from atoll.files.inputs import reading_only
from atoll.front import ScriptData
from atoll.report.plan_view import plan_view
from atoll.workload.families.hub import cache_folder

MOST_BYTES = 256 * 1024
LIMIT_S = 20.0
"""Time limit of the search for a better layout."""
_FIELDS = ("name", "text", "device", "devices", "model")
_NAMES = re.compile(r"[\w-][\w.-]{0,80}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The check of a launch file, and its page view."""

    check: CheckAnswer
    view: ScriptData


def check_pasted(body: bytes) -> Verdict:
    """Check a launch file from a JSON request: name, text, device, and optionally the number of
    devices and the model."""
    from atoll.launch.check import check
    from atoll.questions.verbs import CheckQuestion

    request = _parse_request(body)
    name = str(request.pop("name", "") or "launch.sh")
    if not _NAMES.fullmatch(name):
        raise AtollError(f"name: expected the name of a file, got {name[:80]!r}")
    text = request.pop("text", None)
    if not isinstance(text, str) or not text.strip():
        raise AtollError("text: nothing was pasted")
    with tempfile.TemporaryDirectory(prefix="atoll-") as folder:
        path = Path(folder, name)
        path.write_text(text, encoding="utf-8")

        def shown(words: str) -> str:
            return words.replace(str(path), name)

        try:
            with reading_only(Path(folder), cache_folder()):
                question = CheckQuestion.of(file=path, time_limit=f"{LIMIT_S} s", **request)
                check_result = check(question)
            notes = tuple(map(shown, check_result.answer.notes))
            lines = tuple((n, shown(words)) for n, words in check_result.summary())
            answer = replace(check_result.answer, file=name, notes=notes)
            return Verdict(answer, plan_view(answer.estimate) | {"summary": lines})
        except AtollError as error:
            raise AtollError(shown(str(error))) from None


def _parse_request(body: bytes) -> dict[str, Any]:
    try:
        request = json.loads(body)
        json.dumps(request, ensure_ascii=False).encode()  # half of a surrogate pair is no character
    except (ValueError, RecursionError):
        raise AtollError("expected the question as JSON") from None
    if not isinstance(request, dict) or not request.keys() <= set(_FIELDS):
        raise AtollError(f"expected an object with {', '.join(_FIELDS)}")
    return {name: value for name, value in request.items() if value not in ("", None)}
