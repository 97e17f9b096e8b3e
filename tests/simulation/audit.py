"""What must be true of a job that was left in quiet for a while; read from disks, Redis and the bucket alone."""

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from checkpoint_coordinator.commit import SaveState
from checkpoint_replicator.ids import Address, Host
from checkpoint_replicator.records import EpochState, KeepList, NodeView
from checkpoint_replicator.save import Save, ShardKey

if TYPE_CHECKING:
    from simulation.training import Training

__all__ = ["faults_of", "protected"]


def faults_of(training: "Training") -> Iterator[str]:
    """Say what is not as it must be, the first things that are waited for first."""
    laws, world = training.laws, training.world
    newest = max(laws.committed, default=None)
    if newest is None:
        yield "nothing is committed"
        return
    view = world.redis.model.view(training.job, Host(""), None)
    yield from _told(training, view)
    yield from protected(training, newest)
    keep = view.keep
    if keep is None or keep.upto != newest:
        yield f"the keep list goes up to {keep.upto if keep else None}, committed is {newest}"
        return
    yield from _stands(training, keep)
    yield from _backups(training)


def protected(training: "Training", save: Save) -> Iterator[str]:
    """Say which shards of a save do not have the copies that were asked for."""
    laws, world = training.laws, training.world
    on: dict[tuple[ShardKey, Address], int] = defaultdict(int)
    for node in world.hosts.values():
        disk = node.disk
        for tag in disk.sidecars:
            if tag.job == training.job and tag.save == save and tag.address in disk.shards:
                on[tag.key, tag.address] += 1  # what a fault spoilt counts until somebody reads it
    wanted = 1 + min(training.peers, laws.shapes[save].nodes - 1) if save in laws.shapes else 1
    for key, address in laws.committed[save].items():
        if on[key, address] < wanted:
            yield f"{key} of {save} stands on {on[key, address]} hosts, expected {wanted}"


def _told(training: "Training", view: NodeView) -> Iterator[str]:
    """What Redis tells of the epoch and of its ranks."""
    epoch = view.epoch
    if epoch is None or not epoch.released or epoch.state is not EpochState.RUNNING:
        yield f"the epoch is {epoch.state if epoch else 'not there'}"
        return
    homes = {rank: node.host for rank, node in training.homes.items()}
    if {member.rank: member.host for member in epoch.members} != homes:
        yield f"the members are {epoch.members}, the trainers run on {homes}"
    for rank, trainer in training.trainers.items():
        if "replicator.failed" in trainer.node.disk.files:
            yield f"rank {rank} trains, and replicator.failed stands"


def _stands(training: "Training", keep: KeepList) -> Iterator[str]:
    """What stands on disks, and what nodes know."""
    most = 3  # the newest, one under backup, one that was restored
    if len(keep.keep) > most:
        yield f"{len(keep.keep)} saves are kept: {keep.keep}"
    again = _may_come_again(training, keep)
    for host, node in training.world.hosts.items():
        disk = node.disk
        if disk.claims or disk.public:
            yield f"{host} has saves that were not named: {[*disk.claims, *disk.public]}"
        mine = {tag.save for tag in disk.sidecars if tag.job == training.job}
        left = sorted(save for save in mine if save not in keep.keep and save != again)
        if left:
            yield f"{host} still holds {', '.join(map(str, left))}, the keep list names {keep.keep}"
        fence = disk.fences.get(training.job)
        if mine and (fence is None or fence.committed != keep.upto):
            yield f"fence.json of {host} names {fence.committed if fence else None}, committed is {keep.upto}"


def _may_come_again(training: "Training", keep: KeepList) -> Save | None:
    """Return the newest save, where a shard of it was skipped or changed: it stays until a newer one comes."""
    newest = max((save for save, _ in training.laws.truth), default=None)
    if newest is None or (keep.upto is not None and newest <= keep.upto):
        return None
    fields = training.world.redis.model._hashes.get(f"ckpt:{{{training.job}}}:step:{newest}", {})
    return newest if fields.get("state") in {SaveState.SKIPPED, SaveState.MUTATED} else None


def _backups(training: "Training") -> Iterator[str]:
    """A backup that is due is made, and one that was given up is closed."""
    world, laws = training.world, training.laws
    if world.root is None or training.backup_steps is None:
        return
    objects = world.bucket.store.objects
    for name in objects:
        folder, _, leaf = name.rpartition("/")
        if leaf == "ORDER.json" and name.startswith(f"{training.job}/") and f"{folder}/MANIFEST.json" not in objects:
            yield f"{folder} is neither complete nor given up"
    newest, last = max(laws.committed), max(laws.backed_up, default=None)
    if last is None or (last.epoch == newest.epoch and newest.step - last.step >= training.backup_steps):
        yield f"the last backup is of {last}, committed is {newest}, and one is due each {training.backup_steps} steps"
