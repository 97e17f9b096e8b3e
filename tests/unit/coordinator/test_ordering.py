"""What hosts are ordered; missing copies are in `test_replication`."""

import json

from support.coordination import restored_pair


def test_every_host_is_told_its_peers_with_the_release() -> None:
    bench = restored_pair()
    orders = {host: json.loads(text) for host, text in bench.hashes()["orders"].items()}
    assert [peer["host"] for peer in orders["node-0"]["peers"]] == ["node-1"]
    assert [peer["host"] for peer in orders["node-1"]["peers"]] == ["node-0"]
