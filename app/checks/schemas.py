"""Shapes of checks towards the outside. Ids are strings, times RFC 3339 UTC."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from app.shapes import ApiModel, InputModel, Page, WorkView

VerdictName = Literal["ok", "warn", "fail", "unknown"]


class CheckView(ApiModel):
    """One finding of one check about one subject.

    `configured` is what somebody set, `effective` what is in force, `origin` where that was read. `why` says why it
    matters, `fix` the exact flag, `source` where the rule comes from. `since` is when it first looked like this.
    """

    id: str
    verdict: VerdictName
    subject: str
    title: str
    evidence: str
    fix: str
    source: str
    why: str = ""
    configured: str | None = None
    effective: str | None = None
    origin: str | None = None
    server_id: str | None = None
    engine_id: str | None = None
    since: str | None = None
    checked_at: str | None = None


class CheckCounts(ApiModel):
    """How many findings of each verdict."""

    ok: int = 0
    warn: int = 0
    fail: int = 0
    unknown: int = 0


class ChecksPage(Page[CheckView]):
    """Findings, worst first. `checked_at` is the oldest of the last looks, null before the first."""

    checked_at: str | None
    counts: CheckCounts


class CheckPairView(ApiModel):
    """One server-engine pair and how it stands: `worst` is its worst verdict, `worst_title` what is so there.

    `engine_id` null: a server without an engine; `server_id` null: an engine without a server.
    """

    server_id: str | None
    engine_id: str | None
    name: str
    counts: CheckCounts
    worst: VerdictName
    worst_title: str
    checked_at: str | None


class RuleView(ApiModel):
    """One rule of the catalogue."""

    id: str
    title: str
    looks_at: str
    why: str
    source: str


class CheckRunInput(InputModel):
    """POST /checks/runs: one pair, everything of one server or engine, or (nothing given) all.

    Pasted texts belong to the target they are given with and are kept, secrets masked, for its later runs: the start-up
    logs, the environment of the in-process mode (``LMCACHE_…=…`` lines or its YAML), and command lines, ``docker run``
    lines or a compose file. An empty text forgets what was kept. `write_probe`: whether a file without a name may be
    written to the stores for a moment.
    """

    server_id: str | None = None
    engine_id: str | None = None
    write_probe: bool = True
    engine_log: str | None = Field(None, max_length=1_500_000)
    server_log: str | None = Field(None, max_length=1_500_000)
    environment: str | None = Field(None, max_length=200_000)
    commands: str | None = Field(None, max_length=200_000)
    engine_log_path: str | None = Field(None, max_length=4096)
    server_log_path: str | None = Field(None, max_length=4096)


class CheckTextsInput(InputModel):
    """POST /checks/texts: verdicts on texts alone, before anything is started. Nothing is kept."""

    commands: str = Field("", max_length=200_000)
    environment: str = Field("", max_length=200_000)
    engine_log: str = Field("", max_length=1_500_000)
    server_log: str = Field("", max_length=1_500_000)


class CheckRunView(WorkView):
    """One run of the checks."""

    server_id: str | None
    engine_id: str | None
    pairs: int
    counts: CheckCounts


class ChangeView(ApiModel):
    """One thing that is different. `kind`: verdict (a finding), setting (a value), version."""

    at: str
    kind: Literal["verdict", "setting"]
    subject: str
    name: str
    old: str | None
    new: str | None
    verdict: VerdictName | None = None
    server_id: str | None = None
    engine_id: str | None = None


class ChangesView(ApiModel):
    """What changed since it worked. `since_reason` says how that moment was found."""

    since: str | None
    since_reason: str
    changes: list[ChangeView]
