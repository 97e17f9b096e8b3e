"""Shows that the containers do the main job: save, lose a node with its volume, restore bit-exactly from peers.

    python3 deploy/compose_test.py        (`make compose-test`)

Uses the Docker engine that answers, else starts one with `deploy/docker-base.sh` and stops it at the end. The base
image is PYTHON_IMAGE where that is set, else the official one where it can be pulled, else one made by the script.
Needs nothing but Python's standard library. Exit code 0: everything as it must be.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
PROJECT: Final = "checkpoint-replicator-test"
OFFICIAL: Final = "python:3.12-slim"
LOCAL: Final = "checkpoint-replicator/python-base:local"
ENGINE_PID: Final = Path("/run/checkpoint-replicator-dockerd.pid")
NODES: Final = 3
LOST: Final = 1
PULL_WITHIN: Final = 30
BUILD_WITHIN: Final = 900
COMMIT_WITHIN: Final = 90
JOB_WITHIN: Final = 180
SERVICES: Final = ("watcher", "transfer", "uploader")


class ComposeTestError(Exception):
    """Something is not as it must be."""


def main() -> int:
    """Run the test; returns the exit code."""
    started = not _answers("docker", "info")
    try:
        environment = _base_image()
        with_compose = _compose_command()
        cluster = Cluster(with_compose, environment)
        try:
            play(cluster)
        except BaseException:
            _say(cluster.logs())
            raise
        finally:
            cluster.down()
    except ComposeTestError as error:
        _say(f"FAIL: {error}")
        return 1
    finally:
        if started:
            _stop_engine()
    _say("PASS: a node's containers and its volume were lost, and its shards came back bit-exactly from its peers")
    return 0


class Cluster:
    """The project of `compose.yaml`."""

    def __init__(self, compose: Sequence[str], environment: dict[str, str]) -> None:
        self._compose = (*compose, "-p", PROJECT, "-f", str(HERE / "compose.yaml"))
        self._environment = environment

    def compose(self, *words: str, within: float = 120, **variables: str) -> str:
        """Run a compose command and return its output."""
        return _run((*self._compose, *words), within, {**self._environment, **variables})

    def down(self) -> None:
        """Take everything away, volumes too."""
        self.compose("down", "--volumes", "--remove-orphans", "--timeout", "10", within=300)

    def logs(self) -> str:
        """Return the last lines of every container."""
        return self.compose("logs", "--no-color", "--tail", "400")

    def containers(self, *services: str) -> list[str]:
        """Return the ids of these services' containers, ended ones too."""
        return self.compose("ps", "--quiet", "--all", *services).split()

    def committed(self) -> int | None:
        """Return the newest committed step."""
        try:
            text = self.compose("exec", "-T", "coordinator-0", "checkpoint-replicator", "status", "--json")
        except ComposeTestError:
            return None
        jobs: list[dict[str, Any]] = json.loads(text)["jobs"]
        newest = jobs[0]["committed"] if jobs else None
        return None if newest is None else int(newest.rpartition(".")[2])


def play(cluster: Cluster) -> None:
    """Bring up, save, lose a node, restore."""
    _say("building the images")
    cluster.compose("build", within=BUILD_WITHIN)
    _say("a cluster of three nodes comes up, and its trainers save steps 1 to 3")
    cluster.compose("up", "--detach", within=300, STEPS="1,2,3", EXPECT="none")
    _wait_for_trainers(cluster)
    _until("step 3 is committed", COMMIT_WITHIN, lambda: cluster.committed() == 3)  # noqa: PLR2004  # of the steps above
    node = f"node-{LOST}"
    _say(f"the containers of {node} are killed, and its volume is removed")
    doomed = cluster.containers(*(f"{node}-{name}" for name in (*SERVICES, "trainer")))
    _run(("docker", "rm", "--force", *doomed), 60)
    _run(("docker", "volume", "rm", f"{PROJECT}_{node}"), 60)
    _say(f"a new {node} starts empty, the job starts again and must get step 3 everywhere")
    cluster.compose("up", "--detach", "--no-deps", *(f"{node}-{name}" for name in SERVICES), within=120)
    trainers = [f"node-{rank}-trainer" for rank in range(NODES)]
    cluster.compose("up", "--detach", "--no-deps", "--force-recreate", *trainers, within=120, STEPS="4", EXPECT="3")
    _wait_for_trainers(cluster)
    _until("step 4 is committed", COMMIT_WITHIN, lambda: cluster.committed() == 4)  # noqa: PLR2004  # of the steps above


def _wait_for_trainers(cluster: Cluster) -> None:
    for rank in range(NODES):
        [container] = cluster.containers(f"node-{rank}-trainer") or [""]
        code = _run(("docker", "wait", container), JOB_WITHIN).strip()
        said = _run(("docker", "logs", container), 30).strip()
        _say(f"trainer {rank}: {said.splitlines()[-1] if said else 'nothing'}")
        if code != "0":
            raise ComposeTestError(f"expected exit code 0 of trainer {rank}, found {code}: {said}")


def _base_image() -> dict[str, str]:
    environment = {"BUILD_NETWORK": os.environ.get("BUILD_NETWORK", "default"), "DOCKER_BUILDKIT": "0"}
    given = os.environ.get("PYTHON_IMAGE")
    if given:
        return {**environment, "PYTHON_IMAGE": given}
    if _answers("docker", "info") and (
        _answers("docker", "image", "inspect", OFFICIAL) or _answers("docker", "pull", "--quiet", OFFICIAL)
    ):
        return {**environment, "PYTHON_IMAGE": OFFICIAL}
    _say("no official image here: making one")
    _say(_run((str(HERE / "docker-base.sh"), LOCAL), BUILD_WITHIN).strip())
    return {**environment, "PYTHON_IMAGE": LOCAL, "BUILD_NETWORK": "host"}


def _compose_command() -> tuple[str, ...]:
    for command in (("docker", "compose"), ("docker-compose",)):
        if _answers(*command, "version"):
            return command
    raise ComposeTestError("expected docker compose or docker-compose, found neither")


def _answers(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=PULL_WITHIN, check=False).returncode == 0
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return False


def _run(command: Sequence[str], within: float, variables: dict[str, str] | None = None) -> str:
    environment = {**os.environ, **(variables or {})}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=within, check=False, env=environment)
    except subprocess.TimeoutExpired:
        raise ComposeTestError(f"{' '.join(command)} did not end within {within:g} s") from None
    if done.returncode:
        tail = (done.stdout + done.stderr)[-3000:]
        raise ComposeTestError(f"{' '.join(command)} ended with {done.returncode}:\n{tail}")
    return done.stdout


def _until(what: str, within: float, true: Callable[[], bool]) -> None:
    ends = time.monotonic() + within
    while not true():
        if time.monotonic() > ends:
            raise ComposeTestError(f"waited {within:g} s in vain until {what}")
        time.sleep(1)
    _say(what)


def _stop_engine() -> None:
    if ENGINE_PID.exists():
        os.kill(int(ENGINE_PID.read_text()), signal.SIGTERM)
        ENGINE_PID.unlink()


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
