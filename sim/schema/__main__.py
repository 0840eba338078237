"""``python -m sim.schema`` prints the JSON Schema of the topology file.

``python -m sim.schema FILE.md`` writes the tables of keys anew between the marks of that document.
"""

import json
import sys
from pathlib import Path

from sim.schema.reference import fill, json_schema


def main(arguments: list[str]) -> None:
    """Print the schema, or fill the documents named."""
    if not arguments:
        sys.stdout.write(json.dumps(json_schema(), indent=2) + "\n")
    for name in arguments:
        Path(name).write_text(fill(Path(name).read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
