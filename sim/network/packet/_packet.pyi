"""The compiled extension: cffi's view of our C headers."""

from typing import Any

ffi: Any
lib: Any
