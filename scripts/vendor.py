"""Fetch the third-party files under static/vendor (and those of browser tests) again and check their bytes.

Usage: ``python scripts/vendor.py`` (check and copy) or ``python scripts/vendor.py --update`` (after a change of a
version in VENDORED.toml: write the new hashes). Needs ``npm``; nothing of this runs when the panel runs.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (ROOT / "static" / "vendor", ROOT / "tests" / "browser" / "vendor")


def fetch(name: str, version: str, into: Path) -> Path:
    """The unpacked package directory of ``name@version``."""
    answer = subprocess.run(  # noqa: S603  (arguments come from our own manifest)
        ["npm", "pack", "--silent", f"{name}@{version}"],  # noqa: S607
        cwd=into,
        check=True,
        capture_output=True,
        text=True,
    )
    archive = into / answer.stdout.strip().splitlines()[-1]
    target = into / archive.stem
    with tarfile.open(archive) as tar:
        tar.extractall(target, filter="data")
    return target / "package"


def sprite(icons: list[str], folder: Path) -> bytes:
    """One SVG of ``<symbol>``s from single icon files; the licence line stays on top."""
    symbols = []
    for icon in icons:
        text = (folder / f"{icon}.svg").read_text(encoding="utf-8")
        body = re.search(r"<svg[^>]*>(.*)</svg>", text, re.DOTALL)
        if body is None:
            raise SystemExit(f"{icon}.svg holds no <svg> element")
        inner = re.sub(r"\s*\n\s*", "", body.group(1)).replace(" />", "/>")
        symbols.append(f'<symbol id="{icon}" viewBox="0 0 24 24">{inner}</symbol>')
    head = '<!-- Lucide icons, ISC licence, see LICENSE beside this file. --><svg xmlns="http://www.w3.org/2000/svg">'
    return (head + "\n" + "\n".join(symbols) + "\n</svg>\n").encode()


def wanted(package: dict[str, Any], source: Path) -> list[tuple[dict[str, Any], bytes]]:
    """Every entry of one package with the bytes that the registry's package gives for it."""
    found = [(entry, (source / entry["source"]).read_bytes()) for entry in package["file"]]
    if entry := package.get("sprite"):
        found.append((entry, sprite(entry["icons"], source / "icons")))
    return found


def renew(folder: Path, *, update: bool) -> int:
    """Fetches what the manifest of one folder names; how many files have other bytes than it says."""
    manifest = folder / "VENDORED.toml"
    text = manifest.read_text(encoding="utf-8")
    bad = 0
    with tempfile.TemporaryDirectory() as scratch:
        for package in tomllib.loads(text)["package"]:
            source = fetch(package["name"], package["version"], Path(scratch))
            for entry, content in wanted(package, source):
                digest = hashlib.sha256(content).hexdigest()
                if update:
                    mark = re.escape(f'target = "{entry["target"]}"')
                    text = re.sub(rf'({mark}\s*sha256 = )"[0-9a-f]*"', rf'\1"{digest}"', text)
                elif digest != entry["sha256"]:
                    print(f"{entry['target']}: got {digest}, the manifest says {entry['sha256']}", file=sys.stderr)  # noqa: T201
                    bad += 1
                    continue
                target = folder / entry["target"]
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
    if update:
        manifest.write_text(text, encoding="utf-8")
    return bad


def main(argv: list[str] | None = None) -> int:
    """Exit status 0 when every file was fetched and had the known hash (or was updated)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--update", action="store_true", help="write the hashes of what was fetched")
    update = parser.parse_args(argv).update
    bad = sum(renew(folder, update=update) for folder in FOLDERS)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
