"""Launch files of public repositories, read where they lie: how much of them is understood.

    python benchmarks/launch_files.py FOLDER... GIT_DIRECTORY@COMMIT:PATH...

Takes folders and bare git directories (with a commit where it is not the newest, and a folder
inside). Every file that starts training is read as `atoll check` reads it, once where copies say
the same: read, or refused with its sentence; the share of its arguments that are accounted for;
and the arguments that are not understood, with the number of files that have them. A model and a
vocabulary that a file leaves to others are given as a user would give them.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from atoll.base.errors import AtollError
from atoll.tools.arguments import Launch, flatten
from atoll.tools.files.config_files import read_content
from atoll.tools.files.shell import read_script
from atoll.tools.megatron_lm.read import named_arguments, training_commands
from atoll.tools.read import read_launch
from atoll.tools.transformers.read import trainer_commands
from atoll.workload import load_config
from record import recorded

MOST_BYTES = 1_000_000
MODEL, VOCAB = "llama3-8b", 128256
STARTS = {
    ".sh": re.compile(r"^[^#\n]*((pretrain|train|finetune)\w*\.py\b|--per_device_train_batch_size)"
                      r"|^\s*export MINIBS=", re.M),
    ".slurm": re.compile(r"^[^#\n]*(pretrain|train|finetune)\w*\.py\b", re.M),
    ".toml": re.compile(r"^\[(parallelism|training)\]", re.M),
    ".json": re.compile(r'"(zero_optimization|train_micro_batch_size_per_gpu|train_batch_size)"'),
    ".yaml": re.compile(r"^\s*(MODEL_ARGS|tensor_model_parallel_size|distributed_type|base_model"
                        r"|per_device_train_batch_size|batch_accumulation_per_replica):"
                        r"|^ *\"?pipe.parallel.size", re.M),
}  # fmt: skip
STARTS[".yml"] = STARTS[".yaml"]
"""What a file says that starts training, by the end of its name."""


@dataclass(frozen=True, slots=True)
class Found:
    """A file with what was read of it, or why nothing was."""

    name: str
    launch: Launch | None
    refused: str = ""
    lost: tuple[str, ...] = ()
    """Arguments that the account does not have."""

    @property
    def counts(self) -> tuple[int, int]:
        """Arguments accounted for, and all of them."""
        if self.launch is None:
            return 0, 0
        said = self.launch.arguments
        known = len(said.used) + len(said.without_effect)
        return known, sum(map(len, said.parts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("places", nargs="+", help="folders, or git directories[@commit][:folder]")
    parser.add_argument("--quiet", action="store_true", help="no line for each file")
    given = parser.parse_args()
    found = []
    for place in given.places:
        with tempfile.TemporaryDirectory() as scratch:
            found.append(report(place, list(read_all(unpacked(place, Path(scratch)))), given.quiet))
    report_all([one for part in found for one in part])


def unpacked(place: str, scratch: Path) -> Path:
    """A folder as it is; of a git directory the files that may be launch files."""
    directory, _, rest = place.partition("@")
    if not (Path(directory.partition(":")[0]) / "HEAD").is_file():
        return Path(place)
    directory, _, inside = directory.partition(":")
    commit, _, within = (rest or "HEAD").partition(":")
    git = ("git", f"--git-dir={directory}")
    listed = subprocess.run(
        [*git, "ls-tree", "-r", "-l", commit, "--", *filter(None, [inside or within])],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    for line in listed.splitlines():
        (_, kind, blob, size), name = line.partition("\t")[0].split(), line.partition("\t")[2]
        if kind != "blob" or Path(name).suffix not in STARTS or not size.isdigit():
            continue
        if int(size) > MOST_BYTES:
            continue
        shown = subprocess.run([*git, "cat-file", "blob", blob], capture_output=True)
        if shown.returncode == 0:
            (scratch / name).parent.mkdir(parents=True, exist_ok=True)
            (scratch / name).write_bytes(shown.stdout)
    return scratch


def read_all(folder: Path) -> Iterator[Found]:
    """Launch files of a folder, copies once."""
    seen = set()
    for path in sorted(folder.rglob("*")):
        starts = STARTS.get(path.suffix)
        if starts is None or not path.is_file() or path.stat().st_size > MOST_BYTES:
            continue
        if not starts.search(path.read_text(errors="replace")):
            continue
        one = read_one(path, str(path.relative_to(folder)))
        said = one.launch
        key = (one.refused.replace(str(path), path.name) if said is None
               else f"{said.fields} {said.arguments} {said.model.hidden}")  # fmt: skip
        if key not in seen:
            seen.add(key)
            yield one


def dropped(path: Path, launch: Launch) -> list[str]:
    """Values of a file that stand nowhere in the account of it: there should be none."""
    said = launch.arguments
    known = {name for part in said.parts for name in part}
    if path.suffix in (".sh", ".slurm"):
        script = read_script(path)
        commands = training_commands(script) or trainer_commands(script)
        names = {*named_arguments(commands[-1].words)} if commands else {*script.exported}
    else:
        values = {name for name, _ in flatten(read_content(path))}
        own = "MODEL_ARGS.--"
        names = {n.removeprefix(own).replace("-", "_") if n.startswith(own) else n for n in values}
    return sorted(names - known)


def read_one(path: Path, name: str) -> Found:
    found = read_either(path, name)
    lost = dropped(path, found.launch) if found.launch else []
    return replace(found, lost=tuple(lost))


def read_either(path: Path, name: str) -> Found:
    try:
        try:
            return Found(name, read_launch(path, None, {}, VOCAB))
        except AtollError as error:
            if "--model" not in str(error):
                raise
        return Found(name, read_launch(path, load_config(MODEL), {}, VOCAB))
    except AtollError as error:
        return Found(name, None, str(error))


def report(place: str, found: list[Found], quiet: bool) -> list[Found]:
    print(f"\n{place}: {share(found)}")
    for one in found if not quiet else []:
        if one.launch is None:
            print(f"  refused  {one.name}: {one.refused.partition(': ')[2] or one.refused}")
            continue
        known, all_ = one.counts
        left = "; ".join(one.launch.arguments.not_priced)
        print(f"  {known:3d} of {all_:3d}  {one.name}" + (f": not priced: {left}" if left else ""))
    return found


def share(found: list[Found]) -> str:
    read = [one for one in found if one.launch is not None]
    known, all_ = (sum(one.counts[i] for one in read) for i in (0, 1))
    return (f"{len(read)} files read, {len(found) - len(read)} refused; {known} of {all_} "
            f"arguments accounted for ({100 * known / max(1, all_):.1f} %)")  # fmt: skip


def report_all(found: list[Found]) -> None:
    print(f"\nIn all: {share(found)}")
    lost = Counter(name for one in found for name in one.lost)
    print(f"Silently dropped: {', '.join(f'{n} {c}' for n, c in lost.most_common()) or 'none'}")
    accounts = [one.launch.arguments for one in found if one.launch]
    for title, index in (("Not modelled", 2), ("Unknown", 3)):
        left = Counter(name for account in accounts for name in account.parts[index])
        print(f"{title}, with the number of files:")
        print("  " + ", ".join(f"{name} {count}" for name, count in left.most_common()))


if __name__ == "__main__":
    sys.exit(recorded(main))
