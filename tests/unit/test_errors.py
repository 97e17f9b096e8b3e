from checkpoint_replicator import errors


def test_every_error_is_permanent_or_transient_so_that_a_caller_knows_what_to_do() -> None:
    for name in set(errors.__all__) - {"ReplicatorError"}:
        kind = getattr(errors, name)
        assert issubclass(kind, errors.PermanentError) != issubclass(kind, errors.TransientError)


def test_every_error_stands_in_the_list_at_the_top_with_its_exit_code() -> None:
    assert errors.__doc__ is not None
    for name in errors.__all__:
        assert f"`{name}` {getattr(errors, name).exit_code}" in errors.__doc__


def test_transient_errors_end_a_process_with_tempfail() -> None:
    assert {getattr(errors, name).exit_code for name in ("NoRoomError", "UnreachableError", "BusyError")} == {75}
