"""What Atoll is installed with, and on: licences, hashes, and nothing that only POSIX has."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

from docs.licences import PAGE, rows

ROOT = Path(__file__).parent.parent
LOCK = ROOT / ".ci" / "lock.txt"
PERMISSIVE = re.compile(r"MIT|BSD|Apache|ISC|PSF|MPL|Python Software Foundation")


def test_licences_on_the_page_are_those_of_the_packages() -> None:
    """After a new dependency: python tests/docs/licences.py. Older versions may need others."""
    locked = re.findall(r"^([\w.-]+)==", LOCK.read_text(encoding="utf-8"), re.MULTILINE)
    page = PAGE.read_text(encoding="utf-8").splitlines()
    listed = {line.split(" | ")[0].removeprefix("| ") for line in page if line.startswith("| ")}
    assert rows().keys() & set(locked) <= listed


def test_no_licence_binds_those_who_use_atoll() -> None:
    assert [line for line in rows().values() if not PERMISSIVE.search(line)] == []


def test_the_lock_has_a_hash_for_every_package_and_every_direct_dependency() -> None:
    """After a new dependency: .ci/lock"""
    text = LOCK.read_text(encoding="utf-8")
    entries = re.findall(r"^([\w.-]+)==([\w.]+)(.*(?:\n    --hash.*)*)", text, re.MULTILINE)
    assert all("--hash=sha256:" in rest for _, _, rest in entries)
    pinned = {name: version for name, version, _ in entries}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    groups = project["dependency-groups"]
    for wanted in map(Requirement, (*project["project"]["dependencies"], *groups["dev"])):
        version = pinned[wanted.name.lower().replace("_", "-")]
        assert wanted.specifier.contains(version), wanted


HIDDEN = """
import sys, os, pkgutil, importlib
import asyncio, http.server, multiprocessing, concurrent.futures.process, sqlite3, subprocess
import numba, numpy, pandas, pydantic, rich, scipy.optimize, scipy.sparse, typer, yaml
for name in ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog"):
    sys.modules[name] = None
for name in ("getuid", "geteuid", "fork", "register_at_fork", "waitid", "killpg", "pwrite",
             "sched_getaffinity", "getloadavg", "uname", "setsid", "getpgid"):
    if hasattr(os, name):
        delattr(os, name)
import signal
for name in ("SIGKILL", "SIGSTOP", "SIGALRM", "SIGHUP", "SIGUSR1"):
    delattr(signal, name)
import atoll
UNUSED = ("atoll.tracing", "atoll.__main__", "atoll.testing", "atoll.measurement",
          "atoll.calibration.local_gpu")
for module in pkgutil.walk_packages(atoll.__path__, "atoll."):
    if not module.name.startswith(UNUSED):
        importlib.import_module(module.name)
from pathlib import Path
from atoll.store import RunStore
try:
    RunStore(Path(sys.argv[1]), {}, "here", "0")
except atoll.AtollError as error:
    print(error)
"""


def test_nothing_is_imported_that_only_posix_has(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", HIDDEN, str(tmp_path)], capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert "needs locks on files" in ended.stdout
