"""`make mutants`: break the product on purpose, fault by fault; each must be noticed within five seconds of CPU."""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from simulation.faultlist import MUTANTS
from simulation.mutation import Mutant, install, source_of

SECONDS: Final = 5.0
"""So much CPU a killer may take, with the start of Python and pytest."""
TESTS: Final = Path(__file__).resolve().parent.parent
MOST_SEEDS: Final = 40


def main(arguments: list[str] | None = None) -> int:
    """Run all mutants, or those asked for; 1 where one lived or took too long."""
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("--only", default="", help="those whose name holds this text")
    parser.add_argument("--search", action="store_true", help="look for killers, and print them")
    parser.add_argument("--play", help=argparse.SUPPRESS)
    parser.add_argument("--report", help="write what came of each to this file, as JSON")
    options = parser.parse_args(arguments)
    if options.play is not None:
        return _play(next(one for one in MUTANTS if one.name == options.play), options.only)
    chosen = [one for one in MUTANTS if options.only in one.name]
    if not chosen:
        parser.error(f"--only: no mutant's name holds {options.only!r}")
    if options.search:
        for mutant in chosen:
            print(f"{mutant.name}: {_search(mutant)}", flush=True)
        return 0
    rows = [_row(mutant) for mutant in chosen]
    lived = [row for row in rows if not row.killed]
    slow = [row for row in rows if row.seconds > SECONDS]
    print(f"{len(rows) - len(lived)} of {len(rows)} mutants were noticed; {len(slow)} took more than {SECONDS:g} s")
    if options.report:
        Path(options.report).parent.mkdir(parents=True, exist_ok=True)
        Path(options.report).write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return int(bool(lived or slow))


@dataclass(frozen=True)
class Row:
    """What came of one mutant."""

    name: str
    law: int
    killer: str
    killed: bool
    seconds: float


def _row(mutant: Mutant) -> Row:
    killed, spent, _ = _try(mutant, mutant.killer)
    verdict = "noticed" if killed else "LIVED  "
    print(f"{verdict} {spent:5.1f} s  law {mutant.law:2}  {mutant.name}  by {mutant.killer}", flush=True)
    return Row(mutant.name, mutant.law, mutant.killer, killed, round(spent, 2))


def _try(mutant: Mutant, killer: str) -> tuple[bool, float, str]:
    """Let a killer see a mutant, in a process of its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "simulation.mutants", "--play", mutant.name, "--only", killer],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(TESTS), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=TESTS.parent,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.returncode == 1, spent, done.stdout + done.stderr


def _play(mutant: Mutant, killer: str) -> int:
    """In the process of its own: 1 where the killer fails, as it must."""
    install(mutant)
    if killer.startswith("seed"):
        from simulation.run import play

        seeds = killer.removeprefix("seed ").partition("..")
        for seed in range(int(seeds[0]), int(seeds[2] or int(seeds[0]) + 1)):
            error = play(seed).error
            if error is not None:
                print(f"KILLED by seed {seed}: {error}")
                return 1
        return 0
    import pytest

    return int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *killer.split()]))


def _search(mutant: Mutant) -> str:
    """Try the module's own tests, then seeds."""
    path = source_of(mutant.module)
    package = path.parent.name.removeprefix("checkpoint_")
    unit = TESTS / "unit"
    folders = [unit / package, unit] if (unit / package).is_dir() else [unit]
    own = next(
        (folder / f"test_{path.stem}.py" for folder in folders if (folder / f"test_{path.stem}.py").is_file()), None
    )
    candidates = [str(own.relative_to(TESTS.parent))] if own else []
    candidates += [str(folders[0].relative_to(TESTS.parent))] if folders[0] != unit else []
    for candidate in candidates:
        killed, _, told = _try(mutant, candidate)
        found = re.search(r"^FAILED (\S+)", told, re.MULTILINE)
        if killed and found:
            _, spent, _ = _try(mutant, found[1])
            return f"{found[1]} ({spent:.1f} s)"
    killed, _, told = _try(mutant, f"seed 0..{MOST_SEEDS}")
    found = re.search(r"KILLED by (seed \d+): (.{0,120})", told)
    if killed and found:
        _, spent, _ = _try(mutant, found[1])
        return f"{found[1]} ({spent:.1f} s) {found[2]}"
    return f"LIVES {told[-300:]}"


if __name__ == "__main__":
    sys.exit(main())
