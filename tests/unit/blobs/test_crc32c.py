from checkpoint_replicator.blobs.crc32c import Crc32c, crc32c_of


def test_the_sum_is_written_as_cloud_storage_writes_it() -> None:
    assert crc32c_of(b"123456789") == "4waSgw=="
    assert crc32c_of(b"") == "AAAAAA=="


def test_a_running_sum_equals_that_of_the_whole() -> None:
    total = Crc32c()
    total.update(b"1234")
    total.update(b"")
    total.update(b"56789")
    assert total.text == crc32c_of(b"123456789")
