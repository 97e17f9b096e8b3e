"""What a run of crashes and sequences came to: JSON for machines, text for people, in `build/`."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from crash.scene import Scene

__all__ = ["Report"]


class Report:
    """Collects each item with its verdict and seconds."""

    def __init__(self, seed: str) -> None:
        self.seed = seed
        self.items: list[dict[str, str | float]] = []

    @contextmanager
    def item(self, kind: str, name: str, scene: Scene) -> Iterator[None]:
        """Time one crash or sequence, and note whether it passed; the scene of one that failed is not used again."""
        began = time.monotonic()
        verdict = "passed"
        try:
            yield
        except BaseException as error:
            verdict = str(error).partition("\n")[0][:500] or type(error).__name__
            scene.spoiled = True
            raise
        finally:
            seconds = round(time.monotonic() - began, 2)
            self.items.append({"kind": kind, "name": name, "verdict": verdict, "seconds": seconds})

    def write(self, folder: Path) -> None:
        """Write `crash.json` and `crash.txt`."""
        folder.mkdir(exist_ok=True)
        total = Counter((item["kind"], item["verdict"] == "passed") for item in self.items)
        summary = {
            f"{kind}s": {"run": total[kind, True] + total[kind, False], "passed": total[kind, True]}
            for kind in dict.fromkeys(item["kind"] for item in self.items)
        }
        told = {"seed": self.seed, **summary, "items": self.items}
        (folder / "crash.json").write_text(json.dumps(told, indent=1) + "\n")
        lines = [f"{kind}: {counts['passed']} of {counts['run']} passed" for kind, counts in summary.items()]
        lines += [f"  FAILED {one['name']}: {one['verdict']}" for one in self.items if one["verdict"] != "passed"]
        (folder / "crash.txt").write_text("\n".join(lines) + "\n")
