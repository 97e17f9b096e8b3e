from checkpoint_transfer.budget import Budget


def test_what_is_taken_is_missing_until_it_is_given_back() -> None:
    budget = Budget(10)
    assert budget.take(7)
    assert not budget.take(4)
    assert budget.free == 3
    budget.give(7)
    assert budget.take(10)
