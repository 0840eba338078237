"""Command line: ``python -m sim.trace PREFIX --topology cluster.yaml`` replays execution traces.

With ``--write`` it writes those of a step of the file's workload instead, and with ``--et`` and
``--kineto`` those of what PyTorch's profiler recorded.

The traces are MLCommons Chakra's: ``PREFIX.0.et``, ``PREFIX.1.et`` and so on, one a rank and GPU.
The command prints when each rank is done and how long its GPU waited for the network. A wrong trace
or option ends with status 2 and one sentence. docs/use/traces.md is the manual.

``python -m sim.trace script.py:build -o model.yaml`` makes a model's file out of a torch module
instead, for ``workload.model``; docs/use/own-model.md is the manual.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sim.command import plain_command, set_option

if TYPE_CHECKING:
    from sim.cluster.cluster import Cluster
    from sim.schema.scenario_keys import Scenario
    from sim.schema.topology_model import Topology
    from sim.traces.job_trace import JobTrace
    from sim.traces.replay import Replay
    from sim.workloads.model import Model

PATH = click.Path(path_type=Path)
_SCRIPT = re.compile(r"(.+\.py):([A-Za-z_]\w*)")
MOST_SCRIPT, MOST_PROFILE = 4 << 20, 2 << 30
"""Largest script, and largest profile, in bytes."""
VERSION = 1
MOST_SHOWN = 16
"""Ranks of the printed table."""


@plain_command
@click.argument("prefix", metavar="PREFIX | SCRIPT.py:FUNCTION")
@click.option("--topology", type=PATH, metavar="FILE",
              help="Topology file of the cluster; its workload is not used.")
@click.option("--et", metavar="PATTERN", help="Write PREFIX.<rank>.et out of the files of "
              "PyTorch's ExecutionTraceObserver; * in the name is the rank, as in 'et.*.json'.")
@click.option("--kineto", metavar="PATTERN",
              help="Beside --et: the traces of Kineto of the same steps, as in 'kineto.*.json'.")
@click.option("--flight", metavar="PATTERN", help="Beside --et: the JSON of PyTorch's flight "
              "recorder, which names the groups of gloo's collectives where there are several.")
@click.option("--scenario", metavar="NAME",
              help="Scenario that gives stack, algorithm and routing; the first by default.")
@set_option("Change a value of the topology file")
@click.option("--write", is_flag=True,
              help="Write the traces of a step of the file's workload, instead of reading some.")
@click.option("--groups", type=PATH, metavar="FILE",
              help='Groups of ranks, as {"1": [0, 1]}; those of the traces by default.')
@click.option("--deps", type=click.Choice(["data+ctrl", "data"]), default="data+ctrl",
              show_default=True, help="Dependencies that hold an operation back.")
@click.option("--by-flops", is_flag=True, help="Compute takes its FLOPs over the GPU's rate, "
                                               "not the recorded time.")
@click.option("--fidelity", type=click.Choice(["flow", "packet"]), default="flow",
              show_default=True, help="Network model.")
@click.option("--json", "as_json", metavar="FILE|-", help="Write the answer as JSON.")
@click.option("-o", "--output", metavar="FILE",
              help="For a script: write the model's file here, as .yaml.")
@click.option("--measure", type=PATH, metavar="PROFILE",
              help="For a script: take the times of layers from this profile of torch's profiler.")
@click.option("--quiet", is_flag=True, help="No table.")
@click.pass_context
def main(context: click.Context, prefix: str, *, topology: Path | None, et: str | None,
         kineto: str | None, flight: str | None, scenario: str | None, changes: tuple[str, ...],
         write: bool, groups: Path | None, deps: Any, by_flops: bool, fidelity: str,
         as_json: str | None, output: str | None, measure: Path | None, quiet: bool) -> None:
    """Replay the execution traces PREFIX.<rank>.et on a simulated cluster.

    Or make a model's file out of the torch module that a function of a script builds.

    \b
    python -m sim.trace traces/gpt --topology cluster.yaml
    python -m sim.trace script.py:build -o model.yaml
    """  # noqa: D301  (click's mark)
    of_script = {"output", "measure"}
    if (script := _SCRIPT.fullmatch(prefix)) is not None:
        _refuse(context, set(context.params) - of_script - {"prefix", "quiet"}, "a script")
        _model_file(script[1], script[2], output, measure, quiet=quiet)
        return
    if prefix.endswith(".py"):
        raise click.UsageError(f"{prefix} names no function; allowed: {prefix}:NAME, of one that "
                               "builds a module")
    _refuse(context, of_script, "traces; it is for script.py:function")
    if et is not None or kineto is not None or flight is not None:
        _convert(Path(prefix), et, kineto, flight, quiet=quiet)
        return
    if topology is None:
        raise click.UsageError("traces need --topology FILE, the cluster that they run on")
    _replay(Path(prefix), topology, scenario, changes, write=write, groups=groups, deps=deps,
            by_flops=by_flops, fidelity=fidelity, as_json=as_json, quiet=quiet)


def _refuse(context: click.Context, names: set[str], beside: str) -> None:
    """Refuse options that have no meaning beside something."""
    source = click.core.ParameterSource.COMMANDLINE
    for parameter in context.command.params:
        name = parameter.name or ""
        if name in names and context.get_parameter_source(name) is source:
            raise click.UsageError(f"{max(parameter.opts, key=len)} does not work with {beside}")


def _model_file(script: str, function: str, output: str | None, measure: Path | None, *,
                quiet: bool) -> None:
    """Write the file of the model that a function of a script builds."""
    from harp.cli.io import check_target, check_targets, write_text
    from sim.schema.model_file import SUFFIXES, text_of

    if output is None:
        raise click.UsageError("a script needs -o FILE.yaml, where the model's file goes")
    check_targets({"-o": output}, inputs=[script, *([str(measure)] if measure else [])])
    check_target(output, SUFFIXES)
    model = _trace_module(Path(script), function, measure)
    write_text(output, text_of(model))
    if not quiet:
        blocks = f", {model.activations:,} elements between blocks" if model.activations else ""
        giga = [f"{flops / 1e9:.4g} GFLOP" for flops in (model.forward_flops, model.backward_flops)]
        click.echo(f"{output}: {len(model.layers)} layers, {model.parameters:,} parameters; a "
                   f"sample ({model.sample}) takes {' forward and '.join(giga)} backward{blocks}",
                   err=output == "-")


def _trace_module(script: Path, function: str, measure: Path | None) -> Model:
    from importlib.util import find_spec

    from sim.schema.input_errors import Problem, TopologyError
    from sim.schema.source import read_input

    if find_spec("torch") is None:
        raise click.UsageError("a script needs torch, which is not installed: pip install torch")
    profile = None if measure is None else read_input(
        measure, most_bytes=MOST_PROFILE, allowed="a trace of torch's profiler")
    from sim.workloads.torch_module import ModuleError, built, traced_model
    from sim.workloads.torch_profile import ProfileError

    where = f"{script}:{function}"
    try:
        step = built(_function(script, function))
        return traced_model(step, _title(step.module), f"{where}, by torch on the device meta",
                            profile)
    except ModuleError as error:
        raise TopologyError(where, Problem(f"cannot be traced: {error}")) from error
    except ProfileError as error:
        raise TopologyError(str(measure), Problem(str(error), allowed=f"a profile of the module "
                                                  f"of {where}")) from error
    except (TopologyError, click.ClickException):
        raise
    except Exception as error:  # whatever a script of somebody else raises
        raise TopologyError(where, Problem(
            f"failed: {type(error).__name__}: {_one_line(error)}")) from error


def _title(module: object) -> str:
    return type(module).__name__[:100]


def _function(script: Path, name: str) -> Any:
    """The function of a script, which runs as `python script.py` finds its neighbours."""
    from importlib.util import module_from_spec, spec_from_file_location

    from sim.schema.input_errors import Problem, TopologyError, unknown
    from sim.schema.source import read_input

    read_input(script, most_bytes=MOST_SCRIPT, allowed="a Python script")  # so that errors are ours
    spec = spec_from_file_location("harp_traced_script", script)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.path.insert(0, str(script.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except SystemExit:
        raise TopologyError(str(script), Problem(
            "ends the interpreter", allowed="a script whose main part is under "
            "if __name__ == '__main__'")) from None
    finally:
        sys.path.pop(0)
    functions = [key for key, value in vars(module).items() if callable(value)]
    if name not in functions:
        raise TopologyError(str(script), unknown("function", name, functions))
    return getattr(module, name)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]


def _replay(prefix: Path, topology: Path, scenario: str | None, changes: tuple[str, ...], *,
            write: bool, groups: Path | None, deps: Any, by_flops: bool, fidelity: str,
            as_json: str | None, quiet: bool) -> None:
    """Replay traces, or write some."""
    from harp.cli.io import check_target, check_targets, write_text
    from sim.cluster.cluster import Cluster
    from sim.schema import load
    from sim.traces.execution_trace import load_traces
    from sim.traces.replay import Means, replay

    if as_json is not None:
        check_targets({"--json": as_json}, inputs=[str(topology)])
        check_target(as_json)
    loaded = load(topology, changes)
    chosen = _scenario(loaded, scenario)
    cluster = Cluster(loaded)
    if write:
        _write(prefix, cluster, chosen, quiet=quiet)
        return
    trace = load_traces(prefix, ranks=cluster.gpus, deps=deps, groups=groups)
    if trace.dropped:
        click.echo(f"warning: {trace.dropped:,} control dependencies name nodes that are not "
                   "there; they hold nothing back", err=True)
    found = replay(cluster, chosen, trace, Means(fidelity, by_flops=by_flops))
    if as_json is not None:
        write_text(as_json, json.dumps(_document(loaded, chosen, trace, found), indent=2) + "\n")
    if not quiet:
        _print(found, to_stderr=as_json == "-")


def _write(prefix: Path, cluster: Cluster, scenario: Scenario, *, quiet: bool) -> None:
    """Write a file for each rank, after all of them were made."""
    from sim.answer.scenario import job_traces
    from sim.traces.chakra_format import write_trace

    made = job_traces(cluster, scenario)
    files = {f"{prefix}.{rank}.et": write_trace(made.metadata, nodes)
             for rank, nodes in enumerate(made.ranks)}
    if made.groups:
        files[f"{prefix}.groups.json"] = (json.dumps(made.groups) + "\n").encode()
    _write_files(prefix, files)
    if not quiet:
        click.echo(f"{prefix}.0.et and so on: {len(made.ranks)} ranks, "
                   f"{len(made.ranks[0]):,} nodes each, {len(made.groups)} groups")


def _convert(prefix: Path, et: str | None, kineto: str | None, flight: str | None, *,
             quiet: bool) -> None:
    """Write a file for each rank out of two or three files of PyTorch's profiler."""
    from sim.traces.chakra_format import write_trace
    from sim.traces.pytorch import convert, files_of_ranks

    if et is None or kineto is None:
        lacks = "--kineto" if kineto is None else "--et"
        raise click.UsageError(f"{lacks} is missing: --et knows operators and no times, --kineto "
                               "times and no tensors")
    patterns = [et, kineto, *([] if flight is None else [flight])]
    made = [convert(*files) for files in files_of_ranks(*patterns)]
    _write_files(prefix, {f"{prefix}.{rank}.et": write_trace(*trace)
                          for rank, trace in enumerate(made)})
    if not quiet:
        click.echo(f"{prefix}.0.et and so on: {len(made)} ranks, {len(made[0][1]):,} nodes in the "
                   "first")


def _write_files(prefix: Path, files: dict[str, bytes]) -> None:
    """Write all files or none."""
    from harp.cli.io import check_folder, make_folder, write_files

    check_folder(prefix.parent, [Path(path).name for path in files])
    make_folder(prefix.parent)
    write_files(files)


def _scenario(topology: Topology, name: str | None) -> Scenario:
    from sim.schema.input_errors import TopologyError, unknown

    names = [one.name for one in topology.scenarios]
    if name is not None and name not in names:
        raise click.UsageError(str(TopologyError("--scenario", unknown("scenario", name, names))))
    return next(one for one in topology.scenarios if name in (None, one.name))


def _document(topology: Topology, scenario: Scenario, trace: JobTrace,
              found: Replay) -> dict[str, Any]:
    from sim.report.numbers import rounded

    return {
        "version": VERSION, "topology": topology.name, "scenario": scenario.name,
        "total_us": rounded(found.total_s * 1e6), "dropped_ctrl_deps": trace.dropped,
        "ranks": [{"total_us": rounded(rank.total_s * 1e6),
                   "compute_us": rounded(rank.compute_s * 1e6),
                   "exposed_us": rounded(rank.exposed_s * 1e6)} for rank in found.ranks]}


def _print(found: Replay, *, to_stderr: bool) -> None:
    from rich.text import Text

    from sim.report.screen import console_for, grid, show, text_column

    console = console_for(sys.stderr if to_stderr else sys.stdout)
    shown = list(enumerate(found.ranks))[:MOST_SHOWN]
    show(console, grid([
        text_column("rank", [str(rank) for rank, _ in shown]),
        text_column("total\nus", [f"{one.total_s * 1e6:.1f}" for _, one in shown]),
        text_column("GPU compute\nus", [f"{one.compute_s * 1e6:.1f}" for _, one in shown]),
        text_column("exposed\nus", [f"{one.exposed_s * 1e6:.1f}" for _, one in shown])]))
    more = f"; {len(shown)} of {len(found.ranks)} ranks are shown" if (
        len(shown) < len(found.ranks)) else ""
    show(console, Text(f"All are done after {found.total_s * 1e6:.1f} us{more}.", style="dim"))


if __name__ == "__main__":
    main()
