"""Every table of the product, imported in one place: for migrations and for tests that build a database."""

from __future__ import annotations

import app.acceptance.tables
import app.alerts.tables
import app.api.tables
import app.audit.tables
import app.auth.tables
import app.benchmark.tables
import app.checks.tables
import app.cleanup.tables
import app.fleet.tables
import app.records.tables
import app.scheduling.tables
import app.telemetry.tables  # noqa: F401
from app.database import Base

metadata = Base.metadata
