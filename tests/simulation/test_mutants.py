"""Every deliberate fault still has its place in the code, and a few are noticed; `make mutants` runs them all."""

import hashlib

import pytest

from simulation import mutants
from simulation.faultlist import MUTANTS
from simulation.mutation import Mutant, source_of

PLAYED = sorted(MUTANTS, key=lambda mutant: hashlib.sha256(mutant.name.encode()).digest())[:3]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_deliberate_fault_has_one_place_in_the_code(mutant: Mutant) -> None:
    text = source_of(mutant.module).read_text()
    assert text.count(mutant.old) == 1, f"expected once in {mutant.module}: {mutant.old!r}"
    assert mutant.old != mutant.new
    compile(text.replace(mutant.old, mutant.new), mutant.module, "exec")
    killer = mutant.killer.partition("::")[0]
    assert killer.startswith("seed ") or (mutants.TESTS.parent / killer).is_file()


def test_there_are_enough_deliberate_faults_of_all_laws() -> None:
    assert len(MUTANTS) >= 40
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert {mutant.law for mutant in MUTANTS} >= {1, 2, 3, 4, 5, 6, 7, 9, 10}


@pytest.mark.parametrize("mutant", PLAYED, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_deliberate_fault_is_noticed(mutant: Mutant) -> None:
    assert mutants.main(["--only", mutant.name]) == 0


def test_a_name_that_no_deliberate_fault_has_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        mutants.main(["--only", "nonsense"])
    assert "--only: no mutant's name holds 'nonsense'" in capsys.readouterr().err
