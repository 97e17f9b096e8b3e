"""What is done to a cluster so that it comes to a point: each from rest to rest, and it must succeed whoever dies."""

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from checkpoint_replicator.cluster import node_services
from checkpoint_replicator.ramdisk.room import usage
from checkpoint_replicator.save import parse_save
from checkpoint_replicator.wishes import WishKind
from crash.content import LEAVES, Saved, write_step
from crash.evidence import Line
from crash.scene import QUOTA, Scene

__all__ = ["STAGES", "Stage", "corrupt"]

Act = Callable[[Scene], Coroutine[object, object, None]]


class Stage:
    """`prepare` is done before the point is armed, `act` while it is, `tidy` when whoever died is back."""

    def __init__(self, act: Act, prepare: Act | None = None, tidy: Act | None = None) -> None:
        self.act = act
        self.prepare = prepare
        self.tidy = tidy


def newest(scene: Scene) -> Line | None:
    """The life and step that a restart must bring back: the newest whole save, by what lies there."""
    now = scene.evidence()
    saved = now.bytes_of(now.newest, 0) if now.newest is not None else None
    return None if saved is None else (saved.life, saved.step)


async def saving(scene: Scene) -> None:
    """All trainers save, and the save is committed."""
    scene.save()
    await scene.committed()


async def backing_up(scene: Scene) -> None:
    """All trainers save and ask for a backup, which is verified."""
    scene.save(wish=True)
    await scene.committed()
    await scene.backed_up()


async def restarting(scene: Scene) -> None:
    """All trainers die and come back."""
    expected = newest(scene)
    assert await scene.restore() == expected
    await scene.rest()


async def replacing(scene: Scene) -> None:
    """A machine is lost with its ramdisk; the job comes back with an empty one in its place."""
    expected = newest(scene)
    await scene.lose(1)
    assert await scene.restore() == expected
    await scene.rest()


async def losing_all(scene: Scene) -> None:
    """All machines are lost; the job comes back from its backup."""
    expected = newest(scene)
    await scene.lose(0)
    await scene.lose(1)
    assert await scene.restore() == expected
    await scene.rest()


def corrupt(scene: Scene, node: int, rank: int, save: Line | None = None) -> str:
    """Flip a byte of a save's shard of a rank on a node, by default of the newest whole one; returns its address."""
    now = scene.evidence()
    save = save or now.newest
    [address] = [one.address for one in now.disks[node].named.values() if (one.save, one.rank) == (save, rank)]
    scene.auditor.harm(node)
    with (scene.local(node) / f"{address}.data" / f"__{rank}_0.distcp").open("r+b") as file:
        byte = file.read(1)
        file.seek(0)
        file.write(bytes([byte[0] ^ 1]))
    return address


async def corrupting(scene: Scene) -> None:
    """A bit of a rank's own newest shard flips; the job comes back, and the bit is as it was."""
    expected = newest(scene)
    corrupt(scene, 1, 1)
    assert await scene.restore() == expected
    scene.auditor.healed(1)
    await scene.rest()


async def opening(scene: Scene) -> None:
    """Impatient uploaders have shards of the backup open, out of which all machines came back."""
    await scene.reset_times(UPLOADERS, *HASTY)
    await backing_up(scene)
    await losing_all(scene)


HASTY: Final = ('suspect = "3s", lost = "8s"', 'suspect = "1s", lost = "3s", hosts = "1s"')
"""For an uploader: after three times as long as a host is lost a shard that nobody asks for is closed."""


async def rotting(scene: Scene) -> None:
    """A machine is lost, and the only copy of its shard has a flipped bit: the backup has the bytes."""
    expected = newest(scene)
    corrupt(scene, 1, 0)
    await scene.lose(0)
    assert await scene.restore() == expected
    scene.auditor.healed(1)
    await scene.rest()


async def saving_again(scene: Scene) -> None:
    """Trainers save a committed step once more with other bytes: refused, and they are told."""
    scene.save(again=True)
    for node in range(2):
        errors = scene.local(node) / "replicator.errors"
        await scene.until("the second draft to be refused", lambda file=errors: file.exists() or None)  # type: ignore[misc]
        errors.unlink()
    await scene.rest()


async def misspelling(scene: Scene) -> None:
    """A trainer writes a yaml that is none: it is told so, and the job comes back with a good one."""
    expected = newest(scene)
    local = scene.local(1)
    (local / "draft").write_text("nodes: [\n")
    (local / "draft").rename(local / "replicator.yaml")
    failed = local / "replicator.failed"
    await scene.until("the yaml to be refused", lambda: failed.exists() or None)
    assert not (local / "replicator.yaml").exists()
    failed.unlink()
    assert await scene.restore() == expected
    await scene.rest()


async def taking_back(scene: Scene) -> None:
    """A trainer writes its yaml and takes it back before its fellow comes: its session ends, and the job comes back."""
    expected = newest(scene)
    yaml = scene.announce(1)
    await scene.until("a session to be open", lambda: scene.index().sessions.get(1) == "open" or None)
    yaml.unlink()
    await scene.until("the session to be closed", lambda: scene.index().sessions.get(1) == "closed" or None)
    assert await scene.restore() == expected
    await scene.rest()


async def vanishing(scene: Scene) -> None:
    """A trainer takes a save back while it is taken from it; the next one is committed."""
    scene.step += 1
    name = await scene.halted("watcher ClaimSave 3", lambda: scene.save_one(0))
    shutil.rmtree(scene.local(0) / str(scene.step))
    scene.go_on(name)
    await saving(scene)


async def mutating(scene: Scene) -> None:
    """A trainer goes on writing into what it saved before it was copied: that never counts, and the next one does."""
    scene.step += 1
    name = await scene.halted("transfer OpenPartial before", lambda: scene.save_one(0))
    address = corrupt(scene, 0, 0, scene.last)
    scene.go_on(name)
    await step_is(scene, "mutated")
    await saving(scene)
    spoilt = scene.local(0) / f"{address}.data"
    await scene.until("what was changed to go", lambda: not spoilt.exists() or None)
    scene.auditor.healed(0)
    (scene.local(0) / "replicator.errors").unlink(missing_ok=True)
    await scene.rest()


async def skipping(scene: Scene) -> None:
    """A trainer fills its ramdisk while a save is in flight: what it saves then is skipped, and the next one is not."""
    scene.step += 1
    scene.save_one(0)
    await step_is(scene, "saving")
    scene.step += 1
    with filled(scene.local(0), 0):
        scene.save_one(0)
        await step_is(scene, "skipped")
    (scene.local(0) / "replicator.errors").unlink(missing_ok=True)
    await saving(scene)


async def stalling(scene: Scene) -> None:
    """A transfer stands still amid a copy for so long that what is under way to it is forgotten; it asks again."""
    scene.step += 1
    name = await scene.halted("transfer StoreLeaves before", lambda: scene.save_one(0))
    await scene.passes("transfer ForgetPeer before")
    scene.go_on(name)
    scene.save_one(1)
    await scene.committed()


async def trimming(scene: Scene) -> None:
    """Two partials that nobody fills lie there since the day before yesterday when the transfer starts: they go."""
    transfer = node_services(1)[1]
    await scene.kill([transfer])
    left = [scene.local(1) / ".replicator" / "partial" / (2 * digit).ljust(64, digit) for digit in "ab"]
    for folder in left:
        folder.mkdir()
        for name in ("data", "bitmap"):
            (folder / name).touch()
            os.utime(folder / name, (time.time() - 2 * DAY,) * 2)
    await scene.start([transfer])
    await scene.until("old partials to go", lambda: not any(folder.exists() for folder in left) or None)
    await scene.rest()


DAY: Final = 86400.0


async def handing_over(scene: Scene) -> None:
    """The coordinator is asked to end, and comes back; the other one goes on meanwhile."""
    active = scene.active
    await scene.terminate(active)
    scene.save()
    await scene.start([active])
    await scene.committed()


async def rebooting(scene: Scene) -> None:
    """All services of a node are killed and started; the next save is committed."""
    await scene.kill(node_services(1))
    await scene.start(node_services(1))
    scene.save()
    await scene.committed()


async def leaving_an_order(scene: Scene) -> None:
    """An order without a manifest lies in the backup store, which nobody remembers: it is closed and swept."""
    backups = sorted((scene.backups / "job").iterdir())
    left = backups[0].with_name("2001-01-01_00-00")
    shutil.rmtree(left, ignore_errors=True)
    shutil.copytree(backups[-1], left, ignore=shutil.ignore_patterns("MANIFEST.json"))
    await backing_up(scene)  # its listing shows the leftover
    await scene.until(
        "the order to be closed and swept",
        lambda: {path.name for path in left.rglob("*") if path.is_file()} == {"ORDER.json", "MANIFEST.json"} or None,
    )


async def refusing(scene: Scene) -> None:
    """The backup store takes nothing for a while: the backup waits, says why, and is made."""
    store = scene.backups / "job"
    aside = store.with_name("aside")
    before = scene.index().troubles
    name = await scene.halted("uploader Begin reserve before", lambda: scene.save(wish=True))
    store.rename(aside)
    store.touch()
    scene.go_on(name)
    await scene.until("a backup to wait", lambda: scene.index().troubles != before or None)
    store.unlink()
    aside.rename(store)
    await scene.committed()
    await scene.backed_up()


async def asking_twice(scene: Scene) -> None:
    """All machines are lost, and an uploader stands still for so long that the backup is asked of it once more."""
    expected = newest(scene)
    await scene.lose(0)
    await scene.lose(1)
    coming: list[asyncio.Task[Line | None]] = []
    name = await scene.halted("uploader OpenShard before", lambda: coming.append(asyncio.create_task(scene.restore())))
    await asyncio.sleep(2)
    scene.go_on(name)
    assert await coming[0] == expected
    await scene.rest()


async def closing(scene: Scene) -> None:
    """Nobody asks for a shard of the backup any more that an uploader has open, and it closes it."""
    await scene.passes("uploader CloseShard before")
    await scene.rest()


async def patient_uploaders(scene: Scene) -> None:
    """Give uploaders their times back."""
    await scene.reset_times(UPLOADERS, *reversed(HASTY))


async def dozing(scene: Scene) -> None:
    """A save wakes the job, and then nobody saves for so long that it rests."""
    scene.save()
    await scene.until("a save to be committed", lambda: scene.index().upto == scene.last or None)
    await scene.until("the job to rest", lambda: scene.index().epoch.get("state") == "idle" or None)


async def impatient_coordinators(scene: Scene) -> None:
    """Let coordinators take a second for a long time: the job rests."""
    await scene.reset_times(COORDINATORS, *IMPATIENT)
    await scene.until("the job to rest", lambda: scene.index().epoch.get("state") == "idle" or None)


async def patient_coordinators(scene: Scene) -> None:
    """Give coordinators their times back: the job does not rest any more."""
    await scene.reset_times(COORDINATORS, *reversed(IMPATIENT))
    await scene.rest()


COORDINATORS: Final = ("coordinator-0", "coordinator-1")
IMPATIENT: Final = ('idle = "24h"', 'idle = "1s"')


# ---- what people order


async def holding(scene: Scene) -> None:
    """People look: saves are committed and none goes, until they end the hold."""
    await scene.order(WishKind.HOLD, reason="we look")
    before = scene.evidence()
    scene.save()
    await scene.committed()
    for old, new in zip(before.disks, scene.evidence().disks, strict=True):
        assert old.named.keys() <= new.named.keys(), "law 5: a save went although the job is held"
    await scene.order(WishKind.RESUME)
    await scene.rest()


async def ordering(scene: Scene) -> None:
    """People order a save, take it back, and order it again: the next start has it, and the job goes on from there."""
    expected, save = newest(scene), parse_save("{}.{}".format(*scene.evidence().newest or ()))
    await scene.order(WishKind.RESTORE, save=save)
    await scene.order(WishKind.WITHDRAW)
    await scene.order(WishKind.RESTORE, save=save)
    assert await scene.restore() == expected
    await saving(scene)


async def beginning_anew(scene: Scene) -> None:
    """People order a fresh start: nothing is restored although something was committed."""
    scene.judge()
    scene.auditor.go_back((0, 0))
    await scene.order(WishKind.RESTORE, none=True)
    assert await scene.restore() is None
    await saving(scene)


async def backing_up_twice(scene: Scene) -> None:
    """Two verified backups lie in the store."""
    await backing_up(scene)
    await backing_up(scene)


async def going_back(scene: Scene) -> None:
    """`restore.version` names the backup before the last one: it is restored, and the file goes with the next one."""
    await backing_up_twice(scene)
    [*_, chosen, _] = [one for one in scene.evidence().backups if one.state == "complete"]
    assert chosen.order is not None
    scene.judge()
    scene.auditor.go_back(chosen.order)
    expected = newest(scene)
    order = scene.backups / "job" / "restore.version"
    order.write_text(chosen.name)
    assert await scene.restore() == expected
    await backing_up(scene)
    await scene.until("the order to be removed", lambda: not order.exists() or None)
    await scene.until("a backup to count no more", lambda: "superseded" in scene.index().backups.values() or None)
    await scene.rest()


async def forgetting(scene: Scene) -> None:
    """People forget the job, first what was committed, then all that its hosts have; it begins anew."""
    scene.judge()
    scene.auditor.forget(ramdisks=False)
    await scene.order(WishKind.FORGET, force=True)
    scene.judge()
    scene.auditor.forget(ramdisks=True)
    await scene.order(WishKind.FORGET, ramdisks=True, force=True)
    expected = newest(scene)  # backups stay
    assert await scene.restore(apart=True) == expected
    scene.auditor.forgot()
    await saving(scene)


# ---- what befalls nodes


async def losing_its_names(scene: Scene) -> None:
    """A node loses `.replicator` and keeps what it shows: its bytes tell what they are."""
    expected = newest(scene)
    names = node_services(1)
    await scene.kill(names)
    scene.judge()
    scene.auditor.wiped(1)
    shutil.rmtree(scene.local(1) / ".replicator")
    await scene.start(names)
    assert await scene.restore() == expected
    await scene.rest()


async def cutting_off(scene: Scene) -> None:
    """The coordinator stands still for so long that nodes call for help, and goes on."""
    active = scene.active
    scene.signal(active, signal.SIGSTOP)
    await asyncio.sleep(1.8)
    scene.signal(active, signal.SIGCONT)
    await saving(scene)


async def saving_late(scene: Scene) -> None:
    """One trainer saves long after the other: the save waits for it."""
    scene.step += 1
    scene.save_one(0)
    await step_is(scene, "incomplete")
    scene.save_one(1)
    await scene.committed()


async def saving_short(scene: Scene) -> None:
    """One trainer does not save a step: that never counts, and the next one does."""
    scene.step += 1
    scene.save_one(0)
    await step_is(scene, "saving")
    await saving(scene)
    await scene.until("a save to be given up", lambda: "abandoned" in states(scene) or None)


def states(scene: Scene) -> set[str]:
    """What Redis says of saves."""
    return {fields.get("state", "") for fields in scene.index().steps.values()}


async def step_is(scene: Scene, state: str) -> None:
    """Wait until Redis says this of the last step."""
    await scene.until(
        f"a save to be {state}", lambda: scene.index().steps.get(scene.last, {}).get("state") == state or None
    )


async def outgrowing(scene: Scene) -> None:
    """An upload is under way when both uploaders die, another save comes, and then another coordinator."""
    await scene.until("a newer save to be committed", lambda: scene.index().upto == scene.last or None)
    active = scene.active
    await scene.terminate(active)
    await scene.start([active, *UPLOADERS])
    await scene.backed_up()
    await scene.rest()


async def outgrown(scene: Scene) -> None:
    """Let both uploaders die amid a backup, and save the next step."""
    scene.arm("uploader Begin upload before")
    scene.save(wish=True)
    await scene.death()
    await scene.kill(UPLOADERS)
    scene.save()


UPLOADERS: Final = ("node-0-uploader", "node-1-uploader")


async def calling_off(scene: Scene) -> None:
    """An uploader stands still before its upload, and then hears at once that the job is held meanwhile."""
    name = await scene.halted("uploader Begin upload before", lambda: scene.save(wish=True))
    await scene.order(WishKind.HOLD)
    scene.go_on(name)
    await scene.order(WishKind.RESUME)
    await scene.backed_up()
    await scene.rest()


@contextmanager
def filled(local: Path, free: int) -> Iterator[None]:
    """Fill a ramdisk so that only so many bytes are free."""
    ballast = local / "ballast"
    with ballast.open("wb") as file:
        file.truncate(QUOTA - free - usage(local))
    try:
        yield
    finally:
        ballast.unlink()


def making_room(free: int) -> Act:
    """The ramdisk is full, and other jobs' saves go for that of this one."""

    async def act(scene: Scene) -> None:
        local = scene.local(1)
        with filled(local, free):
            saves = local / ".replicator" / "saves"
            await scene.until("other jobs' saves to go", lambda: not [*saves.glob("*/other*")] or None)
        (local / "replicator.errors").unlink(missing_ok=True)
        await saving(scene)

    return act


async def share(scene: Scene, number: int = 0, *, small: bool = False) -> str:
    """Another job saves on node 1, and ends; returns its name."""
    local, job = scene.local(1), f"other-{scene.life}-{number}"
    await scene.begin_other(1, job)
    other = Saved(-scene.life, 1, number, small=small)
    write_step(local, 1, scene.ledger.enter(other))
    named = local / f"{job}-s1-n0-w0.meta"
    await scene.until("another job's save to be named", lambda: named.exists() or None)
    return job


async def sharing(scene: Scene) -> None:
    """Another job saves on node 1, ends, and this job comes back."""
    expected = newest(scene)
    await share(scene)
    assert await scene.restore() == expected
    await scene.rest()


async def sharing_more(scene: Scene) -> None:
    """Three other jobs save a little on node 1, one after another, and this job comes back."""
    expected = newest(scene)
    for number in range(3):
        await share(scene, number, small=True)
    assert await scene.restore() == expected
    await scene.rest()


async def parting(scene: Scene) -> None:
    """People forget another job with all that a host has of it: the host has nothing to do with that job any more."""
    expected = newest(scene)
    job = await share(scene)
    assert await scene.restore() == expected
    await saving(scene)  # until then the directory is the other job's
    await scene.order(WishKind.FORGET, job=job, ramdisks=True, force=True)
    await scene.until("the host to leave the job", lambda: job not in scene.jobs(1) or None)
    await scene.rest()


def dying(point: str) -> Act:
    """Let a process die amid something, and stay dead; whoever starts it finds what it left."""

    async def prepare(scene: Scene) -> None:
        scene.arm(point)
        scene.save()
        await scene.death()
        scene.judge()

    return prepare


async def littering(scene: Scene) -> None:
    """All services of a node die amid the emptying of a trash."""
    await scene.kill(node_services(1))
    for number in range(8):
        (scene.local(1) / ".replicator" / "trash" / f"left-{number}").mkdir()


async def reviving(scene: Scene) -> None:
    """Who died amid a save is started again, and the save is committed."""
    await scene.start([state.name for state in scene.supervisor.states if state.code is not None])
    await scene.committed()


STAGES: Final[Mapping[str, Stage]] = {
    "saving": Stage(saving),
    "saving anew": Stage(saving, restarting),
    "backing up": Stage(backing_up),
    "restarting": Stage(restarting),
    "replacing a node": Stage(replacing),
    "losing all nodes": Stage(losing_all, backing_up),
    "corrupting": Stage(corrupting),
    "rotting": Stage(rotting, backing_up),
    "saving again": Stage(saving_again, saving),
    "misspelling": Stage(misspelling),
    "taking back": Stage(taking_back, saving),
    "vanishing": Stage(vanishing),
    "mutating": Stage(mutating),
    "skipping": Stage(skipping),
    "stalling": Stage(stalling),
    "trimming": Stage(trimming),
    "refusing": Stage(refusing, backing_up),
    "asking twice": Stage(asking_twice, backing_up),
    "closing": Stage(closing, opening, patient_uploaders),
    "dozing": Stage(dozing, impatient_coordinators, patient_coordinators),
    "parting": Stage(parting),
    "handing over": Stage(handing_over),
    "rebooting": Stage(rebooting),
    "leaving an order": Stage(leaving_an_order, backing_up),
    "restarting after a wish": Stage(restarting, backing_up),
    "holding": Stage(holding),
    "ordering": Stage(ordering),
    "beginning anew": Stage(beginning_anew),
    "going back": Stage(going_back),
    "forgetting": Stage(forgetting, backing_up),
    "losing its names": Stage(losing_its_names),
    "cutting off": Stage(cutting_off),
    "saving late": Stage(saving_late),
    "saving short": Stage(saving_short),
    "outgrowing": Stage(outgrowing, outgrown),
    "calling off": Stage(calling_off),
    "making room": Stage(making_room(LEAVES), sharing),
    "making more room": Stage(making_room(0), sharing_more),
    "recovering a sweep": Stage(reviving, littering),
    "recovering a naming": Stage(reviving, dying("watcher NameShard 6")),
    "recovering a dropping": Stage(reviving, dying("watcher DropSaves 4")),
    "recovering a copy": Stage(reviving, dying("transfer NameShard 6")),
}
