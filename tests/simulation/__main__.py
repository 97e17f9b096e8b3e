"""`make sim`: play seeds, and tell the shortest story of each that fails; or replay one, telling everything."""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Final

from simulation.pace import Paces
from simulation.run import play
from simulation.sometimes import SOMETIMES
from simulation.story import retell, story
from simulation.world import is_small

MOST_STORIES: Final = 5
"""So many failing seeds are told; the others are named."""


def main(arguments: list[str] | None = None) -> int:
    """Play what was asked for; 1 where a law was broken."""
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    parser.add_argument("--seeds", type=seeds, default="0..500", help="from..to, without the last; or one")
    parser.add_argument("--seed", type=int, help="play this one and tell every event")
    parser.add_argument("--key", action="append", default=[], help="tell only of this save (1.3) or host (h1)")
    parser.add_argument("--without", default="", help="troubles to leave out, as a story names them")
    parser.add_argument("--small", action="store_true", help="of the seeds only those that make a small world")
    options = parser.parse_args(arguments)
    without = frozenset(filter(None, options.without.split(",")))
    if options.seed is not None:
        return _one(options.seed, without, options.key)
    chosen = [seed for seed in options.seeds if is_small(seed) or not options.small]
    if not chosen:
        parser.error("--small: none of these seeds makes a small world")
    return _many(chosen)


def seeds(text: str) -> range:
    """Read `from..to`, or one seed."""
    first, _, last = text.partition("..")
    try:
        chosen = range(int(first), int(last or int(first) + 1))
    except ValueError:
        chosen = range(0)
    if not chosen:
        raise argparse.ArgumentTypeError(f"expected from..to such as 0..500, found {text!r}")
    return chosen


def _one(seed: int, without: frozenset[str], keys: list[str]) -> int:
    lines: list[str] = []
    played = play(seed, lines.append, without)
    print("\n".join(story(lines, *keys)))
    print(played.error or f"seed {seed}: all laws hold", *played.troubles, sep="\n  ")
    return int(played.error is not None)


def _many(chosen: Sequence[int]) -> int:
    total: Counter[str] = Counter()
    failed: list[int] = []
    paces = Paces()
    for seed in chosen:
        with paces.measured(seed):
            played = play(seed)
        total.update(played.hits)
        total.update(f"trouble: {name.partition(':')[2] or name}" for name in played.troubles)
        if played.error is not None:
            failed.append(seed)
            print(f"{played.error}", flush=True)
    for seed in failed[:MOST_STORIES]:
        print(f"\n{retell(seed)}", flush=True)
    print()
    for name, count in sorted(total.items()):
        print(f"{count:8} {name}")
    print(f"{total['events']} events: {paces.all}")
    print(f"small worlds: {paces.small}")
    print(f"failed: {' '.join(map(str, failed)) or 'none'}")
    print(f"not reached: {', '.join(name for name in SOMETIMES if not total[name]) or 'nothing'}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
