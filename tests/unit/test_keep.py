from hypothesis import given
from hypothesis import strategies as st

from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Epoch, Step
from checkpoint_replicator.keep import View, given_up, keep_list, says_the_same
from checkpoint_replicator.records import KeepList
from checkpoint_replicator.save import Save

STAMP = Stamp(1, Epoch(2), 3)


def save(step: int, epoch: int = 2) -> Save:
    return Save(Epoch(epoch), Step(step))


saves = st.builds(lambda epoch, step: save(step, epoch), st.integers(1, 3), st.integers(0, 9))
views = st.builds(
    View,
    gaps=st.lists(st.just("rank 1 has not reported"), max_size=1),
    committed=st.none() | saves,
    in_flight=st.lists(saves, max_size=6),
    failed=st.lists(saves, max_size=3),
    held=st.lists(saves, max_size=10),
    needed=st.lists(saves, max_size=3),
    abandoned=st.lists(saves, max_size=3),
    hold=st.booleans(),
)


def test_the_newest_committed_stays_and_all_older_go() -> None:
    keep = keep_list(View(committed=save(3), held=[save(1), save(2), save(3)]), STAMP)
    assert keep == KeepList(stamp=STAMP, upto=save(3), keep=(save(3),))


def test_saves_under_backup_and_pinned_ones_stay() -> None:
    keep = keep_list(View(committed=save(3), needed=[save(1)], held=[save(1), save(2), save(3)]), STAMP)
    assert keep is not None
    assert keep.keep == (save(1), save(3))


def test_of_those_in_flight_the_oldest_and_the_newest_stay() -> None:
    flying = [save(4), save(5), save(6)]
    keep = keep_list(View(committed=save(3), in_flight=flying, held=[save(3), *flying]), STAMP)
    assert keep is not None
    assert keep.drop == (save(5),)
    assert given_up([save(4), save(5), save(6), save(7)], [save(5)], []) == {save(5), save(6)}


def test_s12_without_a_complete_view_there_is_no_list() -> None:
    assert keep_list(View(gaps=["rank 1 has not reported"], committed=save(3)), STAMP) is None


def test_hold_stops_all_deleting() -> None:
    view = View(
        committed=save(3), held=[save(1), save(5)], in_flight=[save(4), save(5), save(6)], needed=[save(2)], hold=True
    )
    assert keep_list(view, STAMP) == KeepList(stamp=STAMP, upto=save(3), keep=(save(2), save(3)), hold=True)
    assert keep_list(View(hold=True), STAMP) == KeepList(stamp=STAMP, hold=True)


def test_without_a_committed_save_nothing_at_or_below_any_save_goes() -> None:
    keep = keep_list(View(in_flight=[save(1)], held=[save(1), save(7, 1)]), STAMP)
    assert keep == KeepList(stamp=STAMP)


def test_two_lists_that_permit_the_same_are_not_written_twice() -> None:
    one = KeepList(stamp=STAMP, upto=save(1), keep=(save(1),))
    assert says_the_same(one, KeepList(stamp=Stamp(9, Epoch(9), 9), upto=save(1), keep=(save(1),)))
    assert not says_the_same(one, None)


@given(views)
def test_s02_the_newest_committed_is_never_dropped(view: View) -> None:
    keep = keep_list(view, STAMP)
    if keep is None or view.committed is None:
        return
    assert view.committed in keep.keep
    assert view.committed not in keep.drop
    assert keep.upto == view.committed


@given(views)
def test_a_list_never_comes_from_an_incomplete_view(view: View) -> None:
    assert (keep_list(view, STAMP) is None) == bool(view.gaps)


@given(views)
def test_a_list_under_hold_drops_nothing_and_says_so(view: View) -> None:
    keep = keep_list(view, STAMP)
    assert keep is None or keep.hold is view.hold
    assert keep is None or not (view.hold and keep.drop)


@given(views)
def test_what_is_needed_is_never_dropped(view: View) -> None:
    keep = keep_list(view, STAMP)
    if keep is None:
        return
    for needed in view.needed:
        assert needed not in keep.drop
        assert keep.upto is None or needed > keep.upto or needed in keep.keep


@given(views)
def test_the_oldest_and_the_newest_in_flight_are_not_given_up(view: View) -> None:
    keep = keep_list(view, STAMP)
    flying = sorted(set(view.in_flight) - set(view.abandoned))
    if keep is None or not flying:
        return
    able = [save for save in flying if save not in view.failed]
    assert not {*able[:1], flying[-1]} & set(keep.drop)


def test_a_save_under_backup_is_not_given_up_between_others_in_flight() -> None:
    assert given_up([save(1), save(2), save(3), save(4)], (), [save(2)]) == {save(3)}


def test_a_save_that_failed_does_not_take_the_place_of_the_oldest_that_can_commit() -> None:
    flying = [save(4), save(5), save(6), save(7)]
    assert given_up(flying, (), (), [save(4)]) == {save(4), save(6)}
    assert given_up(flying, (), [save(4)], [save(4)]) == {save(6)}
    keep = keep_list(View(committed=save(3), in_flight=flying, failed=flying, held=flying), STAMP)
    assert keep is not None
    assert keep.drop == (save(4), save(5), save(6))


def test_the_newest_save_stays_although_it_failed_for_its_step_may_be_saved_again() -> None:
    assert given_up([save(4), save(5)], (), (), [save(5)]) == set()
    assert given_up([save(5)], (), (), [save(5)]) == set()
