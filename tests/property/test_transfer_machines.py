"""Transfers of three nodes under a network that loses, repeats, delays and garbles, and processes that die.

After every step: nobody has more unacknowledged bytes than credit and budget allow, and nothing stands under a name
that is not byte for byte the shard. When the faults end, every order ends: stored, and fetched.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from checkpoint_replicator.machine import Ticked
from checkpoint_replicator.messages import CopyState, FetchOrder, FetchState, OfferOrder
from checkpoint_transfer.machine import Limits
from support.transfer_net import BAD, MIB, Net, address_of, tag_of

NAMES = ("a", "b", "c")
LIMITS = Limits(window=8 * MIB, incoming=12 * MIB, outgoing=12 * MIB, serve=6 * MIB)


class Transfers(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net(*NAMES, limits=LIMITS)
        self.leaves = {1: 0, 2: 0}

    @initialize(one=st.integers(0, 40), two=st.integers(1, 20))
    def order(self, one: int, two: int) -> None:
        """`a` replicates shard 1 to `b` and `c`; `c` fetches shard 2 from `a` and `b`."""
        self.leaves = {1: one, 2: two}
        self.net.disks["a"].put(tag_of(1, one), one)
        for name in ("a", "b"):
            self.net.disks[name].put(tag_of(2, two), two)
        self.orders()

    def orders(self) -> None:
        a, b, c = (self.net.nodes[name] for name in NAMES)
        a.offers = (OfferOrder(tag=tag_of(1, self.leaves[1]), to=(b.peer, c.peer)),)
        c.fetches = (FetchOrder(tags=(tag_of(2, self.leaves[2]),), holders=(a.peer, b.peer)),)
        for node in (a, b, c):
            node.order()

    @precondition(lambda self: self.net.posted)
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        self.net.deliver(data.draw(st.integers(0, len(self.net.posted) - 1)))

    @precondition(lambda self: self.net.posted)
    @rule(count=st.integers(1, 20))
    def deliver_in_order(self, count: int) -> None:
        for _ in range(min(count, len(self.net.posted))):
            self.net.deliver()

    @precondition(lambda self: self.net.posted)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        self.net.posted.pop(data.draw(st.integers(0, len(self.net.posted) - 1)))

    @precondition(lambda self: self.net.posted)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        self.net.posted.append(self.net.posted[data.draw(st.integers(0, len(self.net.posted) - 1))])

    @precondition(lambda self: any(posted.body for posted in self.net.posted))
    @rule(data=st.data())
    def garble(self, data: st.DataObject) -> None:
        full = [place for place, posted in enumerate(self.net.posted) if posted.body]
        place = data.draw(st.sampled_from(full))
        posted = self.net.posted[place]
        frame = data.draw(st.integers(0, len(posted.body) - 1))
        tokens = posted.body[frame].split(b",")
        tokens[data.draw(st.integers(0, len(tokens) - 1))] = BAD
        body = (*posted.body[:frame], b",".join(tokens), *posted.body[frame + 1 :])
        self.net.posted[place] = posted._replace(body=body)

    @rule(seconds=st.sampled_from([0.05, 0.3, 1.1, 2.1, 6.0, 11.0]))
    def pass_time(self, seconds: float) -> None:
        self.net.now += seconds
        self.net.tick()

    @rule(name=st.sampled_from(NAMES))
    def restart(self, name: str) -> None:
        self.net.start(name)
        self.orders()

    @rule()
    def repeat_orders(self) -> None:
        self.orders()

    @invariant()
    def credit_and_budgets_are_respected(self) -> None:
        for node in self.net.nodes.values():
            machine = node.machine
            in_flight = 0
            for serve in machine._serving._serves.values():
                for _, holder in serve.holders.values():
                    assert holder.in_flight_bytes <= max(holder.credit, 0)
                    assert holder.in_flight_bytes <= LIMITS.serve
                    in_flight += holder.in_flight_bytes
            assert in_flight == machine._outgoing.used <= LIMITS.outgoing
            asked = 0
            for fetch in machine._fetches.values():
                supplies = fetch.receiver._supplies.values()
                asked += sum(supply.asked_bytes for supply in supplies) + fetch.receiver._storing_bytes
            assert asked == machine._incoming.used <= LIMITS.incoming

    @invariant()
    def nothing_wrong_stands_under_a_name(self) -> None:
        for node in self.net.nodes.values():
            for number in (1, 2):
                if address_of(number) in node.disk.shards:
                    assert node.holds(number)

    def teardown(self) -> None:
        """The faults end; so everything must come to its end."""
        self.orders()
        self.net.wait(120)
        a, b, c = (self.net.nodes[name] for name in NAMES)
        assert b.holds(1)
        assert c.holds(1)
        assert [a.copy(1, peer).state for peer in ("b", "c")] == [CopyState.STORED] * 2
        assert c.holds(2)
        assert c.fetch(2).state is FetchState.DONE
        for node in (a, b, c):
            node.take(Ticked())
            assert (node.machine._incoming.used, node.machine._outgoing.used) == (0, 0)
            assert node.machine._fetches.keys() <= {address_of(2)}


Transfers.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestTransfers = Transfers.TestCase
