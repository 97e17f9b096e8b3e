import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint_replicator.quote import SHOWN, quote


@pytest.mark.parametrize("text", ["", "a reason", "Ürümqi 乌鲁木齐", "a 'quoted' \\ word"])
def test_a_plain_text_stays_as_it_is(text: str) -> None:
    assert quote(text) == text


def test_line_breaks_nuls_and_bytes_that_are_no_utf8_are_spelled_out() -> None:
    assert quote("one\ntwo\r\0" + os.fsdecode(b"\xff")) == "one\\ntwo\\r\\x00\\udcff"


def test_a_long_text_is_cut_and_says_how_long_it_was() -> None:
    assert quote("x" * 1000, 3) == "xxx… (1000 characters)"
    assert len(quote("x" * (1 << 20))) < SHOWN + 30


@given(st.text(st.characters(), max_size=400))
def test_whatever_is_quoted_can_be_written_in_one_line(text: str) -> None:
    found = quote(text)
    assert len(found.encode().splitlines()) <= 1
    assert found.isprintable()
