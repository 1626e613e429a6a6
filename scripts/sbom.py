"""The software bill of materials (CycloneDX 1.6) and the licence list of what the panel runs with.

``python scripts/sbom.py OUT`` writes `OUT/sbom.cdx.json` and `OUT/licences.md` from the installed distributions that
`requirements/runtime.lock` names, and from the vendored files of `static/vendor/VENDORED.toml`. It fails where one is
missing, has another version than the lock says, or has a licence that nobody has looked at yet.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements" / "runtime.lock"
VENDORED = ROOT / "static" / "vendor" / "VENDORED.toml"

#: Licences that may be combined with and shipped beside Apache-2.0; each was looked at once.
ACCEPTED = frozenset(
    ["MIT", "MIT-0", "BSD-2-Clause", "BSD-3-Clause", "0BSD", "Apache-2.0", "ISC", "PSF-2.0", "MPL-2.0", "OFL-1.1"]
)
_NAMES = {
    "mit license": "MIT",
    "the mit license": "MIT",
    "expat license": "MIT",
    "bsd license": "BSD-3-Clause",
    "bsd": "BSD-3-Clause",
    "3-clause bsd license": "BSD-3-Clause",
    "bsd 3-clause": "BSD-3-Clause",
    "new bsd": "BSD-3-Clause",
    "simplified bsd": "BSD-2-Clause",
    "bsd 2-clause": "BSD-2-Clause",
    "apache software license": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "python software foundation license": "PSF-2.0",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "isc license (iscl)": "ISC",
}


@dataclass(frozen=True)
class Component:
    """One thing we ship or run with. `licence` is an SPDX expression."""

    name: str
    version: str
    licence: str
    purl: str
    home: str


def locked(text: str) -> Iterator[tuple[str, str, str]]:
    """(name, version, marker) of each pinned line of a lock file."""
    for line in text.splitlines():
        found = re.match(r"([A-Za-z0-9_.-]+)(?:\[[^]]*\])?==([^\s;\\]+)\s*(?:;\s*([^\\]*))?", line)
        if found:
            yield found.group(1).lower().replace("_", "-"), found.group(2), (found.group(3) or "").strip()


def licence_of(found: metadata.PackageMetadata) -> str:
    """An SPDX expression, from the newest of the three ways in which packages have told their licence."""
    expression = found.get("License-Expression")
    if expression:
        return str(expression)
    names = [c.rsplit(" :: ", 1)[-1] for c in found.get_all("Classifier") or () if c.startswith("License ::")]
    names = [n for n in names if n != "OSI Approved"] or (found.get("License") or "").splitlines()[:1]
    return " OR ".join(dict.fromkeys(_NAMES.get(name.strip().lower(), name.strip()) for name in names if name.strip()))


def components() -> list[Component]:
    """Every locked distribution that is installed here, then the vendored files. Raises SystemExit for a difference."""
    found, trouble = [], []
    for name, version, marker in locked(LOCK.read_text()):
        try:
            installed = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            if not marker:  # what a marker leaves out belongs to another system
                trouble.append(f"{name} {version} is locked but not installed")
            continue
        if installed.version != version:
            trouble.append(f"{name} is locked at {version} but {installed.version} is installed")
        home = next((u.split(",", 1)[1].strip() for u in installed.metadata.get_all("Project-URL") or ()), "")
        purl = f"pkg:pypi/{name}@{version}"
        found.append(
            Component(name, version, licence_of(installed.metadata), purl, installed.metadata.get("Home-page") or home)
        )
    found += _vendored()
    for component in found:
        parts = set(re.split(r"\s+(?:AND|OR|WITH)\s+|[()]", component.licence)) - {""}
        if not parts or (not parts <= ACCEPTED and not (" OR " in component.licence and parts & ACCEPTED)):
            trouble.append(f"{component.name} {component.version}: nobody has looked at licence {component.licence!r}")
    if trouble:
        raise SystemExit("\n".join(trouble))
    return found


def _vendored() -> Iterator[Component]:
    for item in tomllib.loads(VENDORED.read_text()).get("package", []):
        name, version = item["name"], str(item["version"])
        purl = f"pkg:npm/{name.replace('@', '%40')}@{version}"
        yield Component(name, version, item["licence"], purl, f"https://www.npmjs.com/package/{name}")


def cyclonedx(found: list[Component], version: str) -> dict[str, object]:
    """The CycloneDX 1.6 document. The serial number is made from the contents: equal contents, equal file."""
    entries = [
        {
            "type": "library",
            "bom-ref": c.purl,
            "name": c.name,
            "version": c.version,
            "purl": c.purl,
            "licenses": [{"expression": c.licence}],
        }
        for c in found
    ]
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([version, entries], sort_keys=True))
    application = {"type": "application", "bom-ref": "tierkeeper", "name": "tierkeeper", "version": version}
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {"component": {**application, "licenses": [{"expression": "Apache-2.0"}]}},
        "components": entries,
        "dependencies": [{"ref": "tierkeeper", "dependsOn": sorted(c.purl for c in found)}],
    }


def licence_list(found: list[Component]) -> str:
    """A table for people."""
    rows = [f"| {c.name} | {c.version} | {c.licence} | {c.home} |" for c in sorted(found, key=lambda c: c.name)]
    return "\n".join(["# Licences", "", "| name | version | licence | home |", "|---|---|---|---|", *rows, ""])


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit("usage: python scripts/sbom.py OUT_FOLDER")
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    found = components()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    (folder / "sbom.cdx.json").write_text(json.dumps(cyclonedx(found, version), indent=2) + "\n")
    (folder / "licences.md").write_text(licence_list(found))
    print(f"{len(found)} components, every licence known: {folder}/sbom.cdx.json, {folder}/licences.md")


if __name__ == "__main__":
    main()
