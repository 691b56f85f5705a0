"""Variables of a script that its user sets from outside, and the words in which they stand.

A script is read twice: the second time with marks instead of the variables' values.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from atoll.base.errors import AtollError
from atoll.files.inputs import read_input_text
from atoll.tools.arguments import UserValues
from atoll.tools.files.shell import GUARD, Script, read_script
from atoll.tools.files.shell_tokens import MOST_CHARACTERS, UNKNOWN

MARK = re.compile("\x01(\\w+)( ?)\x02")
"""A variable in a word; its blank is left where the script quotes the variable."""
_DEFAULT = re.compile(
    r"(?:^|;)[ \t]*(?:export[ \t]+)?(?P<assigned>[A-Za-z_]\w*)=[\"']?\$\{(?P=assigned):?-"
    r"|\$\{(?P<name>[A-Za-z_]\w*):?[-=](?P<text>[^${}`\"']*\})?",
    re.MULTILINE,
)
"""NAME=${NAME:-default}; or ${NAME:-default} of a variable that the script does not set itself."""
_CONDITIONS = re.compile(r"#[^\n]*|\[\[? [^\n]*? \]|\b(test|case) [^\n;]*")


def open_variables(path: Path, script: Script, user: UserValues) -> dict[str, str]:
    """Return the values of variables that have a default, or that the user set (`--set`)."""
    text = read_input_text(path, 4 * MOST_CHARACTERS)
    values = {**user.variables}
    for match in _DEFAULT.finditer(text):
        name, usual = match["assigned"] or match["name"], match["text"]
        if match["assigned"] or (name not in script.values and usual) or f"${{{name}:=" in text:
            values[name] = script.values.get(name, (usual or UNKNOWN).removesuffix("}"))
    return {name: value for name, value in values.items() if UNKNOWN not in value}


def decides_only(path: Path, name: str) -> bool:
    """Return whether a script has a variable nowhere but in its default and in conditions."""
    rest = _CONDITIONS.sub("", read_input_text(path, 4 * MOST_CHARACTERS))
    assignments = rf"^[ \t]*(export[ \t]+)?{name}=[^\n;]*|:[ \t]+\"?\$\{{{name}:?=[^}}]*\}}"
    return not re.search(rf"\b{name}\b", re.sub(assignments, "", rest, flags=re.MULTILINE))


def marked_words(
    path: Path,
    user: UserValues,
    names: Sequence[str],
    words_of: Callable[[Script], Sequence[str]],
) -> list[str]:
    """Return words of the script with marks for these variables; none if it needs their values."""
    marks = {name: f"\x01{name} \x02" for name in names}
    try:
        words = words_of(read_script(path, {**user.variables, **marks}, user.arguments))
    except (AtollError, IndexError):
        return []
    # (Where a variable is not quoted, its mark became two words.)
    return re.sub("(\x01\\w+)\x03\x02", "\\1\x02", "\x03".join(words)).split("\x03")


def marked_names(value: object) -> list[str]:
    """Return the variables in a word or in a list of words."""
    words = value if isinstance(value, list) else [value]
    return [match[1] for word in words for match in MARK.finditer(str(word))]


def guarded_words(words: Sequence[str]) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Return words outside ${NAME:+words}, and (NAME, words) of each of these."""
    outside: list[str] = []
    guarded: list[tuple[str, list[str]]] = []
    name = ""
    for word in words:
        if word.startswith(GUARD):
            name = word[len(GUARD) :]
            guarded += [(name, [])] if name else []
        else:
            (guarded[-1][1] if name else outside).append(word)
    return outside, guarded


def expanded(value: object, values: Mapping[str, str]) -> list[str]:
    """Return a word, or a list of words, with values in place of marks."""
    words: list[str] = []
    for word in value if isinstance(value, list) else [] if value is None else [str(value)]:
        text = MARK.sub(lambda match: values[match[1]], word)
        split = any(not match[2] for match in MARK.finditer(word))
        words += text.split() if split else [text]
    return words


def bash_word(word: str) -> str:
    """Return a word as a script has it: quoted, with variables in place of marks."""
    texts = MARK.split(word)
    if len(texts) == 1:
        return shlex.quote(word)
    parts = [shlex.quote(text) if text else "" for text in texts[::3]]
    for index, (name, quoted) in enumerate(zip(texts[1::3], texts[2::3], strict=True)):
        parts[index] += f'"${name}"' if quoted else f"${{{name}}}"
    return "".join(parts)
