"""Helm over the chart that prepares hosts, in a process of its own.

The library is a Go runtime: it brings its own threads and handlers of signals, and ends the whole
process when it fails. A test's process has other runtimes with handlers of their own, so it never
imports the package: the import alone loads the runtime.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

from tests.support import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

CHART = ROOT / "deploy" / "helm" / "harp-setup"


class RefusedError(Exception):
    """Helm takes no such values."""


def _lint() -> dict[str, Any]:
    import helm_python

    found: dict[str, Any] = helm_python.lint(CHART, strict=True)
    return found


def _render(values: dict[str, Any]) -> dict[str, str]:
    import helm_python

    try:
        with helm_python.Chart.load(CHART) as chart:
            chart.validate_schema(values)
            texts: dict[str, str] = chart.render(values)
    except helm_python.HelmError as error:
        raise RefusedError(str(error)) from None
    return texts


class Helm:
    """The two calls of Helm that the tests make."""

    def __init__(self, process: ProcessPoolExecutor) -> None:
        self._process = process

    def _call(self, function: Callable[..., Any], *words: Any) -> Any:
        return self._process.submit(function, *words).result()

    def lint(self) -> dict[str, Any]:
        """Run Helm's lint on the chart, with warnings as errors."""
        found: dict[str, Any] = self._call(_lint)
        return found

    def render(self, values: dict[str, Any]) -> dict[str, str]:
        """Give the text of each template by name; RefusedError where the schema refuses a value."""
        texts: dict[str, str] = self._call(_render, values)
        return texts


def own_process() -> ProcessPoolExecutor:
    """A process that is no copy of this one."""
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
