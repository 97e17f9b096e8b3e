"""The examples of `docs/storage.md`: what is asked of Redis there, and whether an answer has the form that it shows.

Two answers have the same form when they differ only in ids, times, numbers, addresses, endpoints and hosts: the fields,
the keys of JSON, the states and all other words are the same.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from support.keys import HEADING

EXAMPLE = re.compile(r"^```\n> (?P<command>.+)\n(?P<answer>(?:.*\n)+?)```$", re.MULTILINE)
LINE = re.compile(r"^(?P<numbers>(?: *\d+\) ?)*)(?P<value>.*)$")
NUMBER = re.compile(r" *(\d+)\) ?")
WORDS: Sequence[tuple[str, str]] = (
    (r"\d{4}-\d\d-\d\d_\d\d-\d\d", "<backup>"),
    (r"\bD?[0-9a-f]{64}\b", "<address>"),
    (r"\b[0-9a-f]{32}\b|\b[0-9a-f]{16}\b|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "<id>"),
    (r"\b(?:tcp|ipc)://[\w./-]+(?::\d+)?", "<endpoint>"),
    (r"\bfile:///[\w./-]+", "<root>"),
    (r"\b(?:node|coordinator)-\d+\b", "<host>"),
    (r"\b\d+(?:[.,]\d+)*(?:e[+-]?\d+)?\b", "<number>"),
)
"""What differs from run to run, and what stands in its place in a form."""

Form = Any


class Example(msgspec.Struct, frozen=True):
    """One example: the documented key below which it stands, its command and the answer that is shown."""

    key: str
    command: str
    answer: str


def examples(text: str) -> tuple[Example, ...]:
    """Read the examples of the document, in their order."""
    heads = list(HEADING.finditer(text))
    return tuple(
        Example([head["key"] for head in heads if head.start() < found.start()][-1], found["command"], found["answer"])
        for found in EXAMPLE.finditer(text)
        if heads and found.start() > heads[0].start()
    )


def renamed(command: str, names: Mapping[str, str]) -> str:
    """Return a command with the names of a run in place of the document's."""
    for told, real in names.items():
        command = command.replace(told, real)
    return command


def rewritten(text: str, ask: Callable[[Example], tuple[str, str]]) -> str:
    """Return the document with each example replaced by the command and the answer that `ask` gives for it."""
    for example in examples(text):
        command, answer = ask(example)
        old = f"```\n> {example.command}\n{example.answer}```"
        text = text.replace(old, f"```\n> {command}\n{answer}```")
    return text


def form(command: str, answer: str) -> Form:
    """Return the form of an answer as `redis-cli` prints it: what a run with other ids and times would print too."""
    value = _tree([_split(line) for line in answer.splitlines()])
    return _pairs(value) if command.split(maxsplit=1)[0] == "HGETALL" else _unordered(value)


def _split(line: str) -> tuple[list[int], str]:
    found = LINE.match(line)
    assert found is not None
    return [int(number) for number in NUMBER.findall(found["numbers"])], found["value"]


def _tree(lines: list[tuple[list[int], str]]) -> Form:
    """Nest the numbered lines; a line that begins an inner list has the numbers of both."""
    if len(lines) == 1 and not lines[0][0]:
        return _value(lines[0][1])
    depth = len(lines[0][0])
    groups: list[list[tuple[list[int], str]]] = []
    for numbers, value in lines:
        if len(numbers) == depth or not groups:
            groups.append([])
        groups[-1].append((numbers[1:] if len(numbers) == depth else numbers, value))
    return [_tree(group) for group in groups]


def _value(text: str) -> Form:
    if not text.startswith('"'):
        return text
    plain = json.loads(text.replace("\\a", "").replace("\\x", "\\\\x"))
    if plain[:1] in {"{", "["}:
        return _shape(json.loads(plain))
    return _plain(plain)


def _shape(value: Any) -> Form:
    match value:
        case dict():
            return {_plain(key): _shape(part) for key, part in sorted(value.items())}
        case list():
            return _unordered([_shape(part) for part in value])
        case str():
            return _plain(value)
        case bool() | None:
            return value
        case _:
            return "<a number of JSON>"


def _plain(text: str) -> str:
    for pattern, word in WORDS:
        text = re.sub(pattern, word, text)
    return text


def _pairs(flat: Form) -> Form:
    if not isinstance(flat, list) or len(flat) % 2:
        return flat
    return _unordered([list(pair) for pair in zip(flat[::2], flat[1::2], strict=True)])


def _unordered(value: Form) -> Form:
    """Keep of a list each form once: how many nodes, saves and copies there are belongs to the run."""
    if not isinstance(value, list):
        return value
    return [json.loads(text) for text in sorted({json.dumps(part, sort_keys=True) for part in value})]
