"""Why a job is where it is, out of Redis, in sentences for people; pure.

Each line says a fact and where it comes from in the words of the decisions themselves, so that what is read here can
be looked up with `redis-cli`.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from checkpoint_replicator.quote import quote
from checkpoint_replicator.records import EpochRecord, EpochState, NodeView, Outcome, RestoreRecord
from checkpoint_replicator.save import Save
from checkpoint_replicator.store.fields import from_fields
from checkpoint_replicator.wishes import BY_FILE, Branch, Forced, Forgetting, Forgotten, Hold

__all__ = ["explain_job", "explain_save"]

Hashes = Mapping[str, Mapping[str, str]]

STATES: Final = {
    EpochState.GATHERING: "waits for the trainers",
    EpochState.DECIDING: "looks for the newest whole save",
    EpochState.RESTORING: "restores",
    EpochState.RUNNING: "trains",
    EpochState.IDLE: "is at rest",
}
MOST_EVENTS: Final = 5


def explain_job(view: NodeView, hashes: Hashes) -> list[str]:
    """Say where the job stands and why, what was restored and why, and what stands in its way.

    Raises:
        ProtocolError: a value does not parse; names the key.
    """
    return [*_epoch(view), *_decision(view.restore), *_people(hashes), *_saves(view, hashes), *_backups(hashes)]


def explain_save(save: Save, view: NodeView, hashes: Hashes) -> list[str]:
    """Say all that is known of one save: its state and why, where its shards lie, and whether it may go."""
    fields = hashes.get(f"step:{save}", {})
    lines: list[str] = []
    if fields:
        reason = f": {fields['reason']}" if fields.get("reason") else ""
        lines.append(f"save {save} is {fields.get('state', 'unknown')}{reason}")
        copies = "no copy on another host" if fields.get("unprotected", "yes") == "yes" else "copies on other hosts"
        lines.append(f"lowest number of copies beside the own one: {fields.get('copies', '0')}; {copies}")
    else:
        lines.append(f"save {save} is not in the index (older ones that nobody holds leave it)")
    lines += list(_shards(save, fields, hashes))
    names = sorted(key.partition(":")[2] for key, one in hashes.items() if key.startswith("backup:") and _of(one, save))
    lines += [f"backup {name} is {hashes[f'backup:{name}'].get('state', 'unknown')}" for name in names]
    restore = view.restore
    if restore is not None:
        lines += [f"not restored last time: {one.reason}" for one in restore.rejected if one.save == save]
        if restore.save == save:
            lines.append(f"it was restored last time: {restore.reason}")
    if len(lines) > 1 or not _beyond(save, view):
        lines.append(_fate(save, view))
    return lines


def _beyond(save: Save, view: NodeView) -> bool:
    """Whether the save is newer than all that is committed: nothing is told of one that nobody knows."""
    return view.keep is not None and view.keep.upto is not None and save > view.keep.upto and save not in view.keep.drop


def _of(fields: Mapping[str, str], save: Save) -> bool:
    return fields.get("save") == str(save)


def _epoch(view: NodeView) -> Iterator[str]:
    epoch = view.epoch
    if view.lease is None:
        yield "no coordinator holds the lease: nothing is decided until one takes it"
    else:
        yield f"{view.lease.host} decides, under token {view.lease.token}"
    if epoch is None:
        yield "no epoch was ever opened: no trainer came"
        return
    yield f"epoch {epoch.number} {STATES[epoch.state]}{_because(epoch)}"
    if epoch.failure:
        yield f"the last start failed: {epoch.failure}"
    if epoch.members:
        members = ", ".join(f"{member.rank} on {member.host}" for member in epoch.members)
        yield f"its ranks: {members}"
    for session, reason in epoch.refused.items():
        yield f"session {session} was refused: {reason}"


def _because(epoch: EpochRecord) -> str:
    return f": {epoch.reason}" if epoch.reason else ""


def _decision(restore: RestoreRecord | None) -> Iterator[str]:
    if restore is None:
        yield "nothing is decided for this epoch"
        return
    match restore.outcome:
        case Outcome.RESTORE:
            yield f"save {restore.save} was chosen: {restore.reason}"
        case Outcome.NONE:
            yield f"a fresh start was chosen: {restore.reason}"
        case Outcome.UNKNOWN:
            yield f"it is not known what there is: {restore.reason}"
        case _:
            yield f"all is lost, and no trainer may begin anew by itself: {restore.reason}"
    if restore.forced:
        who = "restore.version in the backup store" if restore.forced == BY_FILE else "people, by command"
        yield f"that was ordered by {who}"
    for one in restore.rejected:
        yield f"save {one.save} was not chosen: {one.reason}"
    if restore.warning and restore.warning != restore.reason:
        yield f"warning: {restore.warning}"


def _people(hashes: Hashes) -> Iterator[str]:
    if hashes.get("forced"):
        yield f"{from_fields(Forced, hashes['forced'], 'forced')} is ordered for the next release"
    if hashes.get("hold"):
        reason = from_fields(Hold, hashes["hold"], "hold").reason
        yield "people hold all deleting, pruning and backups" + (f": {quote(reason)}" if reason else "")
    if hashes.get("branch"):
        branch = from_fields(Branch, hashes["branch"], "branch")
        yield f"people ordered {branch}: a new line of saves, of which no backup is verified yet"
    if hashes.get("forgotten"):
        yield f"commits up to save {from_fields(Forgotten, hashes['forgotten'], 'forgotten').upto} count as forgotten"
    if hashes.get("forgetting"):
        wish = from_fields(Forgetting, hashes["forgetting"], "forgetting").wish
        yield f"the hosts are removing all that they have of it (order {wish})"


def _saves(view: NodeView, hashes: Hashes) -> Iterator[str]:
    keep = view.keep
    if keep is None or keep.upto is None:
        yield "nothing is committed under a keep list"
    else:
        yield f"save {keep.upto} is the newest committed one; kept: {', '.join(map(str, keep.keep)) or 'none'}"
    for name, fields in hashes.items():
        if name.startswith("step:") and fields.get("state") not in {"committed", "abandoned"}:
            reason = fields.get("reason") or "no reason is told"
            yield f"save {name.removeprefix('step:')} is {fields.get('state', 'unknown')}: {reason}"


def _backups(hashes: Hashes) -> Iterator[str]:
    last = hashes.get("lastbackup", {})
    yield f"the last verified backup is {last['name']}, save {last['save']}" if last else "no backup is verified"
    for name, fields in hashes.items():
        if name.startswith("backup:") and fields.get("state") not in {"complete", "abandoned"}:
            reason = f": {fields['reason']}" if fields.get("reason") else ""
            yield f"backup {name.removeprefix('backup:')} is {fields.get('state', 'unknown')}{reason}"


def _shards(save: Save, fields: Mapping[str, str], hashes: Hashes) -> Iterator[str]:
    """Say for each shard which hosts report it."""
    holders: dict[str, list[str]] = {}
    for name, inventory in hashes.items():
        if name.startswith("inventory:"):
            for address, text in inventory.items():
                if f'"{save} ' in text:
                    holders.setdefault(address, []).append(inventory.get("host", name))
    for key in sorted(field for field in fields if "/w" in field):
        address = fields[key]
        hosts = ", ".join(sorted(holders.get(address, []))) or "no host with a rank"
        yield f"{key} {address:.13} on {hosts}"


def _fate(save: Save, view: NodeView) -> str:
    keep = view.keep
    if keep is None:
        return "no keep list stands: nothing may be deleted"
    if keep.hold:
        return "people hold all deleting: it stays"
    if save in keep.keep or save == keep.upto:
        return "the keep list keeps it"
    if save in keep.drop:
        return "it was given up: hosts delete it"
    if keep.upto is not None and save <= keep.upto:
        return f"save {keep.upto} is committed: hosts delete what is older"
    return "it is newer than the committed one: it stays until one of them commits or it is given up"
