"""Texts that people give for a target: taken in, masked, kept, and used only for the process they are about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from app.checks import host
from app.checks.assemble import ENGINE_MARKER, SERVER_MARKER, EngineLook, ServerLook, Texts
from app.checks.ledger import PairResult
from app.checks.schemas import CheckRunInput
from app.checks.tables import CheckInput
from app.errors import Forbidden, InvalidInput
from app.fleet.targets import EngineTarget
from app.lmcache.in_process import mask_text

_KEPT_TEXT = 1_000_000


def given_texts(
    body: CheckRunInput, server_id: int | None, engine: EngineTarget | None, may_read_files: bool
) -> dict[tuple[str, int, str], str]:
    given: dict[tuple[str, int, str], str] = {}
    log_of_engine = _log(body.engine_log, body.engine_log_path, "engine_log_path", ENGINE_MARKER, may_read_files)
    log_of_server = _log(body.server_log, body.server_log_path, "server_log_path", SERVER_MARKER, may_read_files)
    for field, text, side in (
        ("engine_log", log_of_engine, "engine"),
        ("server_log", log_of_server, "server"),
        ("environment", body.environment, "engine"),
        ("commands", body.commands, "server" if server_id is not None else "engine"),
    ):
        if text is None:
            continue
        target = server_id if side == "server" else engine.id if engine is not None else None
        if target is None:
            raise InvalidInput.field(f"{side}_id", f"is needed with {field}: the text is about one {side}")
        given[side, target, field.removeprefix(f"{side}_")] = _kept(mask_text(text))
    return given


def _kept(text: str) -> str:
    """Its beginning (the start) and its end (what happened lately), where it is too long to be kept whole."""
    if len(text) <= _KEPT_TEXT:
        return text
    half = _KEPT_TEXT // 2
    return f"{text[:half]}\n{text[-half:].partition(chr(10))[2]}"


def _log(text: str | None, path: str | None, field: str, marker: bytes, may_read_files: bool) -> str | None:
    if path is None:
        return text
    if not may_read_files:
        raise Forbidden(f"{field}: only an admin may name a file of the panel's host; paste the text instead")
    if not path.startswith("/") or "\0" in path:
        raise InvalidInput.field(field, f"{path[:200]!r} is not an absolute path")
    try:
        return host.read_log(Path(path), marker)
    except OSError as error:
        raise InvalidInput.field(field, f"{path[:200]!r} cannot be read ({error.strerror or error})") from error


def load_texts(session: Session) -> dict[tuple[str, int], dict[str, CheckInput]]:
    """Kept texts by target and kind; whether a log is of the present process is asked of `of_this_process`."""
    found: dict[tuple[str, int], dict[str, CheckInput]] = {}
    for row in session.scalars(select(CheckInput)):
        found.setdefault((row.side, row.target_id), {})[row.kind] = row
    return found


def texts_of(rows: Mapping[str, CheckInput]) -> Texts:
    return Texts(
        log=rows["log"].text if "log" in rows else "",
        environment=rows["environment"].text if "environment" in rows else "",
        commands=rows["commands"].text if "commands" in rows else "",
    )


def of_this_process(look: ServerLook | EngineLook, rows: Mapping[str, CheckInput]) -> Texts:
    """The texts without a log that is of an earlier process."""
    kept, start = rows.get("log"), look.reading.process_start_time
    known = kept is not None and kept.process_start is not None and start is not None
    if known and kept is not None and abs((kept.process_start or 0) - (start or 0)) > 1:
        return replace(look.texts, log="")
    return look.texts


def keep_text(session: Session, side: str, target: int, kind: str, text: str, now: float, actor: str) -> None:
    session.execute(
        delete(CheckInput).where(CheckInput.side == side, CheckInput.target_id == target, CheckInput.kind == kind)
    )
    if text.strip():
        session.add(CheckInput(side=side, target_id=target, kind=kind, text=text, entered_at=now, entered_by=actor))


def stamp(session: Session, results: Sequence[PairResult]) -> None:
    """Logs that were pasted since the last run belong to the process that was just read."""
    for row in session.scalars(select(CheckInput).where(CheckInput.kind == "log", CheckInput.process_start.is_(None))):
        for item in results:
            side = item.facts.server if row.side == "server" else item.facts.engine
            ident = item.pair[0] if row.side == "server" else item.pair[1]
            if ident == row.target_id and side is not None and side.process_start is not None:
                row.process_start = side.process_start
