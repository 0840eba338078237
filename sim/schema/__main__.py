"""``python -m sim.schema`` prints the JSON Schema of the topology file."""

import json
import sys
from typing import Any

from sim.schema.model import Topology


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a topology file."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema",
            **Topology.model_json_schema()}


if __name__ == "__main__":
    json.dump(json_schema(), sys.stdout, indent=2)
    sys.stdout.write("\n")
