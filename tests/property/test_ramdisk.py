"""Whatever is named, dropped, damaged and crashed in between: the register of a ramdisk stays true."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from checkpoint_replicator.errors import RefusedError
from checkpoint_replicator.hashing import hash_shard
from checkpoint_replicator.ids import Address
from checkpoint_replicator.ramdisk import Ramdisk, parse_data
from checkpoint_replicator.save import Tag
from support.shards import JOB, Crash, CrashingFiles, fill, tag_of

SHM = Path("/dev/shm")  # noqa: S108 - a real ramdisk, and faster than a disk
points = st.one_of(st.none(), st.integers(0, 12))
Model = dict[tuple[int, str], Address]


class RamdiskMachine(RuleBasedStateMachine):
    """Keeps a model (epoch and name to address) beside the ramdisk; a crash may leave the old model or the new one."""

    @initialize()
    def start(self) -> None:
        self.root = Path(tempfile.mkdtemp(dir=SHM if SHM.is_dir() else None))
        self.ramdisk = Ramdisk(self.root)
        self.model: Model = {}
        self.committed: set[tuple[int, str]] = set()
        self.damaged: set[Address] = set()

    def teardown(self) -> None:
        if hasattr(self, "root"):
            shutil.rmtree(self.root)

    def perform(self, act: Callable[[Ramdisk], object], then: Model, crash: int | None) -> None:
        """Do something; with a crash after some system calls, and a recovery."""
        if crash is None:
            act(self.ramdisk)
            self.model = then
            return
        try:
            act(Ramdisk(self.root, files=CrashingFiles(crash)))
        except Crash:
            self.ramdisk.recover()
            found = self.found()
            for key in self.model.keys() | then.keys() | found.keys():
                may = {self.model.get(key), then.get(key)}
                if self.model.get(key) in self.damaged and key not in self.committed:
                    may.add(None)  # damaged bytes that were just to be replaced may be gone
                assert found.get(key) in may, (key, found, self.model, then)
            self.model = found
        else:
            self.model = then

    def found(self) -> Model:
        return {(side.tag.save.epoch, side.tag.name): side.tag.address for side in self.ramdisk.sidecars()}

    @rule(seed=st.integers(0, 3), epoch=st.integers(0, 2), step=st.integers(1, 2), crash=points)
    def name(self, seed: int, epoch: int, step: int, crash: int | None) -> None:
        source = fill(self.root / "source", 100, seed)
        tree = hash_shard(source)
        tag = tag_of(tree, step=step, epoch=epoch)
        place = (epoch, tag.name)
        clash = self.model.get(place, tree.address) != tree.address
        if clash and (self.model[place] not in self.damaged or place in self.committed):
            try:
                self.ramdisk.name_shard(source, tree, [tag], own=True)
            except RefusedError:
                return
            raise AssertionError("other bytes took a standing name")
        self.perform(
            lambda ramdisk: ramdisk.name_shard(source, tree, [tag], own=True),
            self.model | {place: tree.address},
            crash,
        )
        if self.model.get(place) == tree.address and not source.exists():
            self.damaged.discard(tree.address)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), crash=points)
    def drop(self, data: st.DataObject, crash: int | None) -> None:
        tag = self.draw_tag(data)
        place = (tag.save.epoch, tag.name)
        self.perform(
            lambda ramdisk: ramdisk.drop(tag), {key: at for key, at in self.model.items() if key != place}, crash
        )
        self.committed &= self.model.keys()

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        tag = self.draw_tag(data)
        self.ramdisk.commit(JOB, [tag.save])
        self.committed |= {key for key in self.model if key[0] == tag.save.epoch and f"-s{tag.save.step}-" in key[1]}

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        address = self.draw_tag(data).address
        path = self.ramdisk.layout.data(address)
        if path.exists():
            os.truncate(path, 1)
            self.damaged.add(address)

    @precondition(lambda self: self.damaged)
    @rule(data=st.data())
    def condemn(self, data: st.DataObject) -> None:
        address = data.draw(st.sampled_from(sorted(self.damaged)))
        self.ramdisk.condemn(address)
        self.model = {key: at for key, at in self.model.items() if at != address}
        self.committed &= self.model.keys()
        self.damaged.discard(address)

    @rule()
    def restart(self) -> None:
        self.ramdisk = Ramdisk(self.root)
        self.ramdisk.recover()
        self.ramdisk.sweep()

    def draw_tag(self, data: st.DataObject) -> Tag:
        epoch, name = data.draw(st.sampled_from(sorted(self.model)))
        (tag,) = [side.tag for side in self.ramdisk.sidecars() if (side.tag.save.epoch, side.tag.name) == (epoch, name)]
        return tag

    @invariant()
    def the_register_is_true(self) -> None:
        if not hasattr(self, "model"):
            return
        assert self.found() == self.model
        for sidecar in self.ramdisk.sidecars():
            assert sidecar.committed == ((sidecar.tag.save.epoch, sidecar.tag.name) in self.committed)
            stands = sidecar.tag.address not in self.damaged
            assert self.ramdisk.standing(sidecar) == stands
            assert (self.ramdisk.layout.data(sidecar.tag.address).exists()) or not stands

    @invariant()
    def visible_means_complete(self) -> None:
        if not hasattr(self, "model"):
            return
        for path in self.root.iterdir():
            address = parse_data(path.name)
            if address is not None and address not in self.damaged:
                assert address in self.model.values()
                assert hash_shard(path).address == address
            if path.suffix == ".meta":
                epochs = [epoch for epoch, name in self.model if name == path.stem]
                assert path.read_text() == self.model[max(epochs), path.stem]


TestRamdisk = RamdiskMachine.TestCase
TestRamdisk.settings = settings(deadline=None, max_examples=40, stateful_step_count=20)
