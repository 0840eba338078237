"""The compiled extension for lent memory: harp/memory.c."""

from typing_extensions import Self

class Memory:
    """Bytes that belong to another owner, lent by the buffer protocol."""

    def __new__(cls, address: int, length: int, readonly: bool, owner: object) -> Self: ...
    def release(self) -> None:
        """Let go of the memory. BufferError while it is viewed; twice is once."""
    def leave(self) -> None:
        """Let go of the memory with the last view; there can be no new ones."""
    @property
    def views(self) -> int:
        """How many views of it are in use."""
    @property
    def released(self) -> bool:
        """Whether it was given back."""
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
