from checkpoint_replicator.ids import Job
from checkpoint_replicator.messages import BackupResult
from checkpoint_replicator.records import BackupOrder
from checkpoint_uploader.assignment import Assignment, Stage


def test_two_orders_for_one_backup_have_one_place_and_listings_each_their_own() -> None:
    def place(ident: str, kind: str, name: str) -> tuple[str, str]:
        return Assignment(Job("j"), BackupOrder(id=ident, kind=kind, name=name), due=0.0).place

    assert place("a", "seal", "2026-01-02_03-04") == place("b", "upload", "2026-01-02_03-04")
    assert place("a", "list", "") != place("b", "list", "")


def test_a_failure_names_the_order_and_says_no() -> None:
    one = Assignment(Job("j"), BackupOrder(id="a", kind="seal", name="2026-01-02_03-04"), due=0.0, stage=Stage.RUNNING)
    assert one.active
    one.answer(one.failure("why"))
    assert not one.active
    assert one.result == BackupResult(id="a", kind="seal", name="2026-01-02_03-04", done=False, reason="why")
