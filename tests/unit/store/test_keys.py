from checkpoint_replicator.ids import Host, Job
from checkpoint_replicator.store.keys import host_key, job_key


def test_the_braces_keep_all_keys_of_a_job_in_one_cluster_slot() -> None:
    assert job_key(Job("llama"), "step:1.3") == "ckpt:{llama}:step:1.3"


def test_a_host_has_a_key_of_its_own() -> None:
    assert host_key(Host("node-0")) == "ckpt:host:node-0"
