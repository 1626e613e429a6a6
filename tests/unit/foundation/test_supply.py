"""What the panel is made of: the bill of materials, the licences, the audit."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).parents[3] / "scripts"


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    import sys

    spec = importlib.util.spec_from_file_location(f"script_{name}", SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, f"script_{name}", module)  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def test_everything_locked_is_in_the_bill_with_a_licence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sbom = load("sbom", monkeypatch)
    monkeypatch.setattr("sys.argv", ["sbom.py", str(tmp_path)])
    sbom.main()
    document = json.loads((tmp_path / "sbom.cdx.json").read_text())
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    entries = {entry["name"]: entry for entry in document["components"]}
    assert {"fastapi", "sqlalchemy", "argon2-cffi", "htmx.org", "uplot"} <= set(entries)
    assert all(entry["licenses"][0]["expression"] for entry in entries.values())
    refs = [entry["bom-ref"] for entry in document["components"]]
    assert len(refs) == len(set(refs))
    assert document["dependencies"][0]["dependsOn"] == sorted(refs)
    # The lock and the requirements agree: what is asked for is in the bill.
    asked = (SCRIPTS.parent / "requirements" / "runtime.in").read_text().splitlines()
    wanted = [line for line in asked if "==" in line]
    assert [line for line in wanted if line.split("==")[0].split("[")[0].lower() not in entries] == []
    first = (tmp_path / "sbom.cdx.json").read_bytes()
    sbom.main()
    assert (tmp_path / "sbom.cdx.json").read_bytes() == first


def test_a_licence_nobody_looked_at_and_another_version_stop_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sbom = load("sbom", monkeypatch)
    monkeypatch.setattr(sbom, "ACCEPTED", sbom.ACCEPTED - {"BSD-3-Clause"})
    with pytest.raises(SystemExit, match="nobody has looked at licence 'BSD-3-Clause'"):
        sbom.components()
    lock = tmp_path / "runtime.lock"
    lines = [
        "fastapi==0.0.1 \\",
        "    --hash=sha256:00",
        "no-such-thing==1",
        "only-windows==1 ; sys_platform == 'win32'",
    ]
    lock.write_text("\n".join(lines))
    monkeypatch.setattr(sbom, "LOCK", lock)
    with pytest.raises(SystemExit) as caught:
        sbom.components()
    assert "fastapi is locked at 0.0.1" in str(caught.value)
    assert "no-such-thing 1 is locked but not installed" in str(caught.value)
    assert "elsewhere" not in str(caught.value)


def test_an_audit_that_could_not_look_never_says_that_all_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    audit = load("audit", monkeypatch)
    clean = {"name": "a", "version": "1", "vulns": []}
    skipped = {"name": "b", "skip_reason": "Dependency not found on PyPI"}
    flawed = {"name": "c", "version": "2", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3"]}]}

    def status(*entries: object) -> int:
        return int(audit.verdict(json.dumps({"dependencies": entries}), "")[0])

    assert [status(clean), status(clean, skipped), status(clean, skipped, flawed), status()] == [0, 3, 1, 3]
    assert audit.verdict("", "could not connect")[0] == 3
    assert "c 2: PYSEC-1, fixed in 3" in audit.verdict(json.dumps({"dependencies": [flawed]}), "")[1]
    monkeypatch.setattr(audit, "SERVICES", {"osv": "http://127.0.0.1:9/"})
    assert audit.main() == 3
