from checkpoint_replicator.explain import explain_job, explain_save
from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Epoch, Host, Incarnation, Rank, SessionId, Step
from checkpoint_replicator.records import (
    EpochRecord,
    EpochState,
    KeepList,
    Lease,
    Member,
    NodeView,
    Outcome,
    Rejected,
    RestoreRecord,
)
from checkpoint_replicator.save import Save
from checkpoint_replicator.store.fields import to_fields, to_json
from checkpoint_replicator.wishes import BY_FILE, Branch, Forced, Forgetting, Forgotten, Hold

STAMP = Stamp(1, Epoch(2), 3)
ADDRESS = "ab" * 32


def save(epoch: int, step: int) -> Save:
    return Save(Epoch(epoch), Step(step))


VIEW = NodeView(
    lease=Lease(incarnation=Incarnation("c"), token=4, host=Host("head"), reports="", beacons=""),
    epoch=EpochRecord(
        number=Epoch(2),
        stamp=STAMP,
        state=EpochState.RESTORING,
        reason="restoring 1.5: waiting for rank 1 on b (stuck)",
        members=(
            Member(rank=Rank(0), host=Host("a"), session=SessionId("s0")),
            Member(rank=Rank(1), host=Host("b"), session=SessionId("s1")),
        ),
        refused={"s9": "rank 9 is out of range"},
        failure="save 1.9 was lost",
    ),
    restore=RestoreRecord(
        stamp=STAMP,
        outcome=Outcome.RESTORE,
        save=save(1, 5),
        reason="backup 2026-01-01_00-00 was ordered",
        rejected=(Rejected(save=save(1, 6), reason="missing n1/w0"),),
        forced=BY_FILE,
        warning="look here",
    ),
    keep=KeepList(stamp=STAMP, upto=save(1, 5), keep=(save(1, 5),), drop=(save(1, 6),)),
)
HASHES = {
    "step:1.5": {
        "state": "committed",
        "copies": "1",
        "unprotected": "no",
        "reason": "restored",
        "n0/w0": ADDRESS,
        "n1/w0": "cd" * 32,
    },
    "step:1.6": {"state": "incomplete", "reason": "rank 1 on b did not save it yet"},
    "inventory:0": {"host": "a", ADDRESS: to_json({"holds": ["1.5 n0/w0 committed"], "size": 3})},
    "inventory:1": {"host": "b", ADDRESS: to_json({"holds": ["1.5 n0/w0 copy committed"], "size": 3})},
    "lastbackup": {"name": "2026-01-01_00-00", "save": "1.5"},
    "backup:2026-01-01_00-00": {"state": "complete", "save": "1.5"},
    "backup:2026-01-01_00-30": {"state": "superseded", "save": "1.6", "reason": "people went back"},
    "forced": to_fields(Forced(save=save(1, 4))),
    "hold": to_fields(Hold(reason="we look")),
    "branch": to_fields(Branch(epoch=Epoch(2), save=save(1, 5))),
    "forgotten": to_fields(Forgotten(upto=save(1, 1))),
    "forgetting": to_fields(Forgetting(wish="w1")),
}


def test_a_job_is_explained_from_its_lease_to_its_backups() -> None:
    assert explain_job(VIEW, HASHES) == [
        "head decides, under token 4",
        "epoch 2 restores: restoring 1.5: waiting for rank 1 on b (stuck)",
        "the last start failed: save 1.9 was lost",
        "its ranks: 0 on a, 1 on b",
        "session s9 was refused: rank 9 is out of range",
        "save 1.5 was chosen: backup 2026-01-01_00-00 was ordered",
        "that was ordered by restore.version in the backup store",
        "save 1.6 was not chosen: missing n1/w0",
        "warning: look here",
        "save 1.4 is ordered for the next release",
        "people hold all deleting, pruning and backups: we look",
        "people ordered save 1.5 in epoch 2: a new line of saves, of which no backup is verified yet",
        "commits up to save 1.1 count as forgotten",
        "the hosts are removing all that they have of it (order w1)",
        "save 1.5 is the newest committed one; kept: 1.5",
        "save 1.6 is incomplete: rank 1 on b did not save it yet",
        "the last verified backup is 2026-01-01_00-00, save 1.5",
        "backup 2026-01-01_00-30 is superseded: people went back",
    ]


def test_a_job_of_which_nothing_is_known_is_explained_too() -> None:
    assert explain_job(NodeView(), {}) == [
        "no coordinator holds the lease: nothing is decided until one takes it",
        "no epoch was ever opened: no trainer came",
        "nothing is decided for this epoch",
        "nothing is committed under a keep list",
        "no backup is verified",
    ]


def test_every_outcome_is_told_in_its_own_words() -> None:
    told = {
        outcome: explain_job(NodeView(restore=RestoreRecord(stamp=STAMP, outcome=outcome, reason="x")), {})[2]
        for outcome in (Outcome.NONE, Outcome.UNKNOWN, Outcome.LOST)
    }
    assert told == {
        Outcome.NONE: "a fresh start was chosen: x",
        Outcome.UNKNOWN: "it is not known what there is: x",
        Outcome.LOST: "all is lost, and no trainer may begin anew by itself: x",
    }


def test_a_save_is_explained_with_where_its_shards_lie_and_whether_it_may_go() -> None:
    assert explain_save(save(1, 5), VIEW, HASHES) == [
        "save 1.5 is committed: restored",
        "lowest number of copies beside the own one: 1; copies on other hosts",
        "n0/w0 ababababababa on a, b",
        "n1/w0 cdcdcdcdcdcdc on no host with a rank",
        "backup 2026-01-01_00-00 is complete",
        "it was restored last time: backup 2026-01-01_00-00 was ordered",
        "the keep list keeps it",
    ]
    assert explain_save(save(1, 6), VIEW, HASHES)[-2:] == [
        "not restored last time: missing n1/w0",
        "it was given up: hosts delete it",
    ]


def test_the_fate_of_a_save_is_told() -> None:
    def fate(one: Save, keep: KeepList | None) -> str:
        return explain_save(one, NodeView(keep=keep), {})[-1]

    listed = KeepList(stamp=STAMP, upto=save(1, 5), keep=(save(1, 5),))
    assert fate(save(1, 4), None) == "no keep list stands: nothing may be deleted"
    assert fate(save(1, 4), listed) == "save 1.5 is committed: hosts delete what is older"
    settling = {"step:1.7": {"state": "saving"}}
    assert explain_save(save(1, 7), NodeView(keep=listed), settling)[-1].startswith(
        "it is newer than the committed one"
    )
    held = KeepList(stamp=STAMP, upto=save(1, 5), hold=True)
    assert fate(save(1, 4), held) == "people hold all deleting: it stays"
    assert explain_save(save(1, 4), NodeView(), {})[0].startswith("save 1.4 is not in the index")


def test_no_fate_is_told_of_a_newer_save_that_nobody_knows() -> None:
    listed = KeepList(stamp=STAMP, upto=save(1, 5), keep=(save(1, 5),))
    assert explain_save(save(9, 1), NodeView(keep=listed), {}) == [
        "save 9.1 is not in the index (older ones that nobody holds leave it)"
    ]
