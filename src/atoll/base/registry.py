"""Registries of named objects of one kind, built in or from plug-in packages.

A package declares its objects by entry points; `pip install` is all that a user does:

    [project.entry-points."atoll.stacks"]
    mine = "my_package.atoll:MINE"

Options, keywords and job files take the name; help and JSON Schema list it. Python may pass the
object itself (`atoll.plan(..., stack=MINE)`), which is then registered in this process. Plug-ins
are imported on use. docs/extending.md describes each registry.
"""

from __future__ import annotations

import hashlib
import marshal
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from functools import cache
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from atoll.base.errors import AtollError, suggestion
from atoll.base.identity import sources_digest

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")


def import_named(path: str) -> Any:
    """Import "module:attribute" on use: of packages above the caller, or with slow imports."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def _item_name(item: Any) -> tuple[str, ...]:
    return (item.name,)


class Registry(Generic[T]):
    """Objects of one kind by name: built-in ones first, then those of plug-ins."""

    def __init__(
        self,
        group: str,
        kind: type[T],
        ours: Iterable[T] = (),
        names: Callable[[T], tuple[str, ...]] = _item_name,
        noun: str = "",
    ) -> None:
        self.group, self.kind, self._names = group, kind, names
        self.noun = noun or group.removesuffix("s").replace("_", " ")
        self._ours: dict[str, T] = {}
        self._passed: dict[str, T] = {}
        self._loaded: dict[str, T] = {}
        self.add(*ours)

    def add(self, *ours: T) -> None:
        """Add built-in objects."""
        for item in ours:
            for name in self._names(item):
                if self._ours.setdefault(name, item) is not item:
                    raise AtollError(f"{self.noun} {name!r} is known already")

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._ours, *_plug_ins(self.group))))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in self._passed or any(name == listed for listed in self)

    def __getitem__(self, name: str) -> T:
        """Return the object of that name, or raise an AtollError."""
        offered = _plug_ins(self.group).get(name, ())
        if len(offered) + (name in self._ours) > 1:
            makers = [*(["atoll"] if name in self._ours else []), *map(_package, offered)]
            raise AtollError(
                f"{self.noun} {name!r} is offered by {' and by '.join(makers)}; uninstall one."
            )
        if name in self._ours:
            return self._ours[name]
        if offered and name not in self._loaded:
            self._loaded[name] = self._load(offered[0])
        item = self._loaded.get(name, self._passed.get(name))
        if item is None:
            raise AtollError(f"{self.noun} {name!r} is not known{suggestion(name, self)}")
        return item

    def values(self) -> list[T]:
        """Return all objects."""
        return [self[name] for name in self]

    def origin(self, name: str) -> str:
        """Return the package of an object with a hash of its sources; empty for built-in ones."""
        if name in self._ours:
            return ""
        item, digest = self[name], hashlib.blake2b(digest_size=8)
        points = _plug_ins(self.group).get(name)
        if not points:
            for field in fields(item):  # type: ignore[arg-type]
                value = getattr(item, field.name)
                code = getattr(value, "__code__", None)
                digest.update(repr(value).encode() if code is None else marshal.dumps(code))
            return f"given {digest.hexdigest()}"
        package = sys.modules[points[0].module.partition(".")[0]]
        for file in sorted(Path(folder) for folder in getattr(package, "__path__", ())):
            digest.update(sources_digest(file).encode())
        if not hasattr(package, "__path__"):
            digest.update(Path(package.__file__ or "").read_bytes())
        return f"{_package(points[0])} {digest.hexdigest()}"

    def accept(self, item: Any) -> str:
        """Register an object passed from Python; return its name."""
        if not isinstance(item, self.kind):
            raise AtollError(f"{item!r} is no {self.noun} (atoll's {self.kind.__name__})")
        first, *_ = names = self._names(item)
        for name in names:
            exists = name in self._ours or name in _plug_ins(self.group)
            if exists and self[name] is not item:
                raise AtollError(f"{self.noun} {name!r} is known already; give yours another name")
        self._passed |= dict.fromkeys(names, item)
        return first

    def _load(self, point: EntryPoint) -> T:
        who = f"{self.noun} {point.name!r} of package {_package(point)}"
        try:
            item = point.load()
        except Exception as error:
            raise AtollError(
                f"{who} cannot be imported ({type(error).__name__}: {error}); mend or uninstall "
                "that package."
            ) from error
        if not isinstance(item, self.kind):
            raise AtollError(
                f"{who}: {point.value} is a {type(item).__name__}, but should be an object of "
                f"atoll's {self.kind.__name__}."
            )
        if point.name not in self._names(item):
            raise AtollError(
                f"{who}: {point.value} calls itself {' and '.join(self._names(item))}; its entry "
                "point must have the same name."
            )
        return item


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.module.partition(".")[0]


@cache
def _plug_ins(group: str) -> dict[str, tuple[EntryPoint, ...]]:
    """Return entry points of installed packages for one kind, by name."""
    points_by_name: dict[str, tuple[EntryPoint, ...]] = {}
    for point in _installed()(group=f"atoll.{group}"):
        points_by_name[point.name] = (*points_by_name.get(point.name, ()), point)
    return points_by_name


@cache
def _installed() -> Callable[..., Iterable[EntryPoint]]:
    """Return the entry point selector; packages are scanned once."""
    if not _any_offers():
        return lambda group: ()
    from importlib.metadata import entry_points

    return entry_points().select


def _any_offers() -> bool:
    """Return whether a package may have plug-ins: a quick check of plain folders, as
    `importlib.metadata` imports slowly and most users have no plug-in.
    """
    if [f for f in sys.meta_path if hasattr(f, "find_distributions")] != [PathFinder]:
        return True
    for folder in map(Path, sys.path):
        if folder.is_file():  # an archive
            return True
        for metadata in (*folder.glob("*.dist-info"), *folder.glob("*.egg-info")):
            try:
                offered = (metadata / "entry_points.txt").read_text(encoding="utf-8")
            except OSError:
                continue
            if "[atoll." in offered:
                return True
    return False
