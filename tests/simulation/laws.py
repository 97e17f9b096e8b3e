"""The laws of one job, judged from outside: what the machines did against what really was."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from checkpoint_coordinator.commit import SaveState
from checkpoint_replicator.backup import parse_order
from checkpoint_replicator.fence import ZERO, Stamp
from checkpoint_replicator.ids import Address, Epoch, Host, Rank, Worker
from checkpoint_replicator.records import EpochRecord, KeepList, Outcome, RestoreRecord
from checkpoint_replicator.save import Save, ShardKey, Tag, parse_save, shards_of
from checkpoint_replicator.session import SessionState
from checkpoint_replicator.shape import Shape
from checkpoint_replicator.store import Change, SetHash
from checkpoint_replicator.store.fields import from_json
from checkpoint_watcher.record import SessionRecord
from simulation.content import Content
from simulation.ordered import Ordered
from simulation.watching import Watching

if TYPE_CHECKING:
    from simulation.coordinating import Coordinating
    from simulation.training import Trainer, Training
    from simulation.world import World

__all__ = ["LawBrokenError", "Laws"]


class LawBrokenError(AssertionError):
    """A law of the design was broken."""

    def __init__(self, law: int, text: str) -> None:
        super().__init__(f"law {law}: {text}")
        self.law = law


class Laws:
    """Keeps the truth of one job, and compares.

    Attributes:
        truth: what trainers really saved first, by save and shard.
        shapes: of which shape each save is.
        committed: saves that Redis took as committed.
    """

    def __init__(self, world: "World", training: "Training") -> None:
        self.world = world
        self.training = training
        self.job = training.job
        self.shapes: dict[Save, Shape] = {}
        self.truth: dict[tuple[Save, ShardKey], Address] = {}
        self.library: dict[Address, list[bytes]] = {}
        self.committed: dict[Save, dict[ShardKey, Address]] = {}
        self.named_on: dict[tuple[Save, ShardKey, Address], set[Host]] = defaultdict(set)
        self.backed_up: set[Save] = set()
        self.decisions: dict[Stamp, RestoreRecord] = {}
        self.released: dict[Epoch, list[EpochRecord]] = defaultdict(list)
        self.keeps: dict[Stamp, KeepList] = {}
        self.epoch: EpochRecord | None = None
        self.last_holder = ""
        self.people = Ordered(self)
        self._seen = -1

    # ---- facts

    def saved(self, save: Save, key: ShardKey, content: Content) -> None:
        """A trainer finished a shard; the first of its name counts, unless faults left nothing of it anywhere."""
        self.library.setdefault(content.address, list(content.leaves))
        if (save, key) in self.truth and not self._remembered(save, key):
            del self.truth[save, key]
            self.committed.pop(save, None)
        self.truth.setdefault((save, key), content.address)
        self.shapes[save] = self.training.shape

    def _saved_as(self, save: Save, key: ShardKey) -> set[Address]:
        """What trainers saved under this name; what is found without its session is of epoch 0, whatever it was."""
        if (save, key) in self.truth:
            return {self.truth[save, key]}
        if save.epoch:
            return set()
        return {address for (one, of), address in self.truth.items() if one.step == save.step and of == key}

    def _remembered(self, save: Save, key: ShardKey) -> bool:
        """Whether anything of a shard is left; numbers of epochs may come again when all that knew of them is gone."""
        if save in self.backed_up:
            return True
        for host in self.world.hosts.values():
            disk = host.disk
            if any((tag.job, tag.save, tag.key) == (self.job, save, key) for tag in disk.sidecars):
                return True
            if any((c.job, c.save, c.key) == (self.job, save, key) for c, _ in disk.claims.values()):
                return True
        return False

    def lease_taken(self, process: "Coordinating") -> None:
        """Redis gave the lease."""
        if self.last_holder not in {"", process.name} and self.training.running:
            self.world.hits["take-over while training"] += 1
        others = [one for one in self.world.coordinators if one.job == self.job and one is not process]
        if any(one.machine is not None and one.machine.lease is not None and one.paused for one in others):
            self.world.hits["take-over with a paused leader"] += 1
        self.last_holder = process.name

    def written(self, process: "Coordinating", changes: Sequence[Change]) -> None:
        """Redis took a write."""
        keys = {change.key: change for change in changes if isinstance(change, SetHash)}
        if not keys:
            return
        steps = [key for key in keys if key.startswith("step:")]
        if not steps and not any(key in {"epoch", "keep"} or key.startswith("restore:") for key in keys):
            return
        world = self.world
        view = world.redis.model.view(self.job, Host(""), None)
        if view.epoch is not None:
            self.epoch = view.epoch
            if view.epoch.released and view.epoch.members:
                if view.epoch.number not in self.released:
                    self.people.released(view.restore)
                self.released[view.epoch.number].append(view.epoch)
        for key in steps:
            self._step(process, key)
        if view.restore is not None and view.restore.stamp not in self.decisions:
            self.decisions[view.restore.stamp] = view.restore
            self._decided(process, view.restore)
        if view.keep is not None and view.keep.stamp not in self.keeps:
            self.keeps[view.keep.stamp] = view.keep
            self._kept(process, view.keep)

    def _step(self, process: "Coordinating", key: str) -> None:
        fields = self.world.redis.model._hashes.get(f"ckpt:{{{self.job}}}:{key}", {})
        if fields.get("state") != SaveState.COMMITTED:
            return
        save = parse_save(key.removeprefix("step:"))
        if save in self.committed:
            return
        shards = {
            ShardKey(Rank(int(name[1:].split("/w")[0])), Worker(int(name.split("/w")[1]))): Address(text)
            for name, text in fields.items()
            if name.startswith("n") and "/w" in name
        }
        shape = from_json(Shape, fields["shape"], key) if "shape" in fields else self.shapes[save]  # see below
        wanted = set(shards_of(shape))
        restored = fields.get("reason") == "restored"
        if restored:  # a missing rank was given what its twin saved
            wanted = {one for one in wanted if one in shards or not self._twins(one, shape) & set(shards)}
        if set(shards) != wanted and self.world.hits["redis went back"]:
            # Facts for people are written without a new stamp, so a Redis that came back under the same one gets the
            # difference alone: the record is partial, and what was committed is known from the trainers.
            shards = {key: self.truth[save, key] for key in wanted if (save, key) in self.truth}
        if set(shards) != wanted:
            raise LawBrokenError(4, f"save {save} was committed with {len(shards)} of {len(wanted)} shards")
        for shard, address in shards.items():
            if address not in self._saved_as(save, shard):
                raise LawBrokenError(1, f"save {save} was committed with other bytes of {shard} than were saved")
            hosts = self.named_on[save, shard, address]
            least = 1 if restored else 1 + self._required(process, shape)
            if len(hosts) < max(least, 1 + int(fields.get("copies", "0"))):
                raise LawBrokenError(4, f"save {save} was committed, but {shard} was named on {sorted(hosts)} alone")
        self.committed[save] = shards
        if shape.d > 1 and not restored:
            columns = {key: {shards[twin] for twin in self._twins(key, shape)} for key in shards}
            equal = all(len(addresses) == 1 for addresses in columns.values())
            self.world.hits[f"twins saved {'equal' if equal else 'different'} bytes"] += 1
        self.world.hits["save committed"] += 1

    def _required(self, process: "Coordinating", shape: Shape) -> int:
        """Copies beside the own one that nobody may do without: those asked for, as far as hosts were there."""
        members = self.epoch.members if self.epoch is not None else ()
        present = sum(process.counts(member.host) for member in members)
        return max(0, min(self.training.peers, shape.nodes - 1, present - 1))

    # ---- 3: crash

    def check(self, changes: int) -> None:
        """After every event: the newest committed save that no fault took is still somewhere, or another one is.

        Where neither a ramdisk changed nor anything was committed since, all is as it was.
        """
        seen = changes + 1000 * len(self.committed)
        if seen == self._seen or not self.committed:
            return
        self._seen = seen
        newest = max(self.committed)
        if self.people.gone(newest):
            return
        if not self._spared(newest):
            self.world.hits["more was lost than is held"] += 1
            return
        if not any(self.restorable(save) for save in sorted(self.committed, reverse=True)):
            raise LawBrokenError(3, f"save {newest} was committed, and no committed save can be restored any more")

    def _spared(self, save: Save) -> bool:
        """Whether faults left a copy of each shard, whatever the product did with it."""
        if save in self.backed_up:
            return True
        disks = [host.disk for host in self.world.hosts.values()]
        return all(
            any(disk.given.get((self.job, save, key)) == address and address not in disk.spoiled for disk in disks)
            for key, address in self.committed[save].items()
        )

    def restorable(self, save: Save) -> bool:
        """Whether a save is whole over all disks and backups: each shard or a twin of it, under its own name."""
        if save in self.backed_up:
            return True
        shards = self.committed[save]
        found: set[ShardKey] = set()
        for host in self.world.hosts.values():
            disk = host.disk
            found.update(
                tag.key
                for tag in disk.sidecars
                if tag.save == save
                and tag.job == self.job
                and shards.get(tag.key) == tag.address
                and tag.address in disk.shards
                and tag.address not in disk.spoiled
            )
        shape = self.shapes.get(save, self.training.shape)
        return all(not found.isdisjoint(self._twins(key, shape)) for key in shards)

    # ---- decisions

    def _decided(self, process: "Coordinating", record: RestoreRecord) -> None:
        world = self.world
        world.hits[f"decided {record.outcome}"] += 1
        self._seldom(record)
        if fault := self.people.decided(record):
            raise LawBrokenError(10, fault)
        if record.outcome is Outcome.NONE and not record.forced:
            witnesses = {node.host for node in self.training.homes.values()} | process.remembered
            for host in world.hosts.values():
                fence = host.disk.fences.get(self.job)
                told = fence.committed if fence is not None else None
                if host.host in witnesses and told is not None and not self.people.gone(told):
                    raise LawBrokenError(10, f"nothing was found although {host.host} knows of a commit")
            if self.backed_up and world.now - world.bucket.late_at > world.times.rendezvous:
                raise LawBrokenError(10, f"nothing was found although {max(self.backed_up)} is in the backup")
        if record.outcome is Outcome.RESTORE and self.committed and record.save is not None and not record.forced:
            newest = max(self.committed)
            known = {rejected.save for rejected in record.rejected}
            if record.save < newest and newest not in known and self.restorable(newest):
                raise LawBrokenError(10, f"{record.save} was chosen over {newest} without a reason")

    def _seldom(self, record: RestoreRecord) -> None:
        """Count decisions that are not often taken."""
        hits, save = self.world.hits, record.save
        before = [one.outcome for one in self.decisions.values()][:-1]
        if record.outcome is Outcome.LOST and Outcome.UNKNOWN in before:
            hits["lost told from unknown"] += 1
        if record.outcome is Outcome.RESTORE and Outcome.UNKNOWN in before:
            hits["found what was not known"] += 1
        if save is None:
            return
        disks = [host.disk for host in self.world.hosts.values()]
        for rejected in record.rejected:
            names = {address for (one, _), address in self.truth.items() if one == rejected.save}
            if rejected.save in self.committed:
                hits["fell back past a committed save"] += 1
            if any(names & disk.spoiled for disk in disks):
                hits["fell back past a corrupt newest"] += 1
        if save not in self.committed:
            hits["restored what was not committed"] += 1
        if self.shapes.get(save, self.training.shape) != self.training.shape:
            hits["restored by another shape"] += 1
        if "without an answer of" in record.reason:
            hits["restored although a witness is silent"] += 1
        if any(one.disk.shards and one not in self.training.homes.values() for one in self.world.hosts.values()):
            hits["restored beside a host without a rank"] += 1

    def _kept(self, process: "Coordinating", keep: KeepList) -> None:
        """A keep list is made from a complete view, and never lets go what was committed last."""
        epoch = self.epoch
        if fault := self.people.kept(keep):
            raise LawBrokenError(5, fault)
        if keep.hold:
            return  # it lets nothing go, whatever is known
        if epoch is None or not epoch.released:
            return  # made before, and written again where Redis lost it
        for member in epoch.members:
            if not process.witnessed.get(member.session, False):
                raise LawBrokenError(5, f"a keep list {keep.stamp} although rank {member.rank} told nothing complete")
        if keep.upto is not None and keep.upto not in self.committed:
            restored = {record.save for record in self.decisions.values()}
            if keep.upto not in restored:
                raise LawBrokenError(5, f"a keep list up to {keep.upto}, which was neither committed nor restored")

    # ---- what watchers and transfers do

    def named(self, host: Host, tag: Tag) -> None:
        """A shard got its name on a host."""
        self.named_on[tag.save, tag.key, tag.address].add(host)

    def dropping(self, watching: "Watching", tags: Collection[Tag], keep: KeepList | None) -> None:
        """A watcher lets go of shards, as it was told."""
        host = watching.host
        if fault := self.people.dropping((host, watching.node.replaced)):
            raise LawBrokenError(5, fault)
        if keep is None or self.keeps.get(keep.stamp) != keep:
            raise LawBrokenError(5, f"{host} drops without a keep list")
        if keep.hold:
            raise LawBrokenError(5, f"{host} drops although the job is held, by {keep}")
        for tag in tags:
            listed = tag.save in keep.drop or (keep.upto is not None and tag.save <= keep.upto)
            if not listed or tag.save in keep.keep or tag.save == keep.upto:
                raise LawBrokenError(5, f"{host} drops {tag.save}, which {keep} does not let go")

    def publishing(self, watching: "Watching", record: SessionRecord) -> None:
        """A watcher is about to hand a save to its trainer."""
        host = watching.host
        members = [
            epoch for epoch in self.released.get(record.epoch, []) if record.id in {m.session for m in epoch.members}
        ]
        if not members:
            raise LawBrokenError(2, f"{host} publishes markers of epoch {record.epoch}, which was not released to it")
        addresses = {marker.name: marker.address for marker in record.markers}
        nothing = all(address is None for address in addresses.values())
        save, stamp = None, ZERO
        if not nothing:
            decision = self.decisions.get(record.stamp)
            if decision is None or decision.save is None:
                raise LawBrokenError(2, f"{host} publishes markers of a decision {record.stamp} that nobody took")
            save, stamp = decision.save, record.stamp
        for other in self.world.hosts.values():
            its = other.disk.session
            if its is None or its.epoch != record.epoch or its.state is not SessionState.RUNNING:
                continue
            if its.spec is None or its.spec.job != self.job:
                continue
            theirs = ZERO if all(marker.address is None for marker in its.markers) else its.stamp
            if theirs != stamp:
                raise LawBrokenError(2, f"{host} restores {save} by {stamp}, {other.host} by {theirs}")
        if save is None or record.spec is None:
            return
        for name, address in addresses.items():
            worker = Worker(int(name.removesuffix(".restore").split("-w")[-1]))
            key = ShardKey(record.spec.rank, worker)
            if address is None or address not in self._right(save, key, record.spec.shape):
                raise LawBrokenError(1, f"{host} gets other bytes of {key} of {save} than were saved")
            if address != self.truth.get((save, key)):
                self.world.hits["twin served a missing rank"] += 1
            content = watching.node.disk.shards.get(address)
            if content is None:
                raise LawBrokenError(9, f"{host} publishes {name}, whose data is not there")
            if content.leaves != self.library[address]:
                raise LawBrokenError(1, f"{host} publishes {name}, whose bytes are not those that were saved")
        self._sources(watching)

    def _sources(self, watching: "Watching") -> None:
        progress = watching.machine.restorer.progress()
        for source, size in (progress.by_source if progress is not None else {}).items():
            if size:
                self.world.hits[f"restored from {source}"] += 1
        if watching.node.replaced:
            self.world.hits["replaced node restored"] += 1

    def _right(self, save: Save, key: ShardKey, shape: Shape) -> set[Address]:
        """What a worker may get of a save: its own shard, or that of a twin of its column."""
        twins = self._twins(key, self.shapes.get(save, shape))
        return {address for twin in twins for address in self._saved_as(save, twin)}

    def _twins(self, key: ShardKey, shape: Shape) -> set[ShardKey]:
        """Who of a shape saves what this worker saves, itself included."""
        columns = max(1, shape.nodes // shape.d)
        ranks = (Rank(rank) for rank in range(shape.nodes) if rank % columns == key.rank % columns)
        return {ShardKey(rank, key.worker) for rank in ranks}

    # ---- what trainers see

    def loaded(self, trainer: "Trainer") -> None:
        """A trainer read what it was handed."""
        record = trainer.node.disk.handed
        decision = self.decisions.get(record.stamp) if record is not None else None
        for worker, (_, content) in trainer.taken.items():
            if content is None:
                continue
            key = ShardKey(trainer.rank, Worker(worker))
            save = decision.save if decision is not None else None
            right = self._right(save, key, trainer.training.shape) if save is not None else set()
            if all(content.leaves != self.library[address] for address in right):
                raise LawBrokenError(1, f"the trainer of rank {trainer.rank} read other bytes than were saved")

    def failed(self, trainer: "Trainer", text: str) -> None:
        """A trainer found `replicator.failed`."""
        self.world.hits["explicit failure"] += 1
        if not text.strip():
            raise LawBrokenError(10, f"rank {trainer.rank} failed without a reason")

    # ---- the backup

    def stored(self, name: str) -> None:
        """An object was written."""
        folder = name.rpartition("/")[0] if "/D" not in name else name.split("/D", maxsplit=1)[0]
        if name.endswith(".meta"):
            self._marked(folder)
        elif name.endswith("/MANIFEST.json") and b"abandoned" not in self.world.bucket.store.objects.get(name, b""):
            self._marked(folder)
            self._completed(folder)

    def _marked(self, folder: str) -> None:
        """No `.meta` before all data of the backup."""
        objects = self.world.bucket.store.objects
        save = self.save_of(folder)
        for (known, _), address in self.truth.items():
            if known == save and f"{folder}/{address}.tree" not in objects:
                raise LawBrokenError(9, f"{folder} has a .meta before the data of {address:.13}")

    def _completed(self, folder: str) -> None:
        save = self.save_of(folder)
        if save is not None:
            self.backed_up.add(save)
            self.world.hits["backup completed"] += 1

    def save_of(self, folder: str) -> Save | None:
        """Return what a backup is of, by its order."""
        text = self.world.bucket.store.objects.get(f"{folder}/ORDER.json")
        return parse_order(text.decode()).save if text is not None else None
