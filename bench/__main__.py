"""The command ``python -m bench SUBJECT``: measure rows and hold them against their targets."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import click

from harp.cli.standalone import run_program
from harp.nearest import did_you_mean

if TYPE_CHECKING:
    from bench.subject import Subject

SUBJECTS = {
    "stack": ("bench.stack.stack_rows", "the stack against kernel TCP, raw sockets and memory"),
    "nccl": ("bench.nccl.nccl_rows", "the NCCL plugin against kernel TCP as NCCL uses it"),
    "lightcc": ("bench.lightcc.lightcc_rows", "LightCC against gloo, MPI and oneCCL"),
    "angelptm": ("bench.angelptm.angelptm_rows", "AngelPTM against torch, DeepSpeed and fio"),
    "ttf": ("bench.ttf.ttf_rows", "TTF against torch: tables, precision, compilation, inference"),
    "convergence": ("bench.lightcc.convergence", "training by top-k against dense training"),
    "convergence-outer": ("bench.lightcc.outer_convergence",
                          "loss by rare meetings, at equal steps and data"),
    "outer": ("bench.lightcc.outer_rows", "rare meetings over a slow line: time to a loss"),
    "tccl": ("bench.tccl.tccl_rows", "two ports and faults: HARP and kernel TCP"),
    "routing": ("bench.routing.routing_rows", "planned routes against ECMP and spraying"),
    "planned-paths": ("bench.routing.planned_paths", "planned source ports on the real stack"),
    "rank-order": ("bench.routing.rank_order", "collectives by the order of ranks"),
    "diagnose": ("bench.diagnose.named_faults", "`harp diagnose` on chosen faults and jobs"),
    "diagnose-drawn": ("bench.diagnose.drawn", "`harp diagnose` on drawn jobs and faults"),
    "sim": ("bench.sim.scale_rows", "speed and memory of the simulator at scale"),
    "packet-beside": ("bench.packet.beside_tcp", "HARP beside TCP in one queue, over packets"),
    "packet-kernel": ("bench.packet.kernel_tcp", "TCP of fidelity packet against the kernel's"),
    "tune": ("bench.tune.lab_grid", "settings of `sim.tune` against a full grid in the lab"),
}
"""Modules that hold a ``SUBJECT``, and a line on each."""


def subject(name: str) -> Subject:
    """Load a subject."""
    found: Subject = import_module(SUBJECTS[name][0]).SUBJECT
    return found


class Subjects(click.Group):
    """The commands; a subject's module is loaded when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the subjects, and ``rows``."""
        return [*SUBJECTS, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Make the command of a subject."""
        if cmd_name in SUBJECTS:
            return subject(cmd_name).command(cmd_name)
        found = super().get_command(ctx, cmd_name)
        if found is None:
            raise click.UsageError(f"there is no subject {cmd_name!r}"
                                   + did_you_mean(cmd_name, self.list_commands(ctx)))
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the subjects without loading them."""
        del ctx
        with formatter.section("Subjects"):
            formatter.write_dl([(name, what) for name, (_, what) in SUBJECTS.items()])
        with formatter.section("Other commands"):
            formatter.write_dl([("rows", "list the rows of all subjects, as bench/README.md does")])


@click.group(cls=Subjects, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Measure, and hold what was measured against its reference and target.

    python -m bench SUBJECT --help lists the options of a subject. Exit status: 0 if all rows meet
    their targets, 1 if one misses, 2 if it cannot run.
    """


@main.command()
def rows() -> None:
    """List the rows of all subjects, as bench/README.md does."""
    for name, (_, what) in SUBJECTS.items():
        click.echo(f"\n## {name}: {what}\n")
        click.echo("| row | measures | reference | target |\n|---|---|---|---|")
        for row in subject(name).rows.values():
            cells = (row.id, row.what, row.reference, f"{row.goal} {row.unit}".strip()
                     if row.goal and not row.reference else row.goal)
            click.echo("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")


if __name__ == "__main__":
    run_program(main, "python -m bench")
