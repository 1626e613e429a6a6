"""``make audit``: known vulnerabilities of what the lock files pin, by pip-audit (run through uvx, not installed).

Exit status: 0 none known · 1 some found · 3 the advisory service cannot be reached, or does not know
every package, so not all is known.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[1]
PIP_AUDIT = "pip-audit==2.10.0"
#: Each service pip-audit knows, and an address that answers when it does.
SERVICES = {"osv": "https://api.osv.dev/v1/vulns/OSV-2020-111", "pypi": "https://pypi.org/pypi/pip/json"}


def reachable() -> tuple[str | None, list[str]]:
    """The first service that answers with advisories, and why the others do not."""
    why = []
    for name, address in SERVICES.items():
        try:
            answer = httpx.get(address, timeout=15, follow_redirects=True)
            # A package mirror may answer in the index's place, without the advisories.
            if answer.status_code == 200 and (name != "pypi" or "vulnerabilities" in answer.json()):
                return name, why
            why.append(f"{name}: {address} answered {answer.status_code} without advisories")
        except (httpx.HTTPError, ValueError) as error:
            why.append(f"{name}: {address}: {error or type(error).__name__}")
    return None, why


def main() -> int:
    service, why = reachable()
    if service is None:
        print("NOT AUDITED: no advisory service can be reached from here.", *why, sep="\n  ", file=sys.stderr)
        print("Run `make audit` where https://api.osv.dev or https://pypi.org answers.", file=sys.stderr)
        return 3
    worst = 0
    for lock in ("runtime", "dev"):
        command = [str(Path(sys.executable).parent / "uvx"), "--quiet", PIP_AUDIT, "--vulnerability-service", service]
        command += ["--requirement", f"requirements/{lock}.lock", "--disable-pip", "--require-hashes"]
        command += ["--format", "json", "--progress-spinner", "off"]
        done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)  # noqa: S603
        status, lines = verdict(done.stdout, done.stderr)
        print(f"requirements/{lock}.lock:", *lines, sep="\n  ")
        worst = max(worst, status)
    return worst


def verdict(report: str, trouble: str) -> tuple[int, list[str]]:
    """(exit status, lines for people) of one report. What was skipped was not audited, whatever pip-audit calls it."""
    try:
        entries = json.loads(report)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return 3, ["NOT AUDITED: pip-audit gave no report", *trouble.strip().splitlines()[-3:]]
    found = [
        f"{entry['name']} {entry['version']}: {flaw['id']}, fixed in {', '.join(flaw['fix_versions']) or 'nothing yet'}"
        for entry in entries
        for flaw in entry.get("vulns", ())
    ]
    skipped = [entry["name"] for entry in entries if entry.get("skip_reason")]
    lines = [f"{len(entries)} packages, {len(skipped)} not audited, {len(found)} known vulnerabilities", *found]
    if skipped:
        lines.append("NOT AUDITED (the advisory service does not know them): " + ", ".join(skipped))
    return (1 if found else 3 if skipped or not entries else 0), lines


if __name__ == "__main__":
    sys.exit(main())
