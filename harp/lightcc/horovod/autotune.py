"""HOROVOD_AUTOTUNE: rank 0 tries settings while the job runs, and keeps the best.

One setting after the other is changed, with the others as good as known so far: fusion threshold,
cycle time, dense 2D or ring, from which size on gradients are sparse, and whether their values are
float16. Compression is tried only where LIGHT_TOPK_ALLREDUCE allows it, and float16 where
LIGHT_TOPK_FP16 does, since they change what is learned. The score of a trial is bytes of gradients
a second, whole gradients in each case.
"""

from __future__ import annotations

import logging
import statistics
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from harp.lightcc.horovod.horovod_settings import Settings
    from harp.lightcc.horovod.negotiation import Response
    from harp.lightcc.settings import LightSettings

log = logging.getLogger("harp.horovod")

MIB = 1 << 20
NO_SPARSE_BYTES = 1 << 62
"""A threshold that no tensor reaches."""
SAMPLES = 3
"""Measurements of a trial; their median counts."""


def choices(settings: Settings, light: LightSettings) -> dict[str, list[Any]]:
    """Values to try, by setting; the first one of each is what the user has set."""
    found: dict[str, list[Any]] = {
        "threshold_bytes": [settings.fusion_threshold_bytes, 0, 8 * MIB, 32 * MIB, 128 * MIB],
        "cycle_s": [settings.cycle_s, 0.0, 0.5e-3, 2e-3, 5e-3],
        "two_d": [light.two_d, not light.two_d] if light.two_d else [False],
        "topk_threshold_bytes": [light.topk_threshold_bytes],
        "topk_fp16": [True, False] if light.topk and light.topk_fp16 else [light.topk_fp16]}
    if light.topk:
        found["topk_threshold_bytes"] += [256 << 10, 4 * MIB, NO_SPARSE_BYTES]
    return {name: list(dict.fromkeys(values)) for name, values in found.items()}


def apply(tuned: dict[str, Any], light: LightSettings) -> tuple[float, int, LightSettings]:
    """Give the cycle time, the fusion threshold and LightCC's settings of a trial."""
    return tuned["cycle_s"], tuned["threshold_bytes"], replace(
        light, two_d=tuned["two_d"], topk_threshold_bytes=tuned["topk_threshold_bytes"],
        topk_fp16=tuned["topk_fp16"])


class Tuner:
    """Tries `choices` one after the other; `look` is called with each decision of rank 0."""

    def __init__(self, settings: Settings, light: LightSettings) -> None:
        self._choices = choices(settings, light)
        self._best = {name: values[0] for name, values in self._choices.items()}
        self._best_score = 0.0
        self._steps, self._samples_left = settings.autotune_steps, settings.autotune_warmup
        self._log = Path(settings.autotune_log) if settings.autotune_log else None
        self._trials = self._tried()
        self._trial = next(self._trials, None)
        self._warm = not settings.autotune_warmup
        self._scores: list[float] = []
        self._bytes, self._decisions, self._began_s = 0, 0, 0.0
        if self._log:
            try:
                self._log.write_text(",".join([*self._best, "score_bytes_per_s"]) + "\n")
            except OSError as error:
                raise ValueError(f"HOROVOD_AUTOTUNE_LOG {self._log} cannot be written: "
                                 f"{error.strerror}") from None

    @property
    def best(self) -> dict[str, Any]:
        """The best settings so far."""
        return self._best

    @property
    def is_over(self) -> bool:
        """Whether all was tried."""
        return self._trial is None

    def look(self, responses: Sequence[Response], now_s: float) -> dict[str, Any] | None:
        """Count a decision; gives settings where others are to hold from now on."""
        if self._trial is None:
            return None
        if not self._decisions:
            self._began_s = now_s
        elif self._decisions > self._steps:
            return self._end_sample(now_s)
        self._decisions += 1
        self._bytes += sum(request.nbytes for response in responses
                           for request in response.requests)
        return None

    def _end_sample(self, now_s: float) -> dict[str, Any] | None:
        score = self._bytes / max(now_s - self._began_s, 1e-9)
        self._bytes = self._decisions = 0
        if not self._warm:
            self._samples_left -= 1
            self._warm = self._samples_left <= 0
            return None
        self._scores.append(score)
        if len(self._scores) < SAMPLES:
            return None
        return self._end_trial(statistics.median(self._scores))

    def _end_trial(self, score: float) -> dict[str, Any]:
        assert self._trial
        self._scores = []
        self._write_trial(self._trial, score)
        if score > self._best_score:
            self._best, self._best_score = self._trial, score
        self._trial = next(self._trials, None)
        return self._trial or self._best

    def _write_trial(self, trial: dict[str, Any], score: float) -> None:
        if self._log is None:
            return
        try:
            with self._log.open("a") as file:
                file.write(",".join(map(str, [*trial.values(), score])) + "\n")
        except OSError as error:
            log.warning("the log of autotune ends here, since it cannot be written: %s",
                        error.strerror)
            self._log = None

    def _tried(self) -> Iterator[dict[str, Any]]:
        yield dict(self._best)
        for name, values in self._choices.items():
            for value in values[1:]:
                yield self._best | {name: value}
