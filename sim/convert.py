"""Command line: ``python -m sim.convert FROM TO`` brings a cluster from one format to another.

FROM is a topology file, an InfraGraph infrastructure (JSON or YAML, version 3.1) or NCCL's topology
file (XML); its content says which. TO is a topology file, of a topology file an infrastructure, or
with ``--to`` the topology file of ns-3 or htsim. Beside an
infrastructure lie its annotations, ``NAME.annotations.json``. A wrong file or option ends with
status 2 and one sentence. docs/use/formats.md is the manual.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import yaml

from sim.command import plain_command

if TYPE_CHECKING:
    from sim.schema.topology_model import Topology

FORMATS = ("topology", "infragraph", "ns3", "htsim")
PATH = click.Path(path_type=Path)
_INSTANCES = re.compile(rb"""^[ \t{]*["']?instances["']?[ \t]*:|"instances"\s*:\s*\[""",
                        re.MULTILINE)
"""The key of an infrastructure that no topology file has."""


@plain_command
@click.argument("source", metavar="FROM", type=PATH)
@click.argument("target", metavar="TO", type=PATH)
@click.option("--to", "wanted", type=click.Choice(FORMATS),
              help="Format of TO; infragraph of a topology file, and topology of all else, by "
                   "default.")
@click.option("--gpu", metavar="MODEL",
              help="GPU of a file that names none with a known data sheet.")
@click.option("--nvlink", metavar="RATE|none",
              help="Rate each way of a GPU's own fabric, of a file that gives none.")
@click.option("--hosts", type=click.IntRange(1, 65536), metavar="N",
              help="Hosts of NCCL's topology file, which describes one.  [2]")
@click.option("--quiet", is_flag=True, help="Say nothing of what was written.")
def main(source: Path, target: Path, *, wanted: str | None, gpu: str | None, nvlink: str | None,
         hosts: int | None, quiet: bool) -> None:
    """Convert the cluster FROM into the file TO."""
    from harp.cli.io import check_target, check_targets

    kind = _kind(source)
    wanted = wanted or ("infragraph" if kind == "topology" else "topology")
    if wanted == kind:
        raise click.UsageError(f"{source} is a file of {kind} already")
    for option, value, kinds in (("--gpu", gpu, ("infragraph", "nccl")), ("--hosts", hosts, (
            "nccl",)), ("--nvlink", nvlink, ("infragraph", "nccl"))):
        if value is not None and kind not in kinds:
            raise click.UsageError(f"{option} is for files of {' and '.join(kinds)}, and {source} "
                                   f"is one of {kind}")
    check_targets({"TO": str(target)}, inputs=[str(source)])
    check_target(str(target), stdout=False)
    written = [target, *([_beside(target)] if wanted == "infragraph" else [])]
    for path in written[1:]:
        check_target(str(path), stdout=False)
    topology, text, says = _read(source, kind, gpu, nvlink, hosts or 2)
    contents = [text] if wanted == "topology" else _exported(topology, wanted)
    _write(dict(zip(written, contents, strict=True)))
    if not quiet:
        click.echo(f"{says}: {', '.join(map(str, written))}")


def _beside(path: Path) -> Path:
    """Annotations of an infrastructure."""
    return path.with_name(f"{path.stem}.annotations.json")


def _kind(path: Path) -> str:
    """Format of a file, by what is in it; raises TopologyError where it cannot be read."""
    from sim.formats.infragraph_import import MOST_BYTES
    from sim.formats.nccl_topology import is_nccl
    from sim.schema.source import read_input

    data = read_input(path, most_bytes=MOST_BYTES,
                      allowed="a topology file, InfraGraph's infrastructure, or NCCL's topology")
    if is_nccl(data):
        return "nccl"
    return "infragraph" if _INSTANCES.search(data) else "topology"


def _read(source: Path, kind: str, gpu: str | None, nvlink: str | None,
          hosts: int) -> tuple[Topology, str, str]:
    """The cluster, its text as a topology file, and where it is from."""
    from sim.formats import infragraph_import, nccl_topology
    from sim.schema.load import checked, load
    from sim.schema.source import Source

    if kind == "topology":
        made = load(source)
        return made, made.text, f"Made of {source}"
    given = infragraph_import.Given(gpu, nvlink)
    if kind == "nccl":
        plain, says = nccl_topology.topology_of(source, given, hosts), f"Made of {source}"
    else:
        beside = _beside(source) if _beside(source).is_file() else None
        plain, kept = infragraph_import.topology_of(source, beside, given)
        says = f"{'As the annotations have it' if kept else 'Taken from the graph'} of {source}"
    text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=100)
    return checked(Source.parse(text.encode(), f"{source} as a topology file")), text, says


def _exported(topology: Topology, wanted: str) -> list[str]:
    if wanted == "ns3":
        from sim.formats.ns3 import ns3_topology

        return [ns3_topology(topology)]
    if wanted == "htsim":
        from sim.formats.htsim import htsim_topology

        return [htsim_topology(topology)]
    from sim.formats.infragraph_export import annotations_of, infrastructure_of

    return [_json(infrastructure_of(topology)), _json(annotations_of(topology))]


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def _write(files: dict[Path, str]) -> None:
    """Write all files, or none of them."""
    from harp.cli.io import write_files

    write_files({str(path): text.encode() for path, text in files.items()})


if __name__ == "__main__":
    main()
