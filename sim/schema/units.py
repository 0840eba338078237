"""Quantities with units: "25Gbps", "3us", "2MiB", "150GB/s", "2.5Mpps", "23.4TFLOPS", "2%".

A quantity is a number and a unit, spaces between them allowed. It is parsed to a plain SI number:
bits/s, seconds, bytes (int), packets/s, FLOP/s, or a fraction. Case matters, because b is a bit and
B a byte; k, M, G, T are powers of 1000 and Ki, Mi, Gi, Ti powers of 1024 (IEC 80000-13). A bare
number is refused, since 25 says neither bits nor bytes.

Models use the aliases at the end (`Rate`, `Seconds`, ...): a field of type ``Rate`` is a float in
bits/s, takes "25Gbps" on the way in and gives it back in JSON.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from sim.schema.input_errors import Problem, listing, nearest, show

_NUMBER = r"\d{1,25}(?:\.\d{1,25})?(?:[eE][+-]?\d{1,3})?"
_QUANTITY = re.compile(rf"\s*([+-]?{_NUMBER})\s*([^\s\d.+-]\S{{0,20}})?\s*", re.ASCII)


@dataclass(frozen=True, eq=False)
class Unit:
    """A kind of quantity, usable as the metadata of an Annotated field.

    ``scales`` maps each spelling to its size in the base unit; the first one is exact in decimals.
    Values lie between ``least`` and ``most``, wider than anything that exists and narrow enough for
    sums and quotients to stay finite; with ``zero`` they begin at 0. ``whole`` asks for a whole
    number of base units. A ``bare`` number is taken as is, without a unit.
    """

    name: str
    scales: Mapping[str, Decimal]
    examples: tuple[str, ...]
    least: float
    most: float
    zero: bool = False
    whole: bool = False
    bare: bool = False

    def parse(self, text: object) -> float:
        """Plain number in the base unit (an int where ``whole``); raises Problem."""
        if self.bare and isinstance(text, int | float) and not isinstance(text, bool):
            return self._bounded(text, text)
        if not isinstance(text, str):
            raise self._refuse(text, self._missing(text))
        match = _QUANTITY.fullmatch(text)
        if match is None:
            raise self._refuse(text, f"{show(text)} is not a {self.name}")
        number, unit = match.groups()
        if unit is None:
            raise self._refuse(text, f"{show(text)} has no unit")
        if unit not in self.scales:
            raise Problem(f"{show(text)} has the unit {show(unit)}, which no {self.name} has",
                          found=text, allowed=listing(self.scales),
                          names=self._respelled(number, unit))
        return self._bounded(text, float(Decimal(number) * self.scales[unit]))

    def _respelled(self, number: str, unit: str) -> Iterator[str]:
        """The text in the nearest unit, if it means as much.

        Where bits and bytes are both possible, a b is never taken for a B; digits after a comma or
        an underscore are no part of a unit.
        """
        alike = [each for each in self.scales if ("B" in each) == ("B" in unit)]
        right = nearest(unit, alike or self.scales)
        if right is not None and not any(map(str.isdigit, unit)):
            yield number + right

    def format(self, value: float) -> str:
        """Shortest text that `parse` takes back to exactly ``value``."""
        exact = Decimal(repr(value))
        texts = [f"{exact / self.scales[self._base]}{self._base}"]
        for unit, scale in self.scales.items():
            number = f"{float(exact / scale):.12g}"
            if float(Decimal(number) * scale) == value:
                texts.append(number + unit)
        return min(texts, key=len)

    def _bounded(self, text: object, value: float) -> float:
        if self.whole and value % 1 > 0:
            raise self._refuse(text, f"{show(text)} is not a whole number of {self._base}")
        if not self._from <= value <= self.most:
            raise self._refuse(text, f"{show(text)} is out of range")
        return int(value) if self.whole else float(value)

    @property
    def _from(self) -> float:
        return 0.0 if self.zero else self.least

    @property
    def _base(self) -> str:
        return next(iter(self.scales))

    def _missing(self, found: object) -> str:
        if isinstance(found, int | float) and not isinstance(found, bool):
            return f"{show(found)} has no unit"
        return f"{show(found)} is not a {self.name}"

    def _refuse(self, found: object, says: str) -> Problem:
        return Problem(says, found=found, allowed=self.allowed)

    @property
    def allowed(self) -> str:
        """Clause of an error message with the allowed values."""
        least = "0" if self.zero else self._plain(self.least)
        return (f"a {self.name} from {least} to {self._plain(self.most)}, "
                f"e.g. {' or '.join(self.examples)}")

    def _plain(self, value: float) -> str:
        """Like `format`, but a whole number of the largest unit that gives one, where one does."""
        exact = Decimal(repr(value))
        whole = [unit for unit, scale in self.scales.items() if exact % scale == 0]
        if not whole:
            return self.format(value)
        unit = max(whole, key=self.scales.__getitem__)
        return f"{int(exact / self.scales[unit])}{unit}"

    def __get_pydantic_core_schema__(self, source: Any,
                                     handler: GetCoreSchemaHandler) -> CoreSchema:
        serializer = core_schema.plain_serializer_function_ser_schema(
            self.format, when_used="json-unless-none", return_schema=core_schema.str_schema())
        return core_schema.no_info_plain_validator_function(self.parse, serialization=serializer)

    def __get_pydantic_json_schema__(self, schema: CoreSchema,
                                     handler: GetJsonSchemaHandler) -> dict[str, Any]:
        units = "|".join(map(re.escape, self.scales))
        text = {"type": "string", "pattern": rf"^\s*\+?{_NUMBER}\s*({units})\s*$",
                "examples": list(self.examples)}
        if not self.bare:
            return text
        number = {"type": "number", "minimum": self._from, "maximum": self.most}
        return {"anyOf": [text, number], "examples": list(self.examples)}


def _scales(text: str) -> dict[str, Decimal]:
    pairs = (pair.split("=") for pair in text.split())
    return {unit: Decimal(size) for unit, size in pairs}


RATE = Unit("rate", _scales("bps=1 B/s=8 kbps=1e3 kB/s=8e3 Mbps=1e6 MB/s=8e6 Gbps=1e9 GB/s=8e9 "
                            "Tbps=1e12 TB/s=8e12 Mbit/s=1e6 Gbit/s=1e9 Tbit/s=1e12"),
            ("25Gbps", "150GB/s"), least=1.0, most=1e18)
DURATION = Unit("time", _scales("s=1 ns=1e-9 us=1e-6 µs=1e-6 ms=1e-3 min=60 h=3600"),
                ("3us", "1ms"), least=1e-10, most=3.6e6)
SIZE = Unit("size", _scales("B=1 kB=1e3 KiB=1024 MB=1e6 MiB=1048576 GB=1e9 GiB=1073741824 "
                            "TB=1e12 TiB=1099511627776"), ("2MiB", "1500B"), least=1, most=2**60,
            whole=True)
PACKET_RATE = Unit("packet rate", _scales("pps=1 kpps=1e3 Mpps=1e6 Gpps=1e9"), ("2.5Mpps",),
                   least=1.0, most=1e15)
COMPUTE_RATE = Unit("compute rate", _scales("FLOPS=1 MFLOPS=1e6 GFLOPS=1e9 TFLOPS=1e12 "
                                            "PFLOPS=1e15"), ("23.4TFLOPS",), least=1e6, most=1e21)
SHARE = Unit("share", _scales("%=1e-2"), ("2%", "0.5"), least=1e-6, most=1.0, bare=True)

Rate = Annotated[float, RATE]
"""Bits per second."""
Seconds = Annotated[float, replace(DURATION, zero=True)]
"""Seconds, 0 or more."""
Period = Annotated[float, DURATION]
"""Seconds, not 0."""
Bytes = Annotated[int, replace(SIZE, zero=True)]
"""Bytes, 0 or more."""
PositiveBytes = Annotated[int, SIZE]
"""Bytes, above 0."""
PacketRate = Annotated[float, PACKET_RATE]
"""Packets per second, above 0."""
ComputeRate = Annotated[float, COMPUTE_RATE]
"""FLOP per second, above 0."""
Share = Annotated[float, replace(SHARE, zero=True)]
"""A fraction from 0 to 1, written 0.02 or 2%."""
PositiveShare = Annotated[float, SHARE]
"""A fraction above 0 and up to 1."""
