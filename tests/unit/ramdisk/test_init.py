from checkpoint_replicator import ramdisk


def test_everything_that_services_need_is_here() -> None:
    assert all(hasattr(ramdisk, name) for name in ramdisk.__all__)
