"""What is under static/vendor is exactly what the manifest says, with its licence beside it."""

from __future__ import annotations

import hashlib
import tomllib

from app.paths import STATIC

ROOT = STATIC.parent
VENDOR = STATIC / "vendor"
FOR_TESTS = ROOT / "tests" / "browser" / "vendor"
MANIFEST = tomllib.loads((VENDOR / "VENDORED.toml").read_text())


def _entries() -> dict[str, str]:
    found = {}
    for package in MANIFEST["package"]:
        for entry in [*package["file"], *([package["sprite"]] if "sprite" in package else [])]:
            found[entry["target"]] = entry["sha256"]
    return found


def test_every_vendored_file_has_the_bytes_of_the_manifest() -> None:
    for target, digest in _entries().items():
        assert hashlib.sha256((VENDOR / target).read_bytes()).hexdigest() == digest, target


def test_no_file_is_there_that_the_manifest_does_not_name() -> None:
    there = {p.relative_to(VENDOR).as_posix() for p in VENDOR.rglob("*") if p.is_file()}
    assert there == {*_entries(), "VENDORED.toml"}


def test_every_package_names_its_licence_and_ships_it() -> None:
    for package in MANIFEST["package"]:
        assert package["licence"] in ("0BSD", "MIT", "ISC", "OFL-1.1")
        licences = [e["target"] for e in package["file"] if e["source"] == "LICENSE"]
        assert len(licences) == 1
        assert (VENDOR / licences[0]).stat().st_size > 500


def test_the_licence_line_of_icons_stays_in_their_file() -> None:
    text = (VENDOR / "lucide/icons.svg").read_text()
    assert "ISC licence" in text.splitlines()[0]


def test_files_for_browser_tests_have_the_bytes_of_their_manifest() -> None:
    manifest = tomllib.loads((FOR_TESTS / "VENDORED.toml").read_text())
    files = [entry for package in manifest["package"] for entry in package["file"]]
    for entry in files:
        assert hashlib.sha256((FOR_TESTS / entry["target"]).read_bytes()).hexdigest() == entry["sha256"], entry
    there = {p.relative_to(FOR_TESTS).as_posix() for p in FOR_TESTS.rglob("*") if p.is_file()}
    assert there == {*(entry["target"] for entry in files), "VENDORED.toml"}
