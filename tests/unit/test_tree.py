import pytest
from blake3 import blake3

from checkpoint_replicator import leaf
from checkpoint_replicator.errors import ProtocolError
from checkpoint_replicator.ids import is_address
from checkpoint_replicator.tree import MAX_DEPTH, MAX_SIZE, Directory, File, Tree

HEADER = b"ckpt-tree 1 blake3 1048576\n"
A = leaf.digest(b"a" * 10)
B = leaf.digest(b"b" * leaf.LEAF_SIZE)


def hex_of(*digests: bytes) -> bytes:
    return b",".join(digest.hex().encode() for digest in digests)


def test_the_text_lists_directories_and_files_by_path_bytes() -> None:
    tree = Tree(
        [
            File(b"b", leaf.LEAF_SIZE + 10, B + A),
            Directory(b"a"),
            File(b"a/empty", 0, b""),
            File(b"a-b", 10, A),
            Directory(b"z"),
        ]
    )
    assert tree.encode() == HEADER + b"".join(
        (
            b"d a\n",
            b"f 10 " + hex_of(A) + b" a-b\n",
            b"f 0 - a/empty\n",
            b"f 1048586 " + hex_of(B, A) + b" b\n",
            b"d z\n",
        )
    )
    assert Tree.parse(tree.encode()) == tree


def test_the_address_is_the_blake3_of_the_text() -> None:
    tree = Tree([File(b"x", 10, A)])
    assert tree.address == "D" + blake3(tree.encode()).hexdigest()
    assert is_address(tree.address)


def test_a_single_file_has_an_address_without_the_d() -> None:
    tree = Tree([File(b".", 10, A)])
    assert not tree.is_directory
    assert tree.address == blake3(tree.encode()).hexdigest()
    assert Tree.parse(tree.encode()).address == tree.address


def test_an_empty_directory_is_the_header_alone() -> None:
    tree = Tree([])
    assert tree.encode() == HEADER
    assert tree.is_directory
    assert (tree.size, tree.leaves) == (0, 0)
    assert Tree.parse(HEADER).address.startswith("D")


def test_odd_bytes_of_a_path_are_percent_encoded() -> None:
    name = b"new\nline %41 \xff+"
    tree = Tree([File(name, 10, A)])
    assert tree.encode().endswith(b" new%0Aline%20%2541%20%FF%2B\n")
    assert Tree.parse(tree.encode()).files[0].path == name


def test_leaves_are_numbered_through_all_files() -> None:
    tree = Tree([File(b"a", leaf.LEAF_SIZE + 10, B + A), File(b"b", 0, b""), File(b"c", 10, A)])
    assert tree.leaves == 3
    assert tree.leaf(0) == (b"a", 0, leaf.LEAF_SIZE, B)
    assert tree.leaf(1) == (b"a", leaf.LEAF_SIZE, 10, A)
    assert tree.leaf(2) == (b"c", 0, 10, A)
    assert tree.leaves_of(b"a") == range(2)
    assert tree.leaves_of(b"b") == range(2, 2)
    assert tree.leaves_of(b"c") == range(2, 3)
    assert tree.leaves_of(b"no such") == range(0)
    assert tree.size == leaf.LEAF_SIZE + 20


@pytest.mark.parametrize("number", [-1, 1, 10**9])
def test_a_leaf_that_is_not_there_is_refused(number: int) -> None:
    with pytest.raises(ProtocolError, match="expected 0 to 0"):
        Tree([File(b"a", 10, A)]).leaf(number)


F = b"f 10 " + hex_of(A) + b" "


@pytest.mark.parametrize(
    "body",
    [
        F + b"/a\n",
        F + b"../a\n",
        F + b"a/../b\n",
        F + b"..\n",
        F + b"./a\n",
        b"d .\n",
        F + b".\n" + F + b"a\n",
        F + b"\n",
        F + b"a/b\n",
        F + b"a\n" + F + b"a\n",
        F + b"a\nd a\n",
        F + b"a\n" + F + b"a/b\n",
        F + b"b\n" + F + b"a\n",
        b"d a\n" + F + b"a//b\n",
        b"d a/\n",
        F + b"%00\n",
        F + b"a%2Fb\n",
        F + b"%61\n",
        F + b"%ff\n",
        F + b"%\n",
        F + b"a+b\n",
        F + b"a",
        F + b"a\n\n",
        F + b"a b\n",
        b"F 10 " + hex_of(A) + b" a\n",
        b"f 010 " + hex_of(A) + b" a\n",
        b"f +10 " + hex_of(A) + b" a\n",
        b"f -1 - a\n",
        b"f 10 - a\n",
        b"f 0 " + hex_of(A) + b" a\n",
        b"f 10 " + hex_of(A, A) + b" a\n",
        b"f 10 " + hex_of(A).upper() + b" a\n",
        b"f 10 " + hex_of(A)[:-1] + b" a\n",
        b"f 10 " + hex_of(A)[:-2] + b" a\n",
        b"f 10 " + hex_of(A) + b", a\n",
        b"f 10 \xff\xff a\n",
        b"f 10 " + b"xx" * 32 + b" a\n",
        b"f %d - a\n" % (MAX_SIZE + 1),
        b"f " + b"9" * 5000 + b" - a\n",
        "f ٣ - a\n".encode(),
        F + b"x" * 256 + b"\n",
        b"d " + b"x/" * 3000 + b"x\n",
        b"d " + b"/".join([b"x"] * (MAX_DEPTH + 1)) + b"\n",
        b"d a\r\n",
        b"l a\n",
    ],
)
def test_s73_what_is_not_canonical_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        Tree.parse(HEADER + body)


@pytest.mark.parametrize("text", [b"", b"ckpt-tree 2 blake3 1048576\n", b"ckpt-tree 1 blake3 4096\n", HEADER[:-1]])
def test_another_header_is_refused(text: bytes) -> None:
    with pytest.raises(ProtocolError):
        Tree.parse(text)


def test_a_text_beyond_the_limit_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("checkpoint_replicator.tree.MAX_TREE", 30)
    with pytest.raises(ProtocolError, match="expected at most 30"):
        Tree.parse(HEADER + F + b"a\n")


def test_too_many_entries_are_refused_before_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("checkpoint_replicator.tree.MAX_ENTRIES", 2)
    assert len(Tree.parse(HEADER + b"d a\nd b\n").entries) == 2
    with pytest.raises(ProtocolError, match="3 entries"):
        Tree.parse(HEADER + b"d a\nd b\nd c\n")


def test_many_files_that_are_too_large_together_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("checkpoint_replicator.tree.MAX_SIZE", 15)
    with pytest.raises(ProtocolError, match="at most 15 in all"):
        Tree([File(b"a", 10, A), File(b"b", 10, A)])
