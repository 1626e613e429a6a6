"""The documents are part of the product: what they must mention is compared with what there is."""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
import typer.main

from app.acceptance.schemas import VerdictName
from app.alerts.catalogue import RULES
from app.alerts.runbooks import PAGE, RUNBOOKS
from app.checks.base import Verdict as CheckVerdict
from app.checks.rules import ALL
from app.cleanup.chunks import STATES
from app.cleanup.policy import DEFAULT_REASONS, REASONS, Select
from app.cleanup.schemas import LimitsView, PolicyInput, ProtectView
from app.cleanup.schemas import Verdict as CleanupVerdict
from app.cli import cli
from app.paths import DOCS, MIGRATIONS
from app.records import explain
from app.records.schemas import RecordClass
from app.settings import PREFIX, Settings
from app.web import words
from app.web.frame import NAV
from app.web.manual import anchor_of

ROOT = MIGRATIONS.parent
PAGES = {path.name: path.read_text("utf-8") for path in sorted(DOCS.glob("*.md"))}
#: Pages that people read on GitHub, too.
TOP = {path.name: path.read_text("utf-8") for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md")}
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(text: str) -> set[str]:
    """Every anchor of a page as GitHub makes it."""
    found: set[str] = set()
    seen: Counter[str] = Counter()
    for title in re.findall(r"^#{1,6} (.+)$", _FENCE.sub("", text), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "").replace("**", "")
        anchor = anchor_of(plain)
        found.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        seen[anchor] += 1
    return found


def links() -> Iterator[tuple[str, str]]:
    for name, text in PAGES.items():
        yield from ((f"docs/{name}", link) for link in _LINK.findall(_FENCE.sub("", text)))
    for name, text in TOP.items():
        yield from ((name, link) for link in _LINK.findall(_FENCE.sub("", text)))


@pytest.mark.parametrize(("page", "link"), sorted(set(links())))
def test_every_link_leads_somewhere(page: str, link: str) -> None:
    if link.startswith(("https://", "http://")):
        return
    file, _, anchor = link.partition("#")
    target = (ROOT / page).parent / file if file else ROOT / page
    assert target.exists(), link
    if anchor:
        assert anchor in anchors(target.read_text("utf-8")), link


def test_every_setting_is_documented() -> None:
    missing = [
        f"{PREFIX}{name.upper()}"
        for name in Settings.model_fields
        if f"`{PREFIX}{name.upper()}`" not in PAGES["SETTINGS.md"]
    ]
    assert missing == []


def test_every_command_is_documented() -> None:
    told = set(re.findall(r"^\| `tierkeeper ([a-z]+(?: [a-z]+(?= --))?)", PAGES["GETTING_STARTED.md"], re.MULTILINE))
    group = typer.main.get_command(cli)
    names: set[str] = set()
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        names |= {f"{name} {sub}" for sub in inner} if inner else {name}
    assert {name.split(" --")[0] for name in told} == names


def test_every_class_and_every_reason_is_explained() -> None:
    text = PAGES["CLASSES.md"]
    assert [c for c in get_args(RecordClass) if f"\n| `{c}` | " not in text] == []
    table = set(re.findall(r"^\| `(\w+)` \| `(\w+)` \| ", text, re.MULTILINE))
    reasons = {(cls, reason) for cls, reason in explain._RULES if reason is not None}
    assert reasons <= table
    assert {reason for _, reason in reasons} == set(words.REASON)


def test_every_part_of_a_policy_is_explained() -> None:
    text = PAGES["CLASSES.md"]
    kinds = [*REASONS, "derived", "temporary", "unused", "capacity", "free_space"]
    assert [kind for kind in kinds if f"\n| `{kind}` | " not in text] == []
    fields = [
        *(f"protect.{name}" for name in ProtectView.model_fields),
        *(f"limits.{name}" for name in LimitsView.model_fields),
        *(name for name in PolicyInput.model_fields if name in ("removal", "quarantine_for", "schedule", "blackouts")),
    ]
    assert [name for name in fields if f"`{name}`" not in text] == []
    assert {f.name for f in Select.__dataclass_fields__.values()} >= {"kind", "reasons", "high", "low", "floor"}


def test_every_verdict_is_explained() -> None:
    text = PAGES["CLASSES.md"]
    verdicts = [*get_args(VerdictName), *get_args(CleanupVerdict)]
    assert [v for v in verdicts if f"\n| `{v}` | " not in text] == []
    states = [*words.WORK, *words.HEALTH, *(str(v) for v in CheckVerdict)]
    assert [s for s in states if f"`{s}`" not in text] == []
    skipped = set(STATES) - {"planned", "quarantined", "deleted", "restored", "purged", "failed", "in_place"}
    assert [s for s in skipped - {"left_behind"} if f"`{s}`" not in text] == []


def test_every_check_rule_is_documented() -> None:
    assert [rule.id for rule in ALL if f"| `{rule.id}` |" not in PAGES["CHECKS.md"]] == []


def test_every_alarm_rule_has_a_runbook_that_exists() -> None:
    assert set(RUNBOOKS) == set(RULES)
    there = anchors(PAGES[PAGE])
    assert {rule: to for rule, to in RUNBOOKS.items() if to.partition("#")[2] not in there} == {}


def test_the_way_to_a_page_starts_in_the_side_bar() -> None:
    titles = {item.title for item in NAV}
    for name, text in PAGES.items():
        ways = re.findall(r"\*([A-Z][a-z]+) → ", text)
        assert [way for way in ways if way not in titles] == [], name


def test_wrong_answers_are_over_when_what_keep_it_safe_takes_is_gone() -> None:
    runbook = PAGES[PAGE].split("## Answers look wrong")[1].split("## ")[0].split("*Over when*")[1]
    must_go, may_stay = runbook.split("Incompatible ones")
    taken = DEFAULT_REASONS["incompatible"]
    assert [reason for reason in (*taken, "derived") if f"`{reason}`" not in must_go] == []
    assert [reason for reason in set(REASONS["incompatible"]) - taken if f"`{reason}`" not in may_stay] == []


def test_pages_lead_to_the_runbooks_of_their_troubles() -> None:
    there = anchors(PAGES[PAGE])
    templates = {path.name: path.read_text("utf-8") for path in (ROOT / "templates").rglob("*.html")}
    linked = {
        (name, anchor)
        for name, text in templates.items()
        for call in re.findall(r"ui\.runbooks\(\[(.*?)\]\)", text, re.DOTALL)
        for anchor in re.findall(r"""\(\s*["']([\w-]+)["'],""", call)
    }
    assert {link for link in linked if link[1] not in there} == set()
    # The troubles that everybody meets: from a page of the thing, and (but for upgrades) from an alarm.
    common = {
        "disk-is-full", "hit-rate-fell", "l1-evicts-all-the-time", "answers-look-wrong", "after-an-upgrade",
        "isolated-ipc",
    }  # fmt: skip
    assert common <= {anchor for _, anchor in linked}
    assert common - {to.partition("#")[2] for to in RUNBOOKS.values()} <= {"isolated-ipc"}
    assert {"server.html", "engine.html", "store.html", "acceptance_run.html", "cleanup_run.html"} <= {
        n for n, _ in linked
    }


def test_every_page_that_is_photographed_is_shown() -> None:
    """Each page of `make screenshots` has its picture in docs/PAGES.md, but for forms and the manual itself."""
    names = set(re.findall(r'^    "([\w-]+)": "', (ROOT / "scripts/screenshots.py").read_text("utf-8"), re.MULTILINE))
    shown = set(re.findall(r"\(images/([\w-]+)\.webp\)", PAGES["PAGES.md"]))
    assert len(names) > 40
    assert names - shown == {"policy-new", "acceptance-new", "style", "help", "help-runbooks"}


def test_every_page_of_the_side_bar_is_documented() -> None:
    there = anchors(PAGES["PAGES.md"])
    assert [item.title for item in NAV if anchor_of(item.title) not in there] == []


def test_pictures_are_small_and_none_is_forgotten() -> None:
    folder = DOCS / "images"
    pictures = {path for path in folder.iterdir() if path.is_file()}
    shown = {(DOCS / link).resolve() for _, link in links() if link.startswith("images/")}
    shown |= {(ROOT / link).resolve() for page, link in links() if page == "README.md" and link.startswith("docs/im")}
    assert {p.resolve() for p in pictures} == shown
    assert sum(path.stat().st_size for path in pictures) < 3_000_000
    assert {path.suffix for path in pictures} <= {".webp", ".svg"}
    for path in [path for path in pictures if path.suffix == ".webp"]:
        assert webp_width(path.read_bytes()) <= 1600, path.name


def webp_width(content: bytes) -> int:
    """Pixels across, of a lossy, lossless or extended WebP file."""
    assert content[:4] == b"RIFF"
    assert content[8:12] == b"WEBP"
    kind = content[12:16]
    if kind == b"VP8X":
        return int.from_bytes(content[24:27], "little") + 1
    if kind == b"VP8L":
        return int((struct.unpack("<I", content[21:25])[0] & 0x3FFF) + 1)
    return int(struct.unpack("<H", content[26:28])[0] & 0x3FFF)


def test_every_room_is_in_the_architecture() -> None:
    rooms = sorted(p.name for p in (ROOT / "app").iterdir() if (p / "__init__.py").exists())
    assert [room for room in rooms if f"`{room}/`" not in PAGES["ARCHITECTURE.md"]] == []


def test_every_make_target_has_a_help_line() -> None:
    lines = (ROOT / "Makefile").read_text().splitlines()
    phony = next(line for line in lines if line.startswith(".PHONY:")).split()[1:]
    assert [t for t in phony if not any(line.startswith(f"{t}:") and "##" in line for line in lines)] == []


def test_the_documentation_names_no_place_of_its_making() -> None:
    for name, text in (PAGES | TOP).items():
        assert not re.search(r"/tmp/|" + re.escape(str(Path.home())) + "/", text), name
