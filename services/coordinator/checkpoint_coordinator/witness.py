"""Who must have answered before anyone may say that something does not exist; pure.

Redis is never a witness that something does not exist. The witnesses are the complete reports of the members, the hosts
without a rank that hold data of the job until they are lost, and one successful listing of the backup store where
anybody has one.
"""

from collections.abc import Iterator

from checkpoint_coordinator.commit import SaveState
from checkpoint_coordinator.desk import Desk
from checkpoint_replicator.liveness import Life
from checkpoint_replicator.save import Save
from checkpoint_replicator.shape import Shape

__all__ = ["backup_silence", "member_silence", "other_silence", "silent", "trace", "trace_shape"]


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
        elif desk.hearing.life(member.host, now) is Life.LOST:
            yield f"{name} (no report for {desk.hearing.silence(member.host, now):.0f} s)"
        elif not voice.report.complete:
            yield f"{name} (still scanning and hashing)"


def other_silence(desk: Desk, now: float) -> Iterator[str]:
    """Name hosts without a rank that may hold data of the job and are not lost yet."""
    ranked = {member.host for member in desk.members}
    patience = now - desk.since < desk.times.lost
    heard = {host for host, voice in desk.hearing.voices.items() if not voice.fresh}
    listed = {host for host, record in desk.registered.items() if desk.job in record.jobs}
    for host in sorted((heard | listed) - ranked):  # Redis may have forgotten a host that was heard before
        voice = desk.hearing.voices.get(host)
        if (voice is None or not voice.fresh) and patience:
            yield f"host {host} without a rank (no report)"
    for host, voice in sorted(desk.hearing.voices.items()):
        if host in ranked or not voice.fresh or desk.hearing.life(host, now) is Life.LOST:
            continue
        if not voice.report.complete:
            yield f"host {host} without a rank (still scanning and hashing)"


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


def trace(desk: Desk) -> Save | None:
    """Return the newest save of which anything says that it was committed."""
    found: set[Save] = set()
    for voice in desk.hearing.voices.values():
        if voice.report.newest_committed is not None:
            found.add(voice.report.newest_committed)
        found.update(held.tag.save for held in voice.report.held if held.committed)
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
