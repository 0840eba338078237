"""Files that a person may have edited: what is wrong in one is one sentence that says where.

`read_bytes` and `read_text` read a file that a user named: they end, whatever it is. `unpacked`
undoes gzip, `parse` reads JSON.

>>> plan = parse('{"ranks": [{"rank": 0}, {"rank": -1}]}')
>>> [rank["rank"].whole(0, 7) for rank in plan["ranks"].each()]
Traceback (most recent call last):
harp.reading.FileError: ranks[1].rank is -1: a whole number from 0 to 7 is possible
"""

from __future__ import annotations

import errno
import gzip
import io
import ipaddress
import json
import math
import os
import zlib
from typing import TYPE_CHECKING, Any, NoReturn

from harp.nearest import nearest_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SHOWN = 60
"""Characters of a wrong value that an error repeats."""
LONGEST_WORD = 1000
"""Characters of a word that an error repeats whole, such as a path."""
MOST_BYTES = 1 << 30
"""Largest file that is read unless a caller has a limit of its own; the plan of an all-to-all
between 2,048 ranks has half of that."""
PART_BYTES = 1 << 20
"""Bytes that a file is read by."""
GZIP = b"\x1f\x8b"
"""The beginning of a file that gzip has packed."""


def read_bytes(path: str | Path, most_bytes: int = MOST_BYTES) -> bytes:
    """Read a file without waiting: a FIFO that nobody writes to is empty.

    Raises OSError, EFBIG for a file, or a device without end, of more than ``most_bytes``.
    """
    data = bytearray()
    with open(path, "rb", opener=_open_at_once) as stream:
        while part := stream.read(PART_BYTES):  # to ask for all at once takes as much memory
            data += part
            if len(data) > most_bytes:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return bytes(data)


def read_text(path: str | Path) -> str:
    """Read text of UTF-8, without the mark of some editors in front, as `read_bytes` does.

    Raises OSError and UnicodeDecodeError.
    """
    return read_bytes(path).decode("utf-8-sig")


def _open_at_once(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    os.set_blocking(descriptor, True)
    return descriptor


def unpacked(data: bytes, most_bytes: int = MOST_BYTES) -> bytes:
    """Give what gzip has packed, and other data as it is. Raises FileError."""
    if not data.startswith(GZIP):
        return data
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            content = file.read(most_bytes + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise FileError(f"it is no whole gzip file: {error}") from None
    if len(content) > most_bytes:
        raise FileError(f"it is too large: {most_bytes >> 20} MiB, unpacked, are possible")
    return content


def printable(text: str) -> str:
    """One line that no terminal acts on: blanks for line ends, escapes for control characters.

    Of a word longer than any name both ends are there.
    """
    words = (word if len(word) <= LONGEST_WORD else f"{word[:SHOWN]}…{word[-SHOWN:]}"
             for word in text.split())
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(words))


class FileError(ValueError):
    """A file's content is not what it should be; the message is one sentence without its name."""


def parse(text: str | bytes) -> Node:
    """Read JSON as RFC 8259 has it: no NaN. Raises FileError."""
    try:
        return Node(json.loads(text, parse_constant=_refuse_constant), "")
    except FileError:
        raise
    except json.JSONDecodeError as error:
        raise FileError(f"it is no JSON: line {error.lineno}, column {error.colno}: "
                        f"{error.msg.lower()}") from error
    except UnicodeDecodeError as error:
        raise FileError("it is no JSON: it is not UTF-8") from error
    except ValueError as error:  # int() of very many digits
        raise FileError("it is no JSON: a number has too many digits") from error
    except RecursionError as error:
        raise FileError("it is no JSON of ours: it is nested too deeply") from error


def check_format(data: Node, wanted: str, advice: str = "") -> None:
    """Raise FileError unless ``format`` is the one that this version reads."""
    value = data.plain()
    found = value.get("format") if isinstance(value, dict) else None
    if found != wanted:
        raise FileError(f"its format is {found!r} and this HARP reads {wanted!r}"
                        + f": {advice}" * bool(advice))


def _refuse_constant(name: str) -> NoReturn:
    raise FileError(f"it is no JSON: {name} is no number there")


class Node:
    """A value of a file, and where in it that is. All methods raise FileError."""

    def __init__(self, value: Any, where: str) -> None:
        self._value = value
        self._where = where

    def __getitem__(self, name: str) -> Node:
        """The value of a key that must be there."""
        return self._member(name, self._object()[name]) if name in self._object() \
            else self._fail_missing(name)

    def get(self, name: str) -> Node | None:
        """The value of a key, or None."""
        return self._member(name, self._object()[name]) if name in self._object() else None

    def items(self) -> Iterator[tuple[str, Node]]:
        """All keys and values of an object."""
        return ((name, self._member(name, value)) for name, value in self._object().items())

    def each(self) -> list[Node]:
        """The values of a list."""
        if not isinstance(self._value, list):
            self.fail("a list")
        return [Node(value, f"{self._where}[{at}]") for at, value in enumerate(self._value)]

    def text(self) -> str:
        """A text."""
        if not isinstance(self._value, str):
            self.fail("a text")
        return str(self._value)

    def whole(self, least: int, most: int) -> int:
        """A whole number within bounds."""
        value = self._value
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self.fail(f"a whole number from {least} to {most}")
        return int(value)

    def number(self, least: float = -math.inf, most: float = math.inf) -> float:
        """A finite number within bounds."""
        value = self._value
        if isinstance(value, bool) or not isinstance(value, int | float) \
                or not math.isfinite(value) or not least <= value <= most:
            self.fail(f"a number from {least:g} to {most:g}" if math.isfinite(most) else
                      f"a number of at least {least:g}" if math.isfinite(least) else "a number")
        return float(value)

    def flag(self) -> bool:
        """True or false."""
        if not isinstance(self._value, bool):
            self.fail("true or false")
        return bool(self._value)

    def address(self) -> str:
        """``ip:port`` or ``[ip]:port`` of a host."""
        ip, _, port = self.text().rpartition(":")
        try:
            known = ipaddress.ip_address(ip.strip("[]"))
            good = port.isascii() and port.isdigit() and 1 <= int(port) <= 65535
        except ValueError:
            good = False
        if not good or known.is_multicast or known.is_unspecified:
            self.fail("an address of a host and a port, as 10.0.0.1:7000 or [fd00::1]:7000,")
        return self.text()

    def is_none(self) -> bool:
        """Whether it is null."""
        return self._value is None

    def plain(self) -> Any:
        """The value as Python has it."""
        return self._value

    def one_of(self, *allowed: str) -> str:
        """One of these texts."""
        value = self.text()
        if value not in allowed:
            near = nearest_name(value, allowed)
            self.fail(f"{', '.join(allowed)}" + (f" (did you mean {near}?)" if near else ""))
        return value

    def fail(self, allowed: str) -> NoReturn:
        """Raise the error: what is allowed here."""
        shown = json.dumps(self._value, ensure_ascii=False)
        shown = shown if len(shown) <= SHOWN else shown[:SHOWN] + "…"
        raise FileError(f"{self._where or 'all of it'} is {shown}: {allowed} is possible")

    def _object(self) -> dict[str, Any]:
        if not isinstance(self._value, dict):
            self.fail("an object")
        return self._value

    def _member(self, name: str, value: Any) -> Node:
        return Node(value, f"{self._where}.{name}" if self._where else name)

    def _fail_missing(self, name: str) -> NoReturn:
        near = nearest_name(name, list(self._object()))
        where = f" in {self._where}" if self._where else ""
        raise FileError(f"{name} is missing{where}" + (f"; there is {near}" if near else ""))
