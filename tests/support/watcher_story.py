"""Words of the watcher's stories: whose saves, which decisions."""

from checkpoint_replicator.fence import Stamp
from checkpoint_replicator.ids import Epoch, Host, Incarnation, Job, Rank, SessionId, Step, Worker
from checkpoint_replicator.records import BackupOrder, KeepList, Orders, Outcome, Peer, ShardPlan
from checkpoint_replicator.save import Save, ShardKey, Tag
from checkpoint_replicator.session import SessionState
from checkpoint_replicator.shape import Shape
from support.watcher_shell import ModelRamdisk, WatcherShell, yaml_text

JOB = Job("j")
SHAPE = Shape(2, 1, 1, "pytorch")
PEER = Peer(host=Host("node-1"), incarnation=Incarnation("t1"), control="tcp://b:1", leaves=("tcp://b:2",))
SELF = Peer(host=Host("node-0"), incarnation=Incarnation("t0"), control="tcp://a:1", leaves=("tcp://a:2",))


def save(step: int, epoch: int = 1) -> Save:
    return Save(Epoch(epoch), Step(step))


def tag(step: int, *, epoch: int = 1, content: str = "", rank: int = 0, worker: int = 0, shape: Shape = SHAPE) -> Tag:
    content = content or f"{step}/{rank}/{worker}"
    key = ShardKey(Rank(rank), Worker(worker))
    return Tag(JOB, save(step, epoch), shape, key, ModelRamdisk.address(content), len(content))


def keep(
    upto: int, *kept: int, drop: tuple[int, ...] = (), epoch: int = 1, counter: int = 2, token: int = 1
) -> KeepList:
    return KeepList(
        stamp=Stamp(token, Epoch(epoch), counter),
        upto=save(upto, epoch),
        keep=tuple(save(step, epoch) for step in kept),
        drop=tuple(save(step, epoch) for step in drop),
    )


def open_session(shell: WatcherShell, **keys: object) -> SessionId:
    shell.disk.write_yaml(yaml_text(**keys))  # type: ignore[arg-type]
    shell.scan()
    record = shell.disk.session
    assert record is not None
    return record.id


def run_fresh(shell: WatcherShell, **keys: object) -> SessionId:
    """Bring a session to its empty markers."""
    session = open_session(shell, **keys)
    shell.read(shell.view_of(outcome=Outcome.NONE, released=True))
    assert shell.machine.running
    return session


def state(shell: WatcherShell) -> SessionState:
    assert shell.disk.session is not None
    return shell.disk.session.state


def orders(*, peers: tuple[Peer, ...] = (), backup: tuple[BackupOrder, ...] = ()) -> Orders:
    return Orders(stamp=Stamp(1, Epoch(1), 1), peers=peers, backup=backup)


def plan(*tags: Tag, holders: tuple[Peer, ...] = (PEER,)) -> tuple[ShardPlan, ...]:
    return tuple(ShardPlan(key=one.key, tag=one, holders=holders) for one in tags)


def restoring(shell: WatcherShell, *tags: Tag, released: bool = False, counter: int = 1) -> None:
    shell.read(
        shell.view_of(
            outcome=Outcome.RESTORE, save=tags[0].save, shards=plan(*tags), released=released, number=2, counter=counter
        )
    )
