"""People who run the job: they order restores, hold, forget, and read what trainers say when they fail.

They speak as the commands do: a wish to whoever holds the lease, again and again until `…:wishes` answers it or the
deadline passes; `restore.version` is an object in the bucket.
"""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final

import msgspec

from checkpoint_replicator.backup import FORCED_NAME
from checkpoint_replicator.ids import Host, Incarnation
from checkpoint_replicator.messages import Wish
from checkpoint_replicator.wishes import WishAnswer, WishKind, WishState
from simulation.network import Path
from simulation.process import Process

if TYPE_CHECKING:
    from simulation.training import Training
    from simulation.world import World

__all__ = ["People"]

SHARE: Final = 0.35
"""So many worlds have people who do something."""
PERIOD: Final = 0.5
"""Seconds between two looks of a command."""
SECONDS: Final = 12.0
"""After so long a command gives up; its wish is not taken up any more two seconds before."""
GRACE: Final = 2.0
LOOK: Final = 5.0
"""Seconds between two looks at `status`."""
LAST: Final = 0.8
"""Chance that they order one more restore when all is well again."""
AGAIN: Final = 0.85
"""Chance that the job is started anew once a restore is ordered; it counts at the next start of all in any case."""
BEGIN_ANEW: Final = 0.6
"""Chance that people who read that all is lost order a fresh start."""
NOWHERE: Final = "2001-01-01_00-00"
"""A backup that does not exist: people mistype."""
LOST: Final = "nothing can be restored"
ORDERED: Final = "was ordered"
ODD: Final = FORCED_NAME


class Command:
    """One order, from its first word to its answer."""

    def __init__(self, people: "People", training: "Training", wish: Wish, then: Callable[[], None]) -> None:
        self.wish = wish
        self._people = people
        self._training = training
        self._then = then
        self._end = people.world.now + SECONDS
        self._heard: WishAnswer | None = None
        people.busy += 1
        self._ask(self._begin)

    def _ask(self, there: Callable[[], Callable[[], None]]) -> None:
        """Ask Redis, and when it does not answer once more in a moment."""
        people = self._people

        def failed(_: str) -> None:
            if people.world.now < self._end:
                people.soon(PERIOD, lambda: self._ask(there))
            else:
                self._over(None)

        people.world.redis.ask(people, there, failed, writes=False)

    def _begin(self) -> Callable[[], None]:
        model = self._people.world.redis.model
        until = model.time() + SECONDS - GRACE
        self.wish = msgspec.structs.replace(self.wish, until=until)
        self._training.laws.people.said(self.wish)
        return lambda: self._ask(self._look)

    def _look(self) -> Callable[[], None]:
        model, job = self._people.world.redis.model, self._training.job
        answer = model.wish_answer(job, self.wish.id)
        lease = model.view(job, Host(""), None).lease
        gone = self.wish.kind == WishKind.FORGET and answer is None
        gone = gone and (self._heard is not None or job not in model.jobs())
        return lambda: self._answered(answer, lease.incarnation if lease is not None else None, gone=gone)

    def _answered(self, answer: WishAnswer | None, leader: Incarnation | None, *, gone: bool) -> None:
        people, world = self._people, self._people.world
        if gone:
            world.hits["job forgotten"] += 1
            self._over(None)
            return
        self._heard = answer or self._heard
        if answer is not None and answer.state is not WishState.TAKEN:
            world.hits[f"{self.wish.kind} {answer.state}"] += 1
            self._over(answer)
            return
        if world.now >= self._end:
            world.hits["order not answered"] += 1
            self._over(None)
            return
        coordinator = world.coordinator(leader) if answer is None and leader is not None else None
        if coordinator is not None:
            world.network.send(Path.REPORTS, people, coordinator, partial(coordinator.order, self.wish))
        people.soon(PERIOD, lambda: self._ask(self._look))

    def _over(self, answer: WishAnswer | None) -> None:
        world = self._people.world
        reason = f"{answer.state}: {answer.reason}" if answer is not None else "no answer"
        world.log(self._training.job, f"people: {self.wish.kind} {reason}")
        self._people.busy -= 1
        if answer is not None:
            self._training.laws.people.heard(self.wish, answer)
        if self.wish.kind == WishKind.HOLD and self._people.over:
            self._people.release(self._training)
        self._then()


class People(Process):
    """Whoever may run a command.

    Attributes:
        busy: commands that are not answered yet.
        over: they order nothing new.
        troubles: what they did, in order, as faults are named.
    """

    def __init__(self, world: "World") -> None:
        super().__init__(world, "people", Host("desk"), 0.0)
        self.busy = 0
        self.troubles: list[str] = []
        self._chance = chance = Random(f"{world.seed} people")
        self._act_at_all = chance.random() < SHARE
        self._gap = chance.choice((3.0, 6.0))
        self._without: frozenset[str] = frozenset()
        self._number = 0
        self.over = False
        self._kinds: list[tuple[Callable[[Training], None], int]] = [
            (self._restore_save, 4),
            (self._restore_backup, 3),
            (self._begin_anew, 1),
            (self._withdraw, 1),
            (self._write_file, 3),
            (self._hold, 4),
            (self._release, 2),
            (self._forget, 1),
            (self._forget_ramdisks, 2),
        ]

    def begin(self, without: frozenset[str]) -> None:
        """Let them act for a while."""
        self._without = without
        if self._act_at_all:
            self.start()
            self._next()

    def end(self) -> None:
        """They end what they began: nothing stays held, no job stays down for them."""
        self.over = True
        if not self.running:
            return
        for training in self.world.trainings.values():
            if training.laws.people.may_hold:
                self.release(training)
        self._see_holds()
        self._number += 1
        self._chance = chance = Random(f"{self.world.seed} people last")
        kind = chance.choice(
            (self._restore_save, self._restore_save, self._restore_backup, self._begin_anew, self._write_file)
        )
        name = f"p{self._number}:{kind.__name__.strip('_')}"
        if chance.random() < LAST and name not in self._without:
            self.troubles.append(name)
            kind(chance.choice(list(self.world.trainings.values())))

    def _see_holds(self) -> None:
        """Who reads `status` ends a hold too that stands again after Redis lost that it had ended."""
        for training in self.world.trainings.values():
            if self.running and self.world.redis.model.snapshot(training.job).hashes.get("hold"):
                self.world.hits["hold found and ended"] += 1
                self.release(training)
        self.soon(LOOK, self._see_holds)

    def release(self, training: "Training") -> None:
        """End a hold for good."""

        def again() -> None:
            if training.laws.people.may_hold:
                self.release(training)

        self._order(training, WishKind.RESUME, then=again)

    def _next(self) -> None:
        """What and when is the number's alone."""
        self._number += 1
        self._chance = chance = Random(f"{self.world.seed} people {self._number}")
        kinds, weights = zip(*self._kinds, strict=True)
        kind = chance.choices(kinds, weights)[0]

        def act() -> None:
            if self.over:
                return
            name = f"p{self._number}:{kind.__name__.strip('_')}"
            if name not in self._without:
                training = chance.choice(list(self.world.trainings.values()))
                self.troubles.append(name)
                self.world.log(training.job, f"people: {name}")
                kind(training)
            self._next()

        self.world.timeline.after(chance.expovariate(1 / self._gap), act)

    def _order(
        self, training: "Training", kind: WishKind, then: Callable[[], None] | None = None, **what: object
    ) -> None:
        wish = msgspec.structs.replace(Wish(id=self.world.new_id(), kind=kind, until=0.0), **what)
        Command(self, training, wish, then or (lambda: None))

    # ---- acts

    def _restart(self, training: "Training") -> None:
        if self._chance.random() < AGAIN:
            training.restart("people ordered a restore")

    def _restore_save(self, training: "Training") -> None:
        """One that stands somewhere, or was committed once, whole or not."""
        held = {t.save for n in self.world.hosts.values() for t in n.disk.sidecars if t.job == training.job}
        saves = sorted(held | training.laws.committed.keys())
        if saves:
            save = self._chance.choice(saves[-6:])
            self._order(training, WishKind.RESTORE, lambda: self._restart(training), save=save)

    def _restore_backup(self, training: "Training") -> None:
        names = self._backups(training)
        if names:
            name = self._chance.choice(names)
            self._order(training, WishKind.RESTORE, lambda: self._restart(training), backup=name)

    def _begin_anew(self, training: "Training") -> None:
        self._order(training, WishKind.RESTORE, lambda: self._restart(training), none=True)

    def _withdraw(self, training: "Training") -> None:
        self._order(training, WishKind.WITHDRAW)

    def _write_file(self, training: "Training") -> None:
        names = self._backups(training)
        if not names or self.world.root is None:
            return
        name = NOWHERE if self._chance.random() < 0.1 else self._chance.choice(names)
        self._file(training, name)
        self._restart(training)

    def _file(self, training: "Training", name: str) -> None:
        store, path = self.world.bucket.store, f"{training.job}/{FORCED_NAME}"
        training.laws.people.wrote(name)
        if name:
            store.objects[path] = f"{name}\n".encode()
            store.since[path] = self.world.now
        else:
            store.objects.pop(path, None)
        self.world.log(training.job, f"people: {FORCED_NAME} says {name!r}")

    def _backups(self, training: "Training") -> list[str]:
        found = []
        for path, text in self.world.bucket.store.objects.items():
            job, _, rest = path.partition("/")
            name, _, leaf = rest.partition("/")
            if job == training.job and leaf == "MANIFEST.json" and b"abandoned" not in text:
                found.append(name)
        return sorted(found)

    def _hold(self, training: "Training") -> None:
        self._order(training, WishKind.HOLD, reason="people look")

    def _release(self, training: "Training") -> None:
        self._order(training, WishKind.RESUME)

    def _forget(self, training: "Training") -> None:
        self._end(training, ramdisks=False)

    def _forget_ramdisks(self, training: "Training") -> None:
        self._end(training, ramdisks=True)

    def _end(self, training: "Training", *, ramdisks: bool) -> None:
        """End the trainers, have the job forgotten, and begin it again some time."""
        if training.stopped:
            return
        training.stop("people forget it")

        def begin() -> None:
            training.laws.people.let_all_go()
            training.stopped = False
            training.restart("people begin it again")

        self.soon(3.0, lambda: self._order(training, WishKind.FORGET, then=begin, ramdisks=ramdisks, force=True))

    # ---- reading

    def read(self, training: "Training", why: str) -> None:
        """A trainer ended and says why: who ordered what cannot be done takes it back, who lost all begins anew."""
        if not self.running:
            return
        if ORDERED in why or f"{FORCED_NAME}:" in why:
            self.world.hits["order that cannot be done told"] += 1
            self._file(training, "")
            self._order(training, WishKind.WITHDRAW)
        elif LOST in why and self._chance.random() < BEGIN_ANEW:
            self.world.hits["fresh start ordered after a loss"] += 1
            self._order(training, WishKind.RESTORE, none=True)
