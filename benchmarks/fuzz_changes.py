"""Changes of files for `fuzz_readers.py`: with their structure in mind, or blind."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import math
import random
import re
import sqlite3
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

Seed = bytes | Mapping[str, bytes]
"""A file's content, or a folder's by name."""

NUMBERS = (
    0, -1, 1, 2, 3, 7, 0.5, -0.0, 1e-300, 1e308, -1e308, 10**9, 10**18, 2**31, 2**63, 2**64,
    10**400, math.nan, math.inf, -math.inf,
)  # fmt: skip
OTHERS: tuple[Any, ...] = (
    None, True, False, "", "abc", "\x00", "a" * 5000, "NaN", "-1", "1e999 GB/s", "-3 GiB",
    "1e400 B", "80 GB", "../../etc/passwd", "\U0001f600", "<script>alert(1)</script>", [], {}, [[]],
    {"a": {"b": 1}}, [1] * 1000, ["x", 1, None], {"": ""},
)  # fmt: skip
RAW_YAML = (
    "!!int abc", "!!float x", "!!binary '*'", "!!timestamp 1", "!!python/object:os.system ls",
    "!!set {a, b}", "9" * 5000, "0x" + "f" * 2000, "-" + "9" * 300, "1e999", ".nan", "-.inf",
    "1:30", "*nothing", "&a [*a]", "{? [a]: 1}", "<<: 1", "1__0", "!!bool maybe", "!!null 3",
    "!!omap [1]",
)  # fmt: skip
RAW_JSON = (
    "NaN",
    "-Infinity",
    "9" * 5000,
    "1e999",
    "-0",
    "[" * 3000,
    "{,}",
    '"\\ud800"',
    "1" * 400,
)
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "a: &a {x: 1, y: 2}\n" + "".join(
    f"{b}: &{b} {{<<: [{', '.join([f'*{a}'] * 9)}]}}\n"
    for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


def changed(draw: random.Random, seed: Seed, form: str) -> Seed:
    """A file, or one file of a folder, with one to three changes."""
    if isinstance(seed, bytes):
        return _changed_file(draw, seed, form)
    name = draw.choice(sorted(seed))
    form = {".sqlite": "sqlite", ".json": "json"}.get(Path(name).suffix, "binary")
    return {**seed, name: _changed_file(draw, seed[name], form)}


def _changed_file(draw: random.Random, content: bytes, form: str) -> bytes:
    blind = {"binary": 1.0, "sqlite": 0.9, "words": 0.0}.get(form, 0.25)
    if draw.random() < blind:
        return _blind(draw, content, gentle=form == "sqlite")
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        content = _FORMS[form](draw, content)
    if form in ("yaml", "json"):
        content = _with_raw(content, RAW_YAML if form == "yaml" else RAW_JSON)
    if form == "yaml" and draw.random() < 0.05:
        deep = b"a: " + b"[" * draw.choice((50, 2000, 20000))
        return draw.choice((content + BOMB.encode(), content + MERGES.encode(), deep))
    if form == "json" and draw.random() < 0.03:
        return b'{"a":' * draw.choice((50, 2000, 200000))
    return content


def _blind(draw: random.Random, content: bytes, gentle: bool = False) -> bytes:
    way = draw.choice(("flip", "flip", "flips", "truncate", "empty", "noise", "utf16", "double"))
    if gentle and way not in ("truncate", "empty"):
        way = "flip"
    if way in ("flip", "flips") and content:
        bits = bytearray(content)
        for _ in range(1 if way == "flip" else draw.randint(2, 50)):
            bits[draw.randrange(len(bits))] ^= 1 << draw.randrange(8)
        return bytes(bits)
    if way == "truncate":
        return content[: draw.randrange(len(content) + 1)]
    if way == "noise":
        return draw.randbytes(draw.randint(1, 4000))
    if way == "utf16":
        return content.decode("utf-8", "replace").encode("utf-16")
    return content + content if way == "double" else b""


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a tree."""
    found, pending = [], [tree]
    while pending:
        node = pending.pop()
        items = node.items() if isinstance(node, dict) else enumerate(node)
        for key, value in items:
            found.append((node, key))
            if isinstance(value, dict | list):
                pending.append(value)
    return found


def _alike(draw: random.Random, value: Any) -> Any:
    """Another value of the same kind: what a reader lets pass, and others must live with."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return draw.choice(
            (0, 1, 2, 3, 7, 100, 4095, 10**6, 10**9, 2**31, 10**12, 2**53, 2**63 - 1)
        )
    if isinstance(value, float):
        return draw.choice((0.0, 1.0, 1e-300, 1e-9, 0.3, 7.0, 1e9, 1e18, 1e200, 1e308))
    if isinstance(value, str):
        number = draw.choice(("0", "1", "1e-300", "3.7", "1e9", "1e18", "1e200", "1e308", "-1"))
        return re.sub(r"[0-9][0-9.]*", number, value, count=1)
    if isinstance(value, list):
        return draw.choice(([], value + value, value[:1], value[::-1], value * 300))
    return {} if isinstance(value, dict) else value


RAW = "raw text of the campaign "


def _change_tree(draw: random.Random, tree: Any, raw: Sequence[str]) -> Any:
    places = _places(tree) if isinstance(tree, dict | list) else []
    if not places:
        return draw.choice(OTHERS)
    node, key = draw.choice(places)
    way = draw.choice(
        ("alike",) * 5 + ("number", "other", "raw", "drop", "misspell", "swap", "deep")
    )
    if way == "alike":
        node[key] = _alike(draw, node[key])
    elif way == "number":
        node[key] = draw.choice(NUMBERS)
        if isinstance(node[key], int) and draw.random() < 0.3:
            node[key] = str(node[key])
    elif way == "other":
        node[key] = draw.choice(OTHERS)
    elif way == "raw":
        node[key] = f"{RAW}{draw.randrange(len(raw))}."
    elif way == "drop":
        del node[key]
    elif way == "misspell" and isinstance(node, dict):
        text = str(key)
        at = draw.randrange(len(text) + 1)
        node[draw.choice((text[:at] + "x" + text[at:], text[:at] + text[at + 1 :], ""))] = node.pop(
            key
        )
    elif way == "swap":
        other, place = draw.choice(places)
        node[key] = json.loads(json.dumps(other.get(place) if isinstance(other, dict) else None))
    elif way == "deep":
        value: Any = node[key]
        for _ in range(draw.choice((3, 60, 400))):
            value = [value]
        node[key] = value
    return tree


def _as_yaml(draw: random.Random, content: bytes) -> bytes:
    try:
        tree = _change_tree(draw, yaml.safe_load(content), RAW_YAML)
        text = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError, OverflowError):
        return _blind(draw, content)
    if draw.random() < 0.05:
        text += text.splitlines()[0] + "\n"  # a field given twice
    return text.encode()


def _as_json(draw: random.Random, content: bytes) -> bytes:
    try:
        return json.dumps(_change_tree(draw, json.loads(content), RAW_JSON)).encode()
    except (ValueError, RecursionError):
        return _blind(draw, content)


def _with_raw(content: bytes, raw: Sequence[str]) -> bytes:
    """Text that no writer writes, in place of its marks."""
    marks = re.compile(rf"""['"]?{RAW}(\d+)\.['"]?""".encode())
    return marks.sub(lambda mark: raw[int(mark[1])].encode(), content)


def _as_csv(draw: random.Random, content: bytes) -> bytes:
    packed = content[:2] == b"\x1f\x8b"
    try:
        text = (gzip.decompress(content) if packed else content).decode()
        rows = list(csv.reader(io.StringIO(text)))
    except (ValueError, OSError, EOFError, zlib.error, csv.Error):
        return _blind(draw, content)
    if not rows:
        return _blind(draw, content)
    for _ in range(draw.randint(1, 6)):
        row = draw.choice(rows) if draw.random() < 0.1 else rows[draw.randrange(len(rows))]
        if not row:
            continue
        at = draw.randrange(len(row))
        way = draw.choice(("number", "number", "other", "raw", "drop", "more", "row"))
        if way == "number":
            row[at] = str(draw.choice(NUMBERS))
        elif way == "other":
            row[at] = str(draw.choice(OTHERS))
        elif way == "raw":
            row[at] = draw.choice(RAW_JSON)[:9000]
        elif way == "drop":
            del row[at]
        elif way == "more":
            row.insert(at, "7")
        else:
            rows.insert(draw.randrange(len(rows)), [])
    out = io.StringIO()
    csv.writer(out).writerows(rows)
    made = out.getvalue().encode("utf-8", "replace")
    if not packed:
        return made
    made = gzip.compress(made, 1)
    return _blind(draw, made) if draw.random() < 0.2 else made


WORDS = (
    *("-1", "0", "1e999", "nan", "inf", "9" * 5000, "1" * 400, "2147483648", "0x10", "", "x"),
    *("true", "null", "[" * 500, "{" * 500, "'", '"', "`", "$(", "${", "${X:-", "$((1/0))", "))"),
    *("\\", "#", "\x00", "\x1b[31m", "\u0663", "1,2,3", "=", "--", "$0", "$@", "..", "a" * 5000),
)  # fmt: skip


def _as_text(draw: random.Random, content: bytes) -> bytes:
    """Words and lines exchanged, dropped, doubled; numbers that are larger, smaller, none."""
    parts = re.split(r"(\s+|[=:,\"'])", content.decode("utf-8", "replace"))
    words = [k for k, part in enumerate(parts) if part.strip()]
    numbers = [k for k in words if re.fullmatch(r"[-+0-9.eE]+", parts[k])]
    way = draw.choice(("number", "number", "number", "word", "swap", "drop", "cut", "line"))
    if not words or way == "line":
        lines = content.splitlines(keepends=True) or [b""]
        lines.insert(draw.randrange(len(lines)), draw.choice(lines) * draw.choice((1, 1, 50)))
        return b"".join(lines)
    at = draw.choice(numbers if way == "number" and numbers else words)
    if way == "number":
        parts[at] = str(draw.choice(NUMBERS))
    elif way == "word":
        parts[at] = draw.choice(WORDS)
    elif way == "swap":
        other = draw.choice(words)
        parts[at], parts[other] = parts[other], parts[at]
    elif way == "drop":
        parts[at] = ""
    else:
        parts[at] = parts[at][: draw.randrange(len(parts[at]) + 1)]
    return "".join(parts).encode("utf-8", "replace")


def _as_sqlite(draw: random.Random, content: bytes) -> bytes:
    """One value of one record exchanged."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.sqlite"
        path.write_bytes(content)
        try:
            with contextlib.closing(sqlite3.connect(path)) as store:
                tables = [
                    n for (n,) in store.execute("SELECT name FROM sqlite_master WHERE type='table'")
                ]
                table = draw.choice(tables)
                columns = [row[1] for row in store.execute(f"PRAGMA table_info({table})")]
                value = draw.choice(
                    (None, -1, 1e308, "abc", b"\x00\xff", "[]", "{}", 10**15, '{"a":')
                )
                store.execute(f"UPDATE {table} SET {draw.choice(columns)} = ?", (value,))
                store.commit()
                store.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except (sqlite3.Error, IndexError):
            return _blind(draw, content, gentle=True)
        return path.read_bytes()


def _as_words(draw: random.Random, content: bytes) -> bytes:
    words = content.decode().split("\n")
    at = draw.randrange(len(words))
    values = (
        "1e18", "9" * 5000, "-1", "0", "1000000000000000000", "NaN", "inf", "", "abc", "1e308",
        "999999999999", "\u0663", "1_000", "0x10", "None", "2147483648", "a" * 5000,
    )  # fmt: skip
    if not words[at].startswith("--"):
        words[at] = draw.choice(values)
    return "\n".join(words).encode()


_FORMS: Mapping[str, Callable[[random.Random, bytes], bytes]] = {
    "yaml": _as_yaml, "json": _as_json, "csv": _as_csv, "text": _as_text, "sqlite": _as_sqlite,
    "words": _as_words, "binary": _blind,
}  # fmt: skip
