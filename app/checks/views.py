"""Findings as they are shown."""

from __future__ import annotations

from app.checks.base import Finding
from app.checks.schemas import CheckView


def finding_view(finding: Finding) -> CheckView:
    """A finding that is not kept anywhere (commands, texts)."""
    return CheckView(
        id=finding.check_id,
        verdict=finding.verdict.value,
        subject=finding.subject,
        title=finding.title,
        evidence=finding.evidence,
        fix=finding.fix,
        source=finding.source,
        why=finding.why,
        configured=finding.configured,
        effective=finding.effective,
        origin=finding.origin,
    )
