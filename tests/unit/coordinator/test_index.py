from hypothesis import given
from hypothesis import strategies as st

from checkpoint_coordinator.backups import BackupRecord, LastBackup, Phase
from checkpoint_coordinator.commit import SaveState
from checkpoint_coordinator.index import SaveRecord, State, changes, hashes, merged, recall, score
from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Address, Epoch, Host, Rank, SessionId, Step, Worker
from checkpoint_replicator.records import (
    EpochRecord,
    EpochState,
    FetchPlan,
    KeepList,
    Member,
    Orders,
    Outcome,
    Rejected,
    RestoreRecord,
)
from checkpoint_replicator.save import Save, ShardKey
from checkpoint_replicator.shape import Shape
from checkpoint_replicator.store import Delete, SetHash, SetScores
from checkpoint_replicator.wishes import (
    BY_FILE,
    Branch,
    Forced,
    Forgetting,
    Forgotten,
    Hold,
    WishAnswer,
    WishState,
)

STAMP = Stamp(1, Epoch(2), 3)
SHAPE = Shape(2, 1, 1, "pytorch")
ONE, TWO = Save(Epoch(1), Step(1)), Save(Epoch(2), Step(0))


def state() -> State:
    return State(
        epoch=EpochRecord(
            number=Epoch(2),
            stamp=STAMP,
            state=EpochState.RUNNING,
            shape=SHAPE,
            members=(Member(rank=Rank(0), host=Host("a"), session=SessionId("s")),),
            refused={"x": "why"},
            released=True,
        ),
        restore=RestoreRecord(
            stamp=STAMP, outcome=Outcome.RESTORE, save=ONE, rejected=(Rejected(save=TWO, reason="missing n0/w0"),)
        ),
        plans={Rank(0): FetchPlan(stamp=STAMP)},
        keep=KeepList(stamp=STAMP, upto=ONE, keep=(ONE,), drop=(TWO,)),
        orders={Host("a"): Orders(stamp=STAMP)},
        saves={
            ONE: SaveRecord(
                save=ONE,
                shape=SHAPE,
                state=SaveState.COMMITTED,
                shards={ShardKey(Rank(0), Worker(0)): Address("a" * 64)},
                copies=1,
                unprotected=False,
                since=5.0,
                seen=4.0,
            )
        },
        backups={
            "2026-01-01_00-00": BackupRecord(
                name="2026-01-01_00-00", save=ONE, shape=SHAPE, state=Phase.SEALING, stamp=STAMP, reason="slow"
            )
        },
        last_backup=LastBackup(name="2025-01-01_00-00", save=ONE, verified_at=9.5),
    )


def test_what_was_written_comes_back() -> None:
    assert recall(hashes(state())) == state()


def test_an_empty_redis_is_an_empty_state() -> None:
    assert recall({}) == State()


def test_what_people_look_for_stands_as_plain_text() -> None:
    found = hashes(state())
    assert found["restore:2"]["save"] == "1.1"
    assert found["restore:2"]["rejected 2.0"] == "missing n0/w0"
    assert found["step:1.1"]["n0/w0"] == "a" * 64
    assert found["step:1.1"]["state"] == "committed"
    assert found["keep"]["upto"] == "1.1"


def test_saves_are_in_order_of_epoch_and_step() -> None:
    order = [ONE, Save(Epoch(1), Step(10**9)), TWO, Save(Epoch(2), Step(1))]
    assert sorted(order, key=score) == order


def test_the_seats_and_the_superseded_are_remembered() -> None:
    found = recall({"node:3": {"session": "now", "superseded": '["old","older"]'}})
    assert found.members == [(3, "now")]
    assert found.superseded == [(3, "old"), (3, "older")]


def test_what_people_ordered_is_written_and_read_back() -> None:
    state = State(
        forced=Forced(save=ONE),
        hold=Hold(reason="looking", since=5.0),
        branch=Branch(epoch=Epoch(3), save=ONE, by=BY_FILE),
        forgetting=Forgetting(wish="w"),
        forgotten=Forgotten(upto=ONE),
        wishes={"w": WishAnswer(kind="hold", state=WishState.DONE, at=5.0)},
    )
    found = recall(hashes(state))
    for name in ("forced", "hold", "branch", "forgetting", "forgotten", "wishes"):
        assert getattr(found, name) == getattr(state, name)
    assert hashes(State()) == hashes(recall({}))


def test_the_change_that_makes_others_valid_comes_last() -> None:
    keys = [getattr(change, "key", "") for change in changes(hashes(state()), {})]
    assert keys[-4:] == ["restore:2", "orders", "keep", "epoch"]


def test_a_hash_that_only_grows_is_not_replaced_and_one_that_loses_a_field_is() -> None:
    assert changes({"alive": {"0": "x", "1": "y"}}, {"alive": {"0": "x"}}) == [SetHash("alive", {"1": "y"})]
    assert changes({"alive": {"1": "y"}}, {"alive": {"0": "x"}}) == [SetHash("alive", {"1": "y"}, replace=True)]
    assert changes({}, {"alive": {"0": "x"}}) == [Delete("alive")]
    assert changes({"steps": {"1.1": "5.0"}}, {}) == [SetScores("steps", {"1.1": 5.0}, replace=True)]


texts = st.dictionaries(st.sampled_from("abc"), st.sampled_from("xyz"), max_size=3)
states = st.dictionaries(st.sampled_from(["alive", "node:0", "keep", "epoch"]), texts.filter(bool), max_size=4)


@given(states, states)
def test_after_the_changes_redis_holds_what_is_wanted(
    wanted: dict[str, dict[str, str]], known: dict[str, dict[str, str]]
) -> None:
    assert merged(known, changes(wanted, known)) == wanted


def test_a_change_too_big_for_one_call_leaves_its_valid_making_end_for_the_next() -> None:
    wanted = {
        "alive": {str(number): "x" for number in range(3999)},
        "node:0": {"a": "b", "c": "d"},
        "epoch": {"n": "1"},
    }
    first = changes(wanted, {})
    assert [getattr(change, "key", "") for change in first] == ["alive"]
    second = changes(wanted, merged({}, first))
    assert [getattr(change, "key", "") for change in second] == ["node:0", "epoch"]


@given(
    st.dictionaries(
        st.sampled_from(["epoch", "keep", "orders", "step:1.1", "step:x", "backup:b", "node:0", "node:x", "lastbackup"])
        | st.just("restore:2"),
        st.dictionaries(
            st.sampled_from(
                ["number", "stamp", "state", "decision", "n0", "n0/w0", "nx/w", "shape", "save", "superseded"]
            ),
            st.text(max_size=12) | st.sampled_from(["1", "1.1", "1.1.1", "running", "{}", "[]", "committed"]),
        ),
    )
)
def test_whatever_stands_in_redis_is_read_or_named(found: dict[str, dict[str, str]]) -> None:
    recall(found)


def test_what_does_not_parse_is_named() -> None:
    found = recall({"keep": {"stamp": "junk"}, "step:1.1": {"state": "odd"}, "orders": {"a": "{"}})
    assert len(found.unreadable) == 3
    assert found.keep is None
