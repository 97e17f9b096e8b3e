"""What a run of crashes and sequences came to: JSON for machines, text for people, in `build/`."""

import json
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from crash.points import UNREACHED
from crash.scene import NotReachedError, Scene

__all__ = ["Report"]


class Report:
    """Collects each item with its verdict and seconds."""

    def __init__(self, seed: str, folder: Path) -> None:
        self.seed = seed
        self._folder = folder
        self.items: list[dict[str, str | float]] = []
        self.missed: list[str] = []

    @contextmanager
    def item(self, kind: str, name: str, scene: Scene) -> Iterator[None]:
        """Time one crash or sequence, and note whether it passed; the scene of one that failed is not used again."""
        began = time.monotonic()
        verdict = "passed"
        try:
            yield
        except BaseException as error:
            if isinstance(error, NotReachedError):
                self.missed.append(name)
            verdict = str(error).partition("\n")[0][:500] or type(error).__name__
            scene.spoiled = True
            self._keep(name, scene)
            raise
        finally:
            seconds = round(time.monotonic() - began, 2)
            self.items.append({"kind": kind, "name": name, "verdict": verdict, "seconds": seconds})
            self._write()

    def _keep(self, name: str, scene: Scene) -> None:
        """Copy the logs and ramdisks of a scene in which something failed."""
        kept = self._folder / "crashes" / name.replace(" ", "-")
        shutil.rmtree(kept, ignore_errors=True)
        # Things vanish while they are copied, since the services live on.
        with suppress(shutil.Error):
            shutil.copytree(scene.cluster.directory, kept, symlinks=True, ignore=shutil.ignore_patterns("*.distcp"))

    def _write(self) -> None:
        """Write `crash.json` and `crash.txt` anew: an interrupted run has told what it found."""
        folder = self._folder
        folder.mkdir(exist_ok=True)
        total = Counter((item["kind"], item["verdict"] == "passed") for item in self.items)
        summary = {
            f"{kind}s": {"run": total[kind, True] + total[kind, False], "passed": total[kind, True]}
            for kind in dict.fromkeys(item["kind"] for item in self.items)
        }
        told = {"seed": self.seed, **summary, "missed": self.missed, "unreached": UNREACHED, "items": self.items}
        (folder / "crash.json").write_text(json.dumps(told, indent=1) + "\n")
        lines = [f"{kind}: {counts['passed']} of {counts['run']} passed" for kind, counts in summary.items()]
        lines += [f"  FAILED {one['name']}: {one['verdict']}" for one in self.items if one["verdict"] != "passed"]
        lines.append(f"not reached, and ought to be: {', '.join(self.missed) or 'none'}")
        lines += ["no stage comes to:", *(f"  {point}: {why}" for point, why in UNREACHED.items())]
        (folder / "crash.txt").write_text("\n".join(lines) + "\n")
