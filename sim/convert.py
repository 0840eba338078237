"""Command line: ``python -m sim.convert FROM TO`` brings a cluster from one format to another.

FROM is a topology file or an InfraGraph infrastructure (JSON or YAML, version 3.1); its content
says which. TO is the other of the two, or with ``--to ns3`` the topology file of ns-3. Beside an
infrastructure lie its annotations, ``NAME.annotations.json``. A wrong file or option ends with
status 2 and one sentence. docs/use/formats.md is the manual.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import yaml

from sim.command import plain_command

if TYPE_CHECKING:
    from sim.schema.model import Topology

FORMATS = ("topology", "infragraph", "ns3")
PATH = click.Path(path_type=Path)


@plain_command
@click.argument("source", metavar="FROM", type=PATH)
@click.argument("target", metavar="TO", type=PATH)
@click.option("--to", "wanted", type=click.Choice(FORMATS),
              help="Format of TO; topology of an infrastructure, and infragraph of a topology "
                   "file, by default.")
@click.option("--gpu", metavar="MODEL",
              help="GPU of an infrastructure that names none with a known data sheet.")
@click.option("--nvlink", metavar="RATE|none",
              help="Rate each way of a GPU's own fabric, of an infrastructure that gives none.")
@click.option("--quiet", is_flag=True, help="Say nothing of what was written.")
def main(source: Path, target: Path, *, wanted: str | None, gpu: str | None, nvlink: str | None,
         quiet: bool) -> None:
    """Convert the cluster FROM into the file TO."""
    from harp.cli.io import check_target, check_targets

    reads_graph = _is_infrastructure(source)
    wanted = wanted or ("topology" if reads_graph else "infragraph")
    if not reads_graph and (gpu or nvlink):
        raise click.UsageError(f"{'--gpu' if gpu else '--nvlink'} is for an infrastructure, and "
                               f"{source} is a topology file")
    written = [target, *([_beside(target)] if wanted == "infragraph" else [])]
    check_targets({"TO": str(target)}, inputs=[str(source)])
    for path in written:
        check_target(str(path), stdout=False)
    contents, says = _converted(source, wanted, reads_graph=reads_graph, gpu=gpu, nvlink=nvlink)
    _write(dict(zip(written, contents, strict=True)))
    if not quiet:
        click.echo(f"{says}: {', '.join(map(str, written))}")


def _beside(path: Path) -> Path:
    """Annotations of an infrastructure."""
    return path.with_name(f"{path.stem}.annotations.json")


def _is_infrastructure(path: Path) -> bool:
    """Whether a file has InfraGraph's keys rather than a topology file's; raises TopologyError."""
    import re

    from sim.formats.infragraph_import import MOST_BYTES
    from sim.schema.source import read_input

    text = read_input(path, most_bytes=MOST_BYTES,
                      allowed="a topology file or an InfraGraph infrastructure")
    return bool(re.search(rb"""^\s*["']?instances["']?\s*:""", text, re.MULTILINE)
                or re.search(rb'"instances"\s*:\s*\[', text))


def _converted(source: Path, wanted: str, *, reads_graph: bool, gpu: str | None,
               nvlink: str | None) -> tuple[list[str], str]:
    """Content of each file to write, and a sentence."""
    from sim.schema.load import checked, load
    from sim.schema.source import Source

    if not reads_graph:
        if wanted == "topology":
            raise click.UsageError(f"{source} is a topology file already")
        return _exported(load(source), wanted), f"Made of {source}"
    from sim.formats.infragraph_import import Given, topology_of

    beside = _beside(source) if _beside(source).is_file() else None
    plain, kept = topology_of(source, beside, Given(gpu, nvlink))
    text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=100)
    topology = checked(Source.parse(text.encode(), f"{source} as a topology file"))
    if wanted == "infragraph":
        raise click.UsageError(f"{source} is an InfraGraph infrastructure already")
    says = ("As the annotations have it" if kept else "Taken from the graph") + f" of {source}"
    return ([text] if wanted == "topology" else _exported(topology, wanted)), says


def _exported(topology: Topology, wanted: str) -> list[str]:
    if wanted == "ns3":
        from sim.formats.ns3 import ns3_topology

        return [ns3_topology(topology)]
    from sim.formats.infragraph_export import annotations_of, infrastructure_of

    return [_json(infrastructure_of(topology)), _json(annotations_of(topology))]


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def _write(files: dict[Path, str]) -> None:
    """Write all files, after all of them were made."""
    from harp.cli.io import write_text

    for path, text in files.items():
        write_text(str(path), text)


if __name__ == "__main__":
    main()
