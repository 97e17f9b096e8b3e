import subprocess
import sys

from checkpoint_replicator import leash
from checkpoint_replicator.leash import PARENT_GONE, leashed

PARENT = """
import subprocess, sys
from checkpoint_replicator.leash import leashed
child = subprocess.Popen(leashed((sys.executable, "-c", "print('up', flush=True); input()")), stdin=subprocess.PIPE)
print(child.pid, flush=True)
input()
"""


def test_a_leashed_program_runs_and_gives_its_exit_code() -> None:
    done = subprocess.run(
        leashed((sys.executable, "-c", "import sys; print(sys.argv[1:]); sys.exit(7)", "a b", "c")),
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (7, b"['a b', 'c']\n")


def test_fault_4_kill_9_of_the_parent_ends_the_leashed_program() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        first_lines = {parent.stdout.readline(), parent.stdout.readline()}
        assert b"up\n" in first_lines
        parent.kill()
        # The child holds the other end of this pipe: reading to its end waits for the child's death.
        assert parent.stdout.read() == b""


def test_a_program_whose_parent_is_gone_already_is_not_started() -> None:
    done = subprocess.run([sys.executable, leash.__file__, "1", "/bin/echo", "alive"], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (PARENT_GONE, b"")
