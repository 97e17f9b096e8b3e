"""`make nightly`: seeds for a while, every deliberate fault, and the tests that CI runs small; one report of all.

Crashes of real processes and soaks run beside the seeds: they wait more than they compute, and seeds are measured in
CPU time. What they print goes to a file each.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from simulation.pace import Pace, Paces
from simulation.run import play
from simulation.sometimes import SELDOM, SOMETIMES
from simulation.story import retell

ROOT: Final = Path(__file__).resolve().parents[2]
MOST_STORIES: Final = 5
PROTECTED: Final = "protected again"


def main(arguments: list[str] | None = None) -> int:
    """Run all parts, write the report; 1 where any of them found something."""
    parser = argparse.ArgumentParser(prog="nightly", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="so long seeds are played, by the clock")
    parser.add_argument("--first", type=int, default=0, help="the first seed; another one every night finds more")
    parser.add_argument("--seeds", type=int, default=1 << 30, help="so many at most")
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="where the report goes")
    parser.add_argument("--no-mutants", action="store_true")
    parser.add_argument("--no-tests", action="store_true", help="leave out tests that are marked nightly, and crashes")
    options = parser.parse_args(arguments)
    options.build.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(2) as beside:
        parts = {} if options.no_tests else {name: beside.submit(part, options.build) for name, part in PARTS.items()}
        report: dict[str, Any] = {"simulation": _simulate(options.first, options.seeds, 60 * options.minutes)}
        if not options.no_mutants:
            report["mutants"] = _mutants(options.build)
        report |= {name: part.result() for name, part in parts.items()}
    faults = _faults(report)
    report["faults"] = faults
    (options.build / "nightly.json").write_text(json.dumps(report, indent=1))
    text = _text(report)
    (options.build / "nightly.txt").write_text(text)
    print(text)
    return int(bool(faults))


def _simulate(first: int, most: int, seconds: float) -> dict[str, Any]:
    total: Counter[str] = Counter()
    troubles: Counter[str] = Counter()
    failed: list[int] = []
    paces = Paces()
    begun, seed = time.monotonic(), first
    while seed < first + most and time.monotonic() - begun < seconds:
        with paces.measured(seed):
            played = play(seed)
        total.update(played.hits)
        troubles.update(name.partition(":")[2] or name for name in played.troubles)
        if played.error is not None:
            failed.append(seed)
        seed += 1
    return {
        "first": first,
        "events": total["events"],
        **_pace(paces.all),
        "small": _pace(paces.small),
        "failed": failed,
        "stories": [retell(one) for one in failed[:MOST_STORIES]],
        "sometimes": {name: total[name] for name in (*SOMETIMES, *SELDOM)},
        "not_reached": [name for name in (*SOMETIMES, *SELDOM) if not total[name]],
        "troubles": dict(sorted(troubles.items())),
        "happened": dict(sorted(total.items())),
    }


def _pace(pace: Pace) -> dict[str, Any]:
    return {"seeds": pace.seeds, "cpu_seconds": round(pace.spent, 1), "seeds_a_minute": pace.a_minute}


def _mutants(build: Path) -> dict[str, Any]:
    rows = build / "mutants.json"
    code = _run(["-m", "simulation.mutants", "--report", str(rows)])
    found = json.loads(rows.read_text())
    return {
        "code": code,
        "noticed": sum(row["killed"] for row in found),
        "of": len(found),
        "lived": [row["name"] for row in found if not row["killed"]],
        "rows": found,
    }


def _crash(build: Path) -> dict[str, Any]:
    """Crash every process at every point, and run every sequence."""
    code = _run(["-m", "pytest", "-q", "tests/crash", "--all-crashes"], build / "nightly-crash.log")
    summary = ROOT / "build" / "crash.txt"
    return {"code": code, "log": "nightly-crash.log", "summary": summary.read_text() if summary.exists() else ""}


def _tests(build: Path) -> dict[str, Any]:
    """Run what is marked nightly: the whole size of what CI runs small."""
    return {"code": _run(["-m", "pytest", "-v", "-m", "nightly"], build / LOG), "log": LOG}


LOG: Final = "nightly-tests.log"
PARTS: Final = {"crash": _crash, "tests": _tests}


def _run(arguments: list[str], log: Path | None = None) -> int:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    with ExitStack() as stack:
        output = stack.enter_context(log.open("wb")) if log is not None else None
        command = [sys.executable, *arguments]
        return subprocess.run(command, check=False, cwd=ROOT, env=environment, stdout=output).returncode


def _faults(report: dict[str, Any]) -> list[str]:
    simulation = report["simulation"]
    found = [f"seed {seed} broke a law" for seed in simulation["failed"]]
    found += [f"not reached: {name}" for name in simulation["not_reached"]]
    if report.get("mutants", {}).get("code"):
        found.append(f"mutants: {', '.join(report['mutants']['lived']) or 'too slow'}")
    if report.get("tests", {}).get("code") not in {None, 0, 5}:  # 5: nothing is marked
        found.append("tests that are marked nightly failed")
    if report.get("crash", {}).get("code"):
        found.append("crash points or sequences failed")
    return found


def _text(report: dict[str, Any]) -> str:
    simulation = report["simulation"]
    protected = sorted(
        (name for name in simulation["happened"] if name.startswith(PROTECTED)), key=lambda n: (len(n), n)
    )
    lines = [
        f"{simulation['seeds']} seeds from {simulation['first']} on, {simulation['events']} events",
        f"{simulation['cpu_seconds']} s of CPU, {simulation['seeds_a_minute']} seeds a minute",
        f"small worlds: {simulation['small']['seeds']} seeds, {simulation['small']['seeds_a_minute']} seeds a minute",
        f"failed: {' '.join(map(str, simulation['failed'])) or 'none'}",
        "",
        "what went wrong:",
        *(f"{count:9} {name}" for name, count in simulation["troubles"].items()),
        "",
        "how soon, simulated, all was well in quiet:",
        *(f"{simulation['happened'][name]:9} {name}" for name in protected),
        "",
        "what must happen sometimes:",
        *(f"{count:9} {name}" for name, count in simulation["sometimes"].items()),
    ]
    if "mutants" in report:
        lines += ["", f"mutants: {report['mutants']['noticed']} of {report['mutants']['of']} noticed"]
        lines += [
            f"{row['seconds']:7.1f} s  {'' if row['killed'] else 'LIVED '}{row['name']} (law {row['law']})"
            for row in report["mutants"]["rows"]
        ]
    if "tests" in report:
        lines += [
            "",
            f"tests that are marked nightly: exit code {report['tests']['code']}, see {report['tests']['log']}",
        ]
    if "crash" in report:
        lines += [f"crash points and sequences: exit code {report['crash']['code']}, see {report['crash']['log']}"]
        lines += report["crash"]["summary"].splitlines()
    lines += ["", *(f"FAULT: {fault}" for fault in report["faults"]), *simulation["stories"]]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
