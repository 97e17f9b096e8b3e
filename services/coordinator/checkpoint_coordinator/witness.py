"""Who must have answered before anyone may say that something does not exist; pure.

Redis is never a witness that something does not exist. The witnesses are the complete reports of the members, the hosts
without a rank that hold data of the job until they are lost, and one successful listing of the backup store where
anybody has one.
"""

from collections.abc import Iterator

from checkpoint_coordinator.commit import SaveState
from checkpoint_coordinator.desk import Desk
from checkpoint_replicator.ids import Host
from checkpoint_replicator.liveness import Life
from checkpoint_replicator.save import Save
from checkpoint_replicator.shape import Shape

__all__ = [
    "backup_silence",
    "committed_by",
    "given_up",
    "member_silence",
    "other_silence",
    "silent",
    "trace",
    "trace_shape",
]

NEVER = float("inf")


def silent(desk: Desk, since: float, now: float) -> tuple[str, ...]:
    """Name every witness that has not answered.

    Args:
        desk: the job.
        since: when the epoch opened: a listing counts that was ordered at this moment or later.
        now: monotonic seconds.
    """
    return (*member_silence(desk, now), *other_silence(desk, now), *backup_silence(desk, since))


def member_silence(desk: Desk, now: float) -> Iterator[str]:
    """Name members without a complete report."""
    for member in desk.members:
        name = f"rank {member.rank} on {member.host}"
        voice = desk.voice(member)
        if voice is None:
            yield f"{name} (no report)"
        elif desk.hearing.silence(member.host, now) >= desk.times.lost:
            yield f"{name} ({_since(desk, member.host, now)})"
        elif not voice.report.complete:
            yield f"{name} (still scanning and hashing)"


def other_silence(desk: Desk, now: float) -> Iterator[str]:
    """Name hosts without a rank that may hold data of the job and are not lost yet."""
    if desk.hosts_fault and now - desk.since < desk.times.lost:
        yield f"the hosts that are registered in Redis ({desk.hosts_fault})"
    for host in _others(desk):
        voice = desk.hearing.voices.get(host)
        name = f"host {host} without a rank"
        calls = desk.hearing.call(host, now)
        if voice is None or not voice.fresh:
            if calls or now - desk.appeared(host) < desk.times.lost:
                yield f"{name} ({calls or 'no report'})"
        elif desk.hearing.silence(host, now) >= desk.times.lost:
            if calls:
                yield f"{name} ({calls})"
        elif not voice.report.complete:
            yield f"{name} (still scanning and hashing)"


def given_up(desk: Desk, now: float) -> Iterator[str]:
    """Name hosts without a rank that may hold data of the job and are not waited for any more, since they are lost."""
    if desk.hosts_fault and now - desk.since >= desk.times.lost:
        yield f"the hosts that are registered in Redis ({desk.hosts_fault})"
    for host in _others(desk):
        voice = desk.hearing.voices.get(host)
        waits = now - desk.appeared(host) < desk.times.lost if voice is None or not voice.fresh else False
        if not waits and desk.hearing.life(host, now) is Life.LOST:
            yield f"host {host} without a rank (lost, {_since(desk, host, now)})"


def _others(desk: Desk) -> list[Host]:
    """Return the hosts without a rank of which anything says that they have data of the job."""
    ranked = {member.host for member in desk.members}
    known = desk.hearing.voices.keys() | desk.listed()  # Redis may have forgotten one that was heard before
    return sorted(known - ranked)


def _since(desk: Desk, host: Host, now: float) -> str:
    silence = desk.hearing.silence(host, now)
    return desk.hearing.call(host, now) or (f"no report for {silence:.0f} s" if silence < NEVER else "no report")


def backup_silence(desk: Desk, since: float) -> Iterator[str]:
    """Name the backup store where one is configured and no successful listing came."""
    roots = desk.roots()
    if not roots:
        return
    if len(roots) > 1:
        yield f"the backup store (configurations differ: {' and '.join(sorted(roots))})"
        return
    name = f"the backup store {next(iter(roots))}"
    listing = desk.archive.listed_since(since)
    if listing is None:
        yield f"{name} ({desk.archive.listing_fault or 'no listing yet'})"
        return
    last = desk.state.last_backup
    if last is not None and all(entry.name != last.name or not entry.whole for entry in listing.entries):
        yield f"{name} (its listing lacks {last.name}, which was verified)"


def committed_by(desk: Desk) -> set[Save]:
    """Return the saves of which a host says that they were committed: it marks them by a keep list alone."""
    found: set[Save] = set()
    for voice in desk.hearing.voices.values():
        if voice.report.newest_committed is not None:
            found.add(voice.report.newest_committed)
        found.update(held.tag.save for held in voice.report.held if held.committed)
    return found


def trace(desk: Desk) -> Save | None:
    """Return the newest save of which anything says that it was committed."""
    found = committed_by(desk)
    if desk.archive.listing is not None:
        found.update(tag.save for entry in desk.archive.listing.entries if entry.whole for tag in entry.tags[:1])
    found.update(save for save, record in desk.state.saves.items() if record.state is SaveState.COMMITTED)
    if desk.state.keep is not None and desk.state.keep.upto is not None:
        found.add(desk.state.keep.upto)
    if desk.state.last_backup is not None:
        found.add(desk.state.last_backup.save)
    forgotten = desk.state.forgotten
    return max((save for save in found if forgotten is None or save > forgotten.upto), default=None)


def trace_shape(desk: Desk, save: Save | None) -> Shape | None:
    """Return the shape of a save, where anything tells it."""
    if save is None:
        return None
    shapes = {found.line.shape for found in desk.stock.of(save)}
    if len(shapes) == 1:
        return shapes.pop()
    record = desk.state.saves.get(save)
    return record.shape if record is not None and not shapes else None
