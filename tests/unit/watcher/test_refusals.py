"""How long the ramdisk may refuse."""

import errno

import pytest

from checkpoint_watcher.effects import AppendErrors, CleanUp
from checkpoint_watcher.refusals import Refusals

BROKEN = OSError(errno.EIO, "Input/output error")


def test_what_is_refused_is_told_until_it_is_over() -> None:
    refusals = Refusals(10.0)
    first, second = CleanUp(), AppendErrors("x")
    assert refusals.reason == ""
    refusals.refused(first, BROKEN, 1.0)
    refusals.refused(second, BROKEN, 2.0)
    assert refusals.reason == "the ramdisk refuses CleanUp: [Errno 5] Input/output error"
    refusals.over(first)
    assert refusals.reason == "the ramdisk refuses AppendErrors: [Errno 5] Input/output error"
    refusals.over(second)
    assert refusals.reason == ""


def test_an_unbroken_row_of_refusals_ends_the_process_at_its_deadline() -> None:
    refusals, effect = Refusals(10.0), CleanUp()
    refusals.refused(effect, BROKEN, 0.0)
    refusals.refused(effect, BROKEN, 9.9)
    with pytest.raises(OSError, match="Input/output error"):
        refusals.refused(effect, BROKEN, 10.0)


def test_a_row_that_was_broken_begins_anew() -> None:
    refusals, effect = Refusals(10.0), CleanUp()
    refusals.refused(effect, BROKEN, 0.0)
    refusals.over(effect)
    refusals.refused(effect, BROKEN, 9.9)
    refusals.refused(effect, BROKEN, 19.8)
