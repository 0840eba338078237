"""Check a configuration of DeepSpeed before a job has it: ``python -m harp.angelptm FILE``.

It prints what AngelPTM makes of the file. A mistake is one sentence, and status 2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from harp.angelptm.accelerator_pages import find_device
from harp.angelptm.config import ConfigError, read_config
from harp.cli.io import InputError
from harp.cli.standalone import run_program

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harp.angelptm.config import Config

MIB = 1 << 20


def _bytes(limit: int | None) -> str:
    return "all that is left" if limit is None else f"{limit / MIB:,.1f} MiB"


def describe(config: Config) -> Iterator[tuple[str, str]]:
    """Give what a configuration means, by the name of each thing."""
    yield "micro-batches of a step", str(config.accumulation)
    yield "precision", config.precision + (
        f", loss scale {config.scaling.initial:g}" if config.scaling else "")
    yield "clipping", f"{config.clipping:g}" if config.clipping else "none"
    adam = config.adam
    yield "optimizer", "the one that the script passes" if adam is None else (
        f"{'AdamW' if adam.decoupled else 'Adam'}, rate {adam.rate:g}, betas {adam.betas}, "
        f"epsilon {adam.epsilon:g}, decay {adam.decay:g}")
    yield "updates", "in their step" if config.update != "async" else (
        "beside the next step" if config.staleness == 1 else
        f"beside the next {config.staleness} steps, each page once")
    yield "ZeRO stage", str(config.stage)
    yield "pages of", _bytes(config.page_bytes)
    yield "device", _bytes(config.device_bytes)
    yield "host", _bytes(config.host_bytes)
    if config.disk_path is None:
        yield "disk", "none"
    else:
        yield "disk", f"{_bytes(config.disk_bytes or None)}, {config.disk_path}, io {config.io}"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("file")
@click.option("--ranks", default=1, show_default=True, type=click.IntRange(1),
              help="Of the job, for its micro-batches.")
def main(file: str, ranks: int) -> None:
    """Check a configuration of DeepSpeed, and print what AngelPTM makes of it."""
    try:
        found = read_config(file, ranks)
        device = find_device(found.device, ranks)
    except ConfigError as error:
        raise InputError(str(error)) from None
    for name, value in (("trains on", device), *describe(found)):
        click.echo(f"{name:<24} {value}")


if __name__ == "__main__":
    run_program(main, "python -m harp.angelptm")
