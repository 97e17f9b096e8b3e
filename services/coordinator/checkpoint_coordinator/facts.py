"""What people read in Redis beside the decisions: nodes, liveness, inventories; pure."""

from collections.abc import Mapping
from typing import Final

from checkpoint_coordinator.desk import Desk
from checkpoint_coordinator.hearing import Voice
from checkpoint_coordinator.index import Hashes
from checkpoint_replicator.ids import Host, Rank
from checkpoint_replicator.liveness import Life, pace
from checkpoint_replicator.messages import NodeReport
from checkpoint_replicator.records import EpochState, Member
from checkpoint_replicator.store.fields import to_json

__all__ = ["facts", "inherited"]

MOST_SUPERSEDED: Final = 16
ABSENT: Final = "absent"
"""Of a rank whose host lives and has no session of it: its trainer is another job's now, or its session was lost."""


def facts(desk: Desk, now: float) -> Hashes:
    """Return `node:<rank>`, `inventory:<rank>` and `alive` as they are now."""
    found: Hashes = {"alive": _alive(desk, now)}
    old: dict[Rank, list[str]] = {}
    for session, rank in desk.membership.superseded.items():
        old.setdefault(rank, []).append(session)
    lives = desk.hearing.superseded()
    for rank, seat in sorted(desk.membership.seats.items()):
        voice = desk.hearing.voices.get(seat.host)
        fields = {
            "host": str(seat.host),
            "session": str(seat.session.id),
            "state": str(seat.session.state),
            "epoch": str(seat.session.epoch),
            "superseded": to_json(old.get(rank, [])[-MOST_SUPERSEDED:]),
            "superseded-incarnations": to_json(lives.get(seat.host, [])[-MOST_SUPERSEDED:]),
        }
        if voice is not None:
            fields.update(_node(voice))
            found[f"inventory:{rank}"] = _inventory(seat.host, seat.session.epoch, voice.report)
        found[f"node:{rank}"] = fields
    return found


def inherited(found: Mapping[str, Mapping[str, str]]) -> Hashes:
    """Return what an earlier coordinator wrote of nodes: who was superseded there must not be forgotten meanwhile."""
    return {key: dict(fields) for key, fields in found.items() if key.startswith(("node:", "inventory:"))}


def _node(voice: Voice) -> dict[str, str]:
    report = voice.report
    fields = {
        "incarnation": str(voice.incarnation),
        "version": str(report.version),
        "complete": "yes" if report.complete else "no",
        "services": to_json(
            {str(one.service): one.reason or ("up" if one.alive else "down") for one in report.services}
        ),
        "obeyed": str(report.obeyed),
        "faults": to_json([f"{fault.kind}: {fault.reason}" for fault in report.faults[:16]]),
    }
    if report.room is not None:
        fields["room"] = to_json(report.room)
    if report.backup_root is not None:
        fields["backup-root"] = report.backup_root
    return fields


def _inventory(host: Host, epoch: int, report: NodeReport) -> dict[str, str]:
    by_address: dict[str, list[str]] = {}
    sizes: dict[str, int] = {}
    for held in report.held:
        tag = held.tag
        mark = f"{tag.save} {tag.key}{'' if held.own else ' copy'}{' committed' if held.committed else ''}"
        by_address.setdefault(tag.address, []).append(mark)
        sizes[tag.address] = tag.size
    fields = {"host": str(host), "epoch": str(epoch)}
    for address, marks in by_address.items():
        fields[address] = to_json({"holds": marks, "size": sizes[address]})
    return fields


def _alive(desk: Desk, now: float) -> dict[str, str]:
    """Judge every host by our own clock; hosts without a rank stand there by their name."""
    epoch = desk.state.epoch
    restoring = epoch is not None and epoch.state is EpochState.RESTORING
    ranks = {seat.host: rank for rank, seat in desk.membership.seats.items()}
    fields: dict[str, str] = {}
    for host, voice in sorted(desk.hearing.voices.items()):
        silence = desk.hearing.silence(host, now)
        state, reason = str(desk.hearing.life(host, now)), ""
        if restoring and voice.progress is not None and voice.progress.have < voice.progress.size:
            verdict = pace(silence, voice.progress, now, desk.times)
            state, reason = str(verdict.pace), verdict.reason
        calls = desk.hearing.call(host, now)
        if calls:
            reason = f"cut off: {calls}"
        name = str(ranks[host]) if host in ranks else f"host {host}"
        since = round(desk.wall(voice.at), 1)
        fields[name] = to_json({"state": state, "age": round(silence, 1), "heard": since, "reason": reason})
    for member in desk.members:
        if str(member.rank) not in fields and not desk.patient:
            fields[str(member.rank)] = to_json(_missing(desk, member, now))
    return fields


def _missing(desk: Desk, member: Member, now: float) -> dict[str, str | float]:
    """Tell of a rank without a session that was heard: its host may live all the same, and serve another job."""
    voice = desk.hearing.voices.get(member.host)
    life = desk.hearing.life(member.host, now) if voice is not None else Life.LOST
    since = voice.at if voice is not None else desk.since
    state, reason = str(life), f"{member.host} did not report to this coordinator"
    if voice is not None:
        told = "; ".join(fault.reason for fault in voice.report.faults if fault.kind == "session")
        reason = f"{member.host} has no session of rank {member.rank} any more{told and f': {told}'}"
        state = ABSENT if life is Life.OK else state
    return {"state": state, "age": round(now - since, 1), "heard": round(desk.wall(since), 1), "reason": reason}
