"""Transfers of several nodes on paper: their machines, a model of their disks, and a network that a test rules.

A leaf is one token. Its size is 1 MiB on paper, so that windows and messages are those of real shards.
"""

from collections import deque
from typing import NamedTuple

from checkpoint_replicator.ids import Address, Epoch, Host, Incarnation, Job, Rank, Step, Worker, new_id
from checkpoint_replicator.machine import Ticked
from checkpoint_replicator.messages import (
    Copy,
    Fetch,
    FetchOrder,
    Leaves,
    Message,
    NotYet,
    Offer,
    OfferOrder,
    Party,
    Run,
    Service,
    TransferOrders,
    TransferReport,
    Want,
)
from checkpoint_replicator.records import Peer
from checkpoint_replicator.save import Save, ShardKey, Tag
from checkpoint_replicator.shape import Shape
from checkpoint_transfer import effects as do
from checkpoint_transfer import receiving
from checkpoint_transfer.leaves import LeafSet, leaves_in
from checkpoint_transfer.machine import Limits, TransferMachine
from checkpoint_transfer.patience import Patience

MIB = 1 << 20
JOB = Job("job")
BAD = b"garbage"


class Posted(NamedTuple):
    """A message under way."""

    sender: Party
    receiver: Party
    message: do.Wire
    body: tuple[bytes, ...]


def address_of(number: int) -> Address:
    """Return the address of a shard of the model."""
    return Address(f"{number:064x}")


def tag_of(number: int, leaves: int) -> Tag:
    """Return the tag of a shard of the model."""
    save = Save(Epoch(1), Step(number))
    return Tag(JOB, save, Shape(2, 1, 1, "pytorch"), ShardKey(Rank(0), Worker(0)), address_of(number), leaves * MIB)


def token(address: Address, leaf: int) -> bytes:
    """Return the true bytes of a leaf."""
    return b"%s/%d" % (address[-6:].encode(), leaf)


class PaperDisk:
    """What stands on a node's ramdisk; outlives its transfer."""

    def __init__(self) -> None:
        self.shards: dict[Address, list[bytes]] = {}
        self.partials: dict[Address, dict[int, bytes]] = {}
        self.leaves: dict[Address, int] = {}
        self.named: set[tuple[Address, Tag]] = set()
        self.room = 1 << 40
        self.stored: dict[Address, int] = {}
        """Leaves written, by shard."""

    def put(self, tag: Tag, leaves: int) -> None:
        self.shards[tag.address] = [token(tag.address, leaf) for leaf in range(leaves)]
        self.leaves[tag.address] = leaves
        self.named.add((tag.address, tag))

    def wipe(self) -> None:
        self.__init__()  # type: ignore[misc]


class PaperNode:
    """One node in one life."""

    def __init__(self, net: "Net", name: str, disk: PaperDisk, limits: Limits, patience: Patience) -> None:
        self.net = net
        self.disk = disk
        incarnation = Incarnation(new_id())
        self.peer = Peer(host=Host(name), incarnation=incarnation, control=f"c:{name}", leaves=(f"l:{name}",))
        self.me = Party(host=Host(name), service=Service.TRANSFER, incarnation=incarnation)
        self.watcher = Party(host=Host(name), service=Service.WATCHER, incarnation=Incarnation("w"))
        local = Peer(host=Host(name), incarnation=incarnation, control="local", leaves=("local",))
        self.machine = TransferMachine(self.peer, local, limits, patience)
        self.answers: deque[do.TransferEvent] = deque()
        self.report: TransferReport | None = None
        self.told: list[Message] = []
        self.open: set[Address] = set()
        self.offers: tuple[OfferOrder, ...] = ()
        self.fetches: tuple[FetchOrder, ...] = ()
        self.reserve = 0
        self.trainer = False
        self.trimmed: list[do.TrimPartials] = []
        self.opened: list[do.OpenPartial] = []
        self._version = 0

    def look(self) -> None:
        """Find what stood here before this life, as a transfer does when it begins."""
        self.take(do.ShardsFound(tuple(sorted(self.disk.shards))))
        self.settle()

    def order(self) -> None:
        """Let the watcher say what it wants."""
        self._version += 1
        orders = TransferOrders(
            version=self._version,
            offers=self.offers,
            fetches=self.fetches,
            reserve=self.reserve,
            trainer=self.trainer,
        )
        self.take(do.MessageCame(self.watcher, JOB, orders))
        self.settle()

    def take(self, event: do.TransferEvent | Ticked) -> None:
        """Play an event, and what the disk answers to it."""
        for effect in self.machine.handle(event, self.net.now):
            self.perform(effect)

    def settle(self) -> None:
        """Let the disk's threads end what they do."""
        while self.answers:
            self.take(self.answers.popleft())

    def perform(self, effect: do.TransferEffect) -> None:
        disk = self.disk
        match effect:
            case do.Tell(peer, _, message):
                self.told.append(message)
                self.net.post(self, peer, message, ())
            case do.TellUploader(_, message):
                self.net.ask_uploader(self, message)
            case do.SendOffer(peer, _, address, tags):
                if address in disk.leaves:
                    offer = Offer(tags=tags, answer_to=self.peer, address=address)
                    self.net.post(self, peer, offer, (b"%d" % disk.leaves[address],))
                else:
                    self.answers.append(do.OfferUnsent(address, "is not here"))
            case do.ServeLeaves(peer, _, address, runs, size):
                try:
                    body = tuple(b",".join(self.read(address, leaf) for leaf in leaves_in((run,))) for run in runs)
                except LookupError:
                    self.answers.append(do.LeavesUnsent(address, peer, runs, size, "is gone", gone=True))
                else:
                    self.net.post(self, peer, Leaves(address=address, runs=runs), body)
            case do.OpenShard(address):
                if address in disk.shards:
                    self.open.add(address)
                    self.answers.append(do.ShardOpened(address, [MIB] * disk.leaves[address]))
                else:
                    self.answers.append(do.ShardAbsent(address, "is not here"))
            case do.Close(address):
                self.open.discard(address)
            case do.CheckShard(address):
                leaves = disk.shards.get(address, [])
                bad = [leaf for leaf, found in enumerate(leaves) if found != token(address, leaf)]
                self.answers.append(do.ShardChecked(address, f"{len(bad)} leaves differ" if bad else ""))
            case do.OpenPartial(address, number):
                self.opened.append(effect)
                self.answers.append(do.FetchMoved(address, number, self.open_partial(effect)))
            case do.StoreLeaves(address, number):
                self.answers.append(do.FetchMoved(address, number, self.store(effect)))
            case do.NameShard(address, number):
                self.answers.append(do.FetchMoved(address, number, self.name(effect)))
            case do.ForgetPeer():
                pass
            case do.TrimPartials():
                self.trimmed.append(effect)
            case do.Report(report):
                self.report = report

    def read(self, address: Address, leaf: int) -> bytes:
        if address in self.disk.shards:
            return self.disk.shards[address][leaf]
        return self.disk.partials[address][leaf]

    def open_partial(self, effect: do.OpenPartial) -> receiving.ReceiverEvent:
        disk, address = self.disk, effect.address
        if address in disk.shards:
            return receiving.ShardStood()
        if address not in disk.partials:
            if effect.tree is None:
                return receiving.PartialAbsent()
            if bytes(effect.tree[0]) == BAD:
                assert effect.source is not None
                return receiving.TreeSpoiled(effect.source, "is no tree")
            size = int(bytes(effect.tree[0])) * MIB
            if size + (effect.reserve.size if effect.reserve else 0) > disk.room:
                lacking = size + (effect.reserve.size if effect.reserve else 0) - disk.room
                return receiving.RoomMissing(f"{size} bytes do not fit", lacking)
            disk.partials[address] = {}
            disk.leaves[address] = int(bytes(effect.tree[0]))
        leaves = disk.leaves[address]
        have = LeafSet(bytes(leaf in disk.partials[address] for leaf in range(leaves)))
        return receiving.PartialOpened([MIB] * leaves, have)

    def store(self, effect: do.StoreLeaves) -> receiving.ReceiverEvent:
        good: list[int] = []
        bad: list[int] = []
        for run, frame in zip(effect.runs, effect.body, strict=True):
            tokens = bytes(frame).split(b",")
            for leaf, found in zip(leaves_in((run,)), tokens, strict=True):
                if found == token(effect.address, leaf):
                    self.disk.partials[effect.address][leaf] = found
                    self.disk.stored[effect.address] = self.disk.stored.get(effect.address, 0) + 1
                    good.append(leaf)
                else:
                    bad.append(leaf)
        return receiving.LeavesStored(effect.source, tuple(good), tuple(bad), effect.size)

    def name(self, effect: do.NameShard) -> receiving.ReceiverEvent:
        disk, address = self.disk, effect.address
        if address in disk.partials:
            partial = disk.partials.pop(address)
            disk.shards[address] = [partial[leaf] for leaf in range(disk.leaves[address])]
        if address not in disk.shards:
            return receiving.NamingFailed("is not here")
        for naming in effect.namings:
            disk.named |= {(address, tag) for tag in naming.tags}
        return receiving.ShardNamed()

    # ---- for tests

    def copy(self, number: int, host: str) -> Copy:
        return next(
            copy for copy in self.machine.report.copies if (copy.address, copy.host) == (address_of(number), host)
        )

    def fetch(self, number: int) -> Fetch:
        return next(fetch for fetch in self.machine.report.fetches if fetch.address == address_of(number))

    def holds(self, number: int) -> bool:
        """Whether the shard stands here, byte for byte."""
        address = address_of(number)
        found = self.disk.shards.get(address)
        return found is not None and found == [token(address, leaf) for leaf in range(self.disk.leaves[address])]


class Net:
    """The nodes and the messages between them."""

    def __init__(self, *names: str, limits: Limits | None = None, patience: Patience | None = None) -> None:
        self.now = 1000.0
        self.limits = limits or Limits()
        self.patience = patience or Patience()
        self.posted: list[Posted] = []
        self.backup: dict[str, set[Address]] = {}
        self.spoiled: set[tuple[Address, int]] = set()
        """Leaves that every backup gives with a bit error."""
        self.disks = {name: PaperDisk() for name in names}
        self.nodes: dict[str, PaperNode] = {}
        for name in names:
            self.start(name)

    def start(self, name: str) -> PaperNode:
        """Start a node's transfer, or start it anew."""
        self.nodes[name] = PaperNode(self, name, self.disks[name], self.limits, self.patience)
        return self.nodes[name]

    def post(self, node: PaperNode, to: Peer, message: do.Wire, body: tuple[bytes, ...]) -> None:
        receiver = Party(host=to.host, service=Service.TRANSFER, incarnation=to.incarnation)
        self.posted.append(Posted(node.me, receiver, message, body))

    def ask_uploader(self, node: PaperNode, want: Want) -> None:
        """Let the node's uploader answer out of the backup, one leaf a message."""
        uploader = Party(host=node.peer.host, service=Service.UPLOADER, incarnation=Incarnation("u"))
        if want.address not in self.backup.get(want.backup, set()):
            message: do.Wire = NotYet(address=want.address, runs=want.runs, gone=True, reason="is not in the backup")
            self.posted.append(Posted(uploader, node.me, message, ()))
            return
        leaves = next(disk.leaves[want.address] for disk in self.disks.values() if want.address in disk.leaves)
        if want.tree:
            offer = Offer(tags=(), answer_to=want.answer_to, address=want.address)
            self.posted.append(Posted(uploader, node.me, offer, (b"%d" % leaves,)))
        for leaf in leaves_in(want.runs):
            message = Leaves(address=want.address, runs=(Run(first=leaf, count=1),))
            found = BAD if (want.address, leaf) in self.spoiled else token(want.address, leaf)
            self.posted.append(Posted(uploader, node.me, message, (found,)))

    def deliver(self, place: int = 0) -> None:
        """Deliver one message and let the disk settle; one for a process that is no more is dropped."""
        posted = self.posted.pop(place)
        self.hand(posted)

    def hand(self, posted: Posted) -> None:
        node = self.nodes[posted.receiver.host]
        if posted.receiver.incarnation != node.me.incarnation:
            return
        node.take(do.MessageCame(posted.sender, JOB, posted.message, posted.body))
        node.settle()

    def settle(self, most: int = 100_000) -> None:
        """Deliver until nothing is under way."""
        for node in self.nodes.values():
            node.settle()
        for _ in range(most):
            if not self.posted:
                return
            self.deliver()
        raise AssertionError("messages go back and forth for ever")

    def tick(self) -> None:
        for node in self.nodes.values():
            if node.machine.next_deadline() <= self.now:
                node.take(Ticked())
            node.settle()

    def wait(self, seconds: float) -> None:
        """Let time pass without faults; watchers repeat their orders each second."""
        end = self.now + seconds
        self.settle()
        for _ in range(100_000):
            deadline = min(node.machine.next_deadline() for node in self.nodes.values())
            if deadline > end:
                self.now = end
                return
            self.now = max(self.now, deadline)
            self.tick()
            self.settle()
        raise AssertionError("a machine wants to be asked for ever")


def pair(leaves: int) -> tuple[Net, PaperNode, PaperNode]:
    """Two nodes, `a` and `b`; the first holds shard 1 of so many leaves."""
    net = Net("a", "b")
    a, b = net.nodes.values()
    a.disk.put(tag_of(1, leaves), leaves)
    return net, a, b


def offer(node: PaperNode, number: int, leaves: int, *to: PaperNode) -> None:
    """Order a node to offer a shard, beside what it was ordered of other shards before."""
    tag = tag_of(number, leaves)
    others = tuple(order for order in node.offers if order.tag != tag)
    node.offers = (*others, OfferOrder(tag=tag, to=tuple(peer.peer for peer in to)))
    node.order()


def fetch(node: PaperNode, number: int, leaves: int, *holders: PaperNode, backup: str | None = None) -> None:
    """Order a node to fetch a shard, beside what it was ordered of other shards before."""
    tag = tag_of(number, leaves)
    others = tuple(order for order in node.fetches if tag not in order.tags)
    order = FetchOrder(tags=(tag,), holders=tuple(peer.peer for peer in holders), backup=backup)
    node.fetches = (*others, order)
    node.order()
