"""A deliberate fault: other words in one place of the product, seen by whatever is imported after it."""

import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

__all__ = ["Mutant", "install", "source_of"]


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Attributes:
        name: what the broken product does.
        law: which law of the design this breaks.
        module: where.
        old: the words that stand there, exactly once.
        new: what stands there instead.
        killer: the test, or `seed n`, that notices it.
    """

    name: str
    law: int
    module: str
    old: str
    new: str
    killer: str


def source_of(module: str) -> Path:
    """Return the file of a module."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(module)
    return Path(spec.origin)


class _Broken(Loader):
    """Runs the changed words."""

    def __init__(self, mutant: Mutant, path: str) -> None:
        self._mutant = mutant
        self._path = path

    def create_module(self, spec: ModuleSpec) -> None:
        """Take an ordinary module."""
        _ = spec

    def exec_module(self, module: ModuleType) -> None:
        """Run the file with the fault in it."""
        text = Path(self._path).read_text()
        if text.count(self._mutant.old) != 1:
            raise ValueError(
                f"{self._path}: expected {self._mutant.old!r} once, found it {text.count(self._mutant.old)} times"
            )
        exec(compile(text.replace(self._mutant.old, self._mutant.new), self._path, "exec"), module.__dict__)  # noqa: S102


class _Finder(MetaPathFinder):
    """Stands before the others, and minds one module."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Give the one module the broken loader."""
        if fullname != self._mutant.module:
            return None
        others = (finder.find_spec(fullname, path, target) for finder in sys.meta_path if finder is not self)
        found = next((spec for spec in others if spec is not None), None)
        if found is None or found.origin is None:
            return None
        return importlib.util.spec_from_file_location(
            fullname, found.origin, loader=_Broken(self._mutant, found.origin)
        )


def install(mutant: Mutant) -> None:
    """Break the module for all that is imported from now on."""
    if mutant.module in sys.modules:
        raise RuntimeError(f"{mutant.module} is imported already")
    sys.meta_path.insert(0, _Finder(mutant))
