"""Write the software bill of materials of a release: ``python deploy/sbom.py PYTHON -o sbom.json``.

PYTHON is the interpreter of an environment that holds the release and what it depends on, nothing
else (``make sbom`` makes one). ``cyclonedx-py`` lists its packages, in CycloneDX 1.6; what lies
inside the package and is no Python package, Apache ECharts, is added here. The result is held
against CycloneDX's schema before it is written.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ECHARTS = ROOT / "harp" / "html_page" / "echarts"
BUNDLED = (("echarts", "6.1.0", "Apache-2.0", ECHARTS / "echarts.min.js"),
           ("zrender", "6.1.0", "BSD-3-Clause", None))
"""Name and version at npm, licence, and the file; zrender is within ECharts' file."""


def document(python: str) -> dict[str, object]:
    """The bill as JSON."""
    listed = subprocess.run(
        [sys.executable, "-m", "cyclonedx_py", "environment", "--pyproject",
         str(ROOT / "pyproject.toml"), "--spec-version", "1.6", "--output-reproducible", python],
        stdout=subprocess.PIPE, text=True, check=True).stdout
    found: dict[str, object] = json.loads(listed)
    components = found.setdefault("components", [])
    assert isinstance(components, list)
    for name, version, licence, file in BUNDLED:
        made = {"type": "library", "bom-ref": f"npm-{name}", "name": name, "version": version,
                "purl": f"pkg:npm/{name}@{version}", "licenses": [{"license": {"id": licence}}]}
        if file is not None:
            made["hashes"] = [{"alg": "SHA-256",
                               "content": hashlib.sha256(file.read_bytes()).hexdigest()}]
        components.append(made)
    return found


def main() -> None:
    """Write the bill, if it is one by CycloneDX's schema."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("python", help="interpreter of an environment with the release alone")
    parser.add_argument("-o", dest="output", type=Path, required=True)
    asked = parser.parse_args()
    text = json.dumps(document(asked.python), indent=2) + "\n"
    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if error is not None:
        sys.exit(f"sbom: the bill is not valid: {error}")
    asked.output.write_text(text)


if __name__ == "__main__":
    main()
