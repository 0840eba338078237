"""``python -m sim.schema`` prints the JSON Schema of the topology file.

``python -m sim.schema FILE.md`` writes the tables of keys anew between the marks of that document.
"""

import json
from pathlib import Path

import click

from sim.schema.reference import fill, json_schema


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("pages", nargs=-1, metavar="[PAGE.md]...",
                type=click.Path(exists=True, dir_okay=False, path_type=Path))
def main(pages: tuple[Path, ...]) -> None:
    """Print the JSON Schema of the topology file, or write the tables of keys in pages anew."""
    if not pages:
        click.echo(json.dumps(json_schema(), indent=2))
    for page in pages:
        page.write_text(fill(page.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
