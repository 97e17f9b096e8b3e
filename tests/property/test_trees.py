"""What is written is read back, garbage ends as a ProtocolError, and the disk agrees with a plain reference."""

import os
import tempfile
from pathlib import Path

from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint_replicator import leaf
from checkpoint_replicator.errors import ProtocolError
from checkpoint_replicator.hashing import hash_shard, verify_shard
from checkpoint_replicator.tree import Directory, File, Tree

names = st.binary(min_size=1, max_size=12).filter(
    lambda name: b"/" not in name and b"\0" not in name and name not in {b".", b".."}
)
sizes = st.sampled_from([0, 1, 100, leaf.LEAF_SIZE - 1, leaf.LEAF_SIZE, leaf.LEAF_SIZE + 1, 2 * leaf.LEAF_SIZE])
Node = dict[bytes, "Node | int"]
folders = st.recursive(
    st.dictionaries(names, sizes, max_size=4),
    lambda below: st.dictionaries(names, st.one_of(sizes, below), max_size=4),
    max_leaves=6,
)


def entries(folder: Node, prefix: bytes = b"") -> list[Directory | File]:
    found: list[Directory | File] = []
    for name, below in folder.items():
        path = prefix + name
        if isinstance(below, int):
            found.append(File(path, below, bytes(leaf.count(below) * leaf.DIGEST_SIZE)))
        else:
            found += [Directory(path), *entries(below, path + b"/")]
    return found


def lay(folder: Node, root: bytes) -> None:
    os.mkdir(root)  # noqa: PTH102 - names are bytes
    for name, below in folder.items():
        path = root + b"/" + name
        if isinstance(below, int):
            with open(path, "wb") as file:  # noqa: PTH123 - names are bytes
                file.write(blake3(name).digest(length=below))
        else:
            lay(below, path)


def reference(root: bytes) -> bytes:
    """The text of a tree, written as plainly as DESIGN says it."""
    lines: list[tuple[bytes, str]] = []
    for folder, folder_names, file_names in os.walk(root):
        for name in folder_names:
            path = os.path.relpath(folder + b"/" + name, root)
            lines.append((path, f"d {spell(path)}\n"))
        for name in file_names:
            path = os.path.relpath(folder + b"/" + name, root)
            with open(folder + b"/" + name, "rb") as file:  # noqa: PTH123 - names are bytes
                data = file.read()
            digests = [blake3(data[at : at + 1048576]).hexdigest() for at in range(0, len(data), 1048576)]
            lines.append((path, f"f {len(data)} {','.join(digests) or '-'} {spell(path)}\n"))
    return ("ckpt-tree 1 blake3 1048576\n" + "".join(line for _, line in sorted(lines))).encode()


def spell(path: bytes) -> str:
    plain = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~/"
    return "".join(chr(byte) if byte in plain else f"%{byte:02X}" for byte in path)


@given(folders)
def test_what_is_written_is_read_back(folder: Node) -> None:
    tree = Tree(entries(folder))
    again = Tree.parse(tree.encode())
    assert again == tree
    assert again.address == tree.address
    assert again.encode() == tree.encode()
    assert sum(again.leaf(number).size for number in range(again.leaves)) == again.size


@given(st.binary(max_size=200))
def test_garbage_is_a_protocol_error(garbage: bytes) -> None:
    for text in (garbage, b"ckpt-tree 1 blake3 1048576\n" + garbage + b"\n"):
        try:
            tree = Tree.parse(text)
        except ProtocolError:
            continue
        assert tree.encode() == text


@given(folders, st.data())
def test_a_damaged_text_is_refused_or_has_another_address(folder: Node, data: st.DataObject) -> None:
    tree = Tree(entries(folder))
    text = bytearray(tree.encode())
    place = data.draw(st.integers(0, len(text) - 1))
    text[place] ^= data.draw(st.integers(1, 255))
    try:
        other = Tree.parse(bytes(text))
    except ProtocolError:
        return
    assert other.address != tree.address


@settings(deadline=None, max_examples=40)
@given(folders, st.sampled_from([1, 4]))
def test_a_tree_on_disk_hashes_as_the_reference_says(folder: Node, threads: int) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        root = os.fsencode(temporary) + b"/root"
        lay(folder, root)
        path = Path(os.fsdecode(root))
        tree = hash_shard(path, threads)
        text = reference(root)
        assert tree.encode() == text
        assert tree.address == "D" + blake3(text).hexdigest()
        assert verify_shard(path, tree, threads).is_none
