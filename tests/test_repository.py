"""The house itself: walls, mirrors, sample configurations, documents."""

import ast
import importlib
import os
import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import get_args

import grimp
import msgspec
import pytest

from checkpoint_replicator.cli import COMMANDS
from checkpoint_replicator.config import ServiceConfig, load, meanings
from checkpoint_replicator.messages import Message
from support.house import ROOT, ROOTS, SERVICES, modules, rows, tracked

SHELLS = (
    "checkpoint_replicator.bus.zeromq",
    "checkpoint_replicator.cli.*",
    "checkpoint_replicator.cluster",
    "checkpoint_replicator.config",
    "checkpoint_replicator.demo.*",
    "checkpoint_replicator.driver",
    "checkpoint_replicator.embedded",
    "checkpoint_replicator.logs",
    "checkpoint_replicator.metrics",
    "checkpoint_replicator.process",
    "checkpoint_replicator.ramdisk*",
    "checkpoint_replicator.store.redis",
    "checkpoint_replicator.supervisor",
    "checkpoint_*.__main__",
    "checkpoint_*.config",
    "checkpoint_*.disk",
    "checkpoint_*.inotify",
    "checkpoint_*.line",
    "checkpoint_*.service",
    "checkpoint_coordinator.office",
    "checkpoint_uploader.desk",
    "checkpoint_uploader.window",
    "checkpoint_watcher.notice",
    "checkpoint_watcher.sessionfile",
    "checkpoint_watcher.strays",
)
"""Modules that may wait, look at the clock, throw dice, log, or talk to the outside. All others are pure."""
OUTSIDE = {"asyncio", "zmq", "redis", "google", "socket", "time", "random", "structlog"}
TESTED_ELSEWHERE = {
    "checkpoint_transfer.service": "tests/integration/test_transfer.py",
    "checkpoint_replicator.cli.demo": "tests/system/test_demo.py",
}
"""Shells whose behaviour only shows with real processes: module to the test that shows it."""


def readers() -> list[Path]:
    return [path for path in tracked() if path.suffix == ".md"]


def decides(path: Path) -> bool:
    """Tell whether a module has a function; one that only declares has nothing to test."""
    return any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in ast.walk(ast.parse(path.read_text()))
    )


def test_every_module_has_its_test_file() -> None:
    absent = [
        f"{module}: {test.relative_to(ROOT)}"
        for module, path, test in modules()
        if decides(path) and not test.exists() and not (ROOT / TESTED_ELSEWHERE.get(module, "absent")).exists()
    ]
    assert absent == []


def test_every_unit_test_file_has_its_module() -> None:
    wanted = {test for _, _, test in modules()}
    stray = [
        str(test.relative_to(ROOT))
        for test in sorted((ROOT / "tests/unit").rglob("test_*.py"))
        if test not in wanted and test.stem not in {"test_init", "test_main"}
    ]
    assert stray == []


def test_the_walls_between_packages_and_before_libraries_stand() -> None:
    check = "import importlinter.cli, sys; sys.exit(importlinter.cli.lint_imports(cache_dir=None))"
    result = subprocess.run([sys.executable, "-c", check], cwd=ROOT, check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


def test_every_module_that_is_no_shell_is_pure() -> None:
    graph = grimp.build_graph(*ROOTS, include_external_packages=True, cache_dir=None)
    impure = {
        f"{module} -> {' -> '.join(chain[1:])}"
        for module in sorted(graph.modules)
        if module.partition(".")[0] in ROOTS and not any(fnmatch(module, shell) for shell in SHELLS)
        for outside in sorted(OUTSIDE & graph.modules)
        if (chain := graph.find_shortest_chain(module, outside))
    }
    assert impure == set()


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_has_a_readme_and_a_sample_configuration(name: str) -> None:
    for path in (ROOT / f"services/{name}/README.md", ROOT / f"services/{name}/{name}.toml"):
        assert path.read_text().strip(), path


@pytest.mark.parametrize("name", SERVICES)
def test_every_metric_of_a_service_stands_in_its_readme(name: str) -> None:
    service = ROOT / "services" / name
    sources = "".join(path.read_text() for path in service.rglob("*.py"))
    made = set(re.findall(r'"(checkpoint_replicator_[a-z_]+)"', sources))
    assert made - set(re.findall(r"checkpoint_replicator_[a-z_]+", (service / "README.md").read_text())) == set()


@pytest.mark.parametrize("name", SERVICES)
def test_every_key_of_a_service_has_its_meaning_in_a_docstring_for_help(name: str) -> None:
    kind = getattr(importlib.import_module(f"checkpoint_{name}.config"), f"{name.capitalize()}Config")
    assert {field.encode_name for field in msgspec.structs.fields(kind)} - meanings(kind).keys() == set()


@pytest.mark.parametrize("name", SERVICES)
def test_a_sample_configuration_names_every_key_and_sets_nothing_but_defaults(name: str, tmp_path: Path) -> None:
    sample = ROOT / f"services/{name}/{name}.toml"
    kind: type[ServiceConfig] = getattr(
        importlib.import_module(f"checkpoint_{name}.config"), f"{name.capitalize()}Config"
    )
    text = sample.read_text()
    found = load(kind, sample)
    required = {field.encode_name: found for field in msgspec.structs.fields(kind) if field.required}
    plain = tmp_path / "plain.toml"
    given = {key: value for key, value in tomllib.loads(text).items() if key in required}
    plain.write_text("".join(f"{key} = {msgspec.json.encode(value).decode()}\n" for key, value in given.items()))
    assert found == load(kind, plain)
    named = set(re.findall(r"^#? ?([a-z][a-z-]*) ?=", text, re.MULTILINE)) | set(
        re.findall(r"^#? ?\[([a-z]+)\]", text, re.MULTILINE)
    )
    assert {field.encode_name for field in msgspec.structs.fields(kind)} <= named


def test_commands_in_documents_are_targets_of_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    told = {
        (path.name, command)
        for path in readers()
        for block in re.findall(r"`(?:``[a-z]*\n)?([^`]+)`", path.read_text())
        for command in re.findall(r"^make ([a-z-]+)", block, re.MULTILINE)
    }
    assert {command for _, command in told} >= {"demo", "test"}
    assert {(name, command) for name, command in told if command not in targets} == set()


def test_every_target_explains_itself_and_is_no_file() -> None:
    text = (ROOT / "Makefile").read_text()
    phony = set(re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)[0].split())
    explained = set(re.findall(r"^([a-z-]+):.*## ", text, re.MULTILINE))
    assert phony == explained


def test_links_between_documents_lead_somewhere() -> None:
    broken = [
        f"{path.relative_to(ROOT)}: {link}"
        for path in readers()
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text())
        if "://" not in link and not (path.parent / link).exists()
    ]
    assert broken == []


def test_no_file_names_a_path_of_one_machine() -> None:
    here = [
        str(ROOT),
        f"{os.sep}work{os.sep}main",
        f"{os.sep}work{os.sep}wt",
        f"{os.sep}root{os.sep}",
        f"{os.sep}.pyenv{os.sep}",
    ]
    found = [
        f"{path.relative_to(ROOT)}: {place}"
        for path in tracked()
        for place in here
        if place.encode() in path.read_bytes()
    ]
    assert found == []


def test_the_table_of_messages_is_true() -> None:
    table = rows((ROOT / "docs/protocol.md").read_text(), "## Messages")
    told = {row[0].strip("` "): re.findall(r"`(\w+)`", row[4]) for row in table}
    assert told == {kind.__name__: list(kind.__struct_fields__) for kind in get_args(Message)}


def test_the_readme_shows_every_command() -> None:
    text = (ROOT / "README.md").read_text()
    shown = set(re.findall(r"checkpoint-replicator (\w+)", text)) | set(re.findall(r"^make (\w+)", text, re.MULTILINE))
    assert set(COMMANDS) - shown == set()


def test_every_decision_is_listed() -> None:
    listed = re.findall(r"\((\d{4}-[a-z0-9-]+\.md)\)", (ROOT / "docs/decisions/README.md").read_text())
    assert listed == sorted(path.name for path in (ROOT / "docs/decisions").glob("0*.md"))
    assert [int(name[:4]) for name in listed] == list(range(1, len(listed) + 1))


def test_every_dependency_is_pinned_with_its_hashes() -> None:
    text = (ROOT / "constraints.txt").read_text()
    pinned = dict(re.findall(r"^([a-z0-9._-]+)==\S+.*\\\n    --hash=(sha256):", text, re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = [project["build-system"]["requires"], project["project"]["dependencies"]]
    groups += project["project"]["optional-dependencies"].values()
    wanted = {re.split(r"[^a-z0-9._-]", each.lower())[0] for group in groups for each in group}
    assert wanted - {"checkpoint-replicator"} <= set(pinned)
    assert "://" not in text


def test_ci_ends_with_the_tests_and_its_script_parses() -> None:
    script = ROOT / ".ci/run"
    assert os.access(script, os.X_OK)
    assert script.read_text().splitlines()[-1] == "exec make --no-print-directory test"
    subprocess.run(["bash", "-n", str(script)], check=True)
