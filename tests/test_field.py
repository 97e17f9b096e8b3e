"""`FIELD.md` and `docs/guarantees.md` are true, and rules of the field that hold for the sources as a whole."""

import ast
import re
from functools import cache
from pathlib import Path

from checkpoint_replicator.leaf import LEAF_SIZE
from checkpoint_replicator.wire import FRAME_LIMIT
from checkpoint_transfer.leaves import CHUNK_BYTES
from checkpoint_transfer.service import TREE_FRAME
from support.house import ROOT, modules, rows

TESTS = ROOT / "tests"
GUARANTEES = (ROOT / "docs/guarantees.md").read_text()
TEXT = (TESTS / "FIELD.md").read_text()
SCENARIOS = rows(TEXT, "## Scenarios from the field")
FAULTS = rows(TEXT, "## Faults of an earlier replicator")
ENCRYPTION = 66
STORE = range(81, 101)
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")


@cache
def defined(path: Path) -> frozenset[str]:
    """The tests that a file defines; none when it is not there."""
    if not path.exists():
        return frozenset()
    tree = ast.parse(path.read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, kinds) and node.name.startswith("test_"))


@cache
def nightly(path: Path) -> frozenset[str]:
    """The tests of a file of which a size runs only in the night."""
    nodes = (
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return frozenset(node.name for node in nodes if any("nightly" in ast.unparse(one) for one in node.decorator_list))


@cache
def sources() -> tuple[tuple[str, ast.Module], ...]:
    """Every module of ours, parsed."""
    return tuple((module, ast.parse(path.read_text())) for module, path, _ in modules())


def imports(tree: ast.Module) -> set[str]:
    """The first parts of all modules that a module imports."""
    found = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    found |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in found}


@cache
def calls() -> tuple[tuple[str, str, ast.Call], ...]:
    """Every call in our modules: the module, what is called as its text, and the call."""
    return tuple(
        (module, ast.unparse(node.func), node)
        for module, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
    )


def test_every_test_that_the_table_names_exists() -> None:
    named = NAMED.findall(TEXT)
    absent = [f"{file}::{name}" for file, name in named if name not in defined(TESTS / file)]
    assert len(named) > 150
    assert absent == []


def test_every_row_is_guarded_or_says_what_is_missing() -> None:
    ids = [row[0].split()[0] for row in SCENARIOS]
    assert (len(ids), len(set(ids))) == (84, 84)
    assert ids == sorted(ids, key=lambda text: int(text[1:]))
    numbers = [int(row[0]) for row in FAULTS]
    assert (numbers, len(numbers)) == (sorted(set(numbers)), 32)
    for row in (*SCENARIOS, *FAULTS):
        for part in row[2].split("; "):
            assert NAMED.fullmatch(part) or re.fullmatch("later: .+", part), row


def test_rows_of_highest_priority_and_faults_have_a_test_that_plays_them_and_miss_nothing() -> None:
    first = [row for row in SCENARIOS if row[0].endswith(" P0") and not is_elsewhere(row[0])]
    wanted = {row[0].split()[0].lower(): row for row in first} | {f"fault_{row[0]}": row for row in FAULTS}
    assert len(first) == 39
    lacking = [
        name
        for name, row in wanted.items()
        if "later:" in row[2] or not any(test.startswith(f"test_{name}_") for _, test in NAMED.findall(row[2]))
    ]
    assert lacking == []


def is_elsewhere(id_: str) -> bool:
    """Rows of encryption and of the backup store are done with those."""
    number = int(id_[1:].split(maxsplit=1)[0])
    return number == ENCRYPTION or number in STORE


def test_every_row_says_the_levels_of_its_tests_and_when_they_run() -> None:
    for row in (*SCENARIOS, *FAULTS):
        named = NAMED.findall(row[2])
        levels = {file.split("/")[0] if "/" in file else "sources" for file, _ in named}
        assert set(row[3].split(", ")) == (levels or {"-"}), row[0]
        whole = any(name in nightly(TESTS / file) for file, name in named)
        assert row[4] == ("CI; whole nightly" if whole else "CI" if named else "-"), row[0]


def test_a_test_with_a_number_has_a_row() -> None:
    numbers = {row[0].split()[0].lower() for row in SCENARIOS} | {f"fault_{row[0]}" for row in FAULTS}
    stray = [
        f"{path.relative_to(TESTS)}::{name}"
        for path in sorted(TESTS.rglob("test_*.py"))
        for name in sorted(defined(path))
        if (found := re.match(r"test_(s\d+|fault_\d+)_", name)) and found[1] not in numbers
    ]
    assert stray == []


def test_every_law_has_its_chapter_in_the_guarantees_with_tests_that_exist() -> None:
    chapters = re.split(r"^## ", GUARANTEES, flags=re.MULTILINE)[1:]
    assert [chapter.split()[0] for chapter in chapters] == [str(law) for law in range(1, 11)]
    for chapter in chapters:
        named = NAMED.findall(chapter)
        assert [f"{file}::{name}" for file, name in named if name not in defined(TESTS / file)] == []
        assert len(named) >= 5, chapter[:20]
        assert "*Not guaranteed:*" in chapter


def test_s44_nothing_maps_a_file_into_memory() -> None:
    maps = [(module, call) for module, name, call in calls() if name == "mmap.mmap"]
    assert [(module, ast.unparse(call.args[0])) for module, call in maps] == [("checkpoint_replicator.buffer", "-1")]
    assert {module for module, tree in sources() if "mmap" in imports(tree)} == {"checkpoint_replicator.buffer"}


def test_s65_every_frame_that_is_sent_fits_what_a_reader_takes() -> None:
    assert max(TREE_FRAME, CHUNK_BYTES, LEAF_SIZE) <= FRAME_LIMIT


def test_s70_nothing_forks() -> None:
    assert [module for module, tree in sources() if "multiprocessing" in imports(tree)] == []
    forks = {"os.fork", "os.forkpty", "pty.fork", "ProcessPoolExecutor", "futures.ProcessPoolExecutor"}
    assert [(module, name) for module, name, _ in calls() if name in forks] == []


def test_s73_nothing_unpickles() -> None:
    unsafe = {"pickle", "_pickle", "cPickle", "dill", "shelve", "marshal"}
    assert [(module, name) for module, tree in sources() for name in sorted(imports(tree) & unsafe)] == []
    assert [module for module, name, _ in calls() if name in {"eval", "exec"}] == []


def test_fault_43_nothing_is_given_to_a_shell() -> None:
    shells = {"os.system", "os.popen", "asyncio.create_subprocess_shell", "subprocess.getoutput"}
    assert [(module, name) for module, name, _ in calls() if name in shells] == []
    words = [(module, key.arg) for module, _, call in calls() for key in call.keywords]
    assert [module for module, word in words if word == "shell"] == []
