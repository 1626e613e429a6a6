"""Policies: making, changing, forgetting, and starting them by schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.cleanup import presets
from app.cleanup.advice import check_use_is_visible
from app.cleanup.disk import store_root
from app.cleanup.execution import policy_body
from app.cleanup.policy import LAYOUT_CHANGE, PolicySpec, cron_of, in_blackout, on_layout_change
from app.cleanup.policy_parsing import parse_spec
from app.cleanup.schemas import PolicyInput, PolicyPatch, PolicyView, PresetView
from app.cleanup.service_base import ServiceBase
from app.cleanup.tables import CleanupRun, Policy
from app.cleanup.views import policy_view
from app.errors import Conflict, FieldError, InvalidInput, NotFound, StoreError
from app.fleet.targets import StoreTarget
from app.paging import parse_id
from app.scheduling.cron import validate_cron, validate_timezone
from app.scheduling.schemas import Page
from app.scheduling.service import StartedWork
from app.scheduling.tables import Schedule
from app.scheduling.work import Skipped

_SCHEDULE_KIND = "policy"
#: How long after a change of layout its policies run a second time.
FOLLOW_UP_SECONDS = 300.0


class PolicyMethods(ServiceBase):
    """Part of CleanupService."""

    def list_policies(self, *, page_size: int, page_token: str | None, store_id: int | None = None) -> Page[PolicyView]:
        """Oldest first."""
        query = select(Policy)
        if store_id is not None:
            query = query.where(Policy.store_id == store_id)
        with self._db.read() as session:
            return self._page(
                session,
                query,
                Policy.id,
                list_name=f"policies|{store_id}",
                page_size=page_size,
                page_token=page_token,
                newest_first=False,
                view=lambda row: self._policy_view(session, row),
            )

    def get_policy(self, policy_id: int) -> PolicyView:
        """Raises NotFound."""
        with self._db.read() as session:
            return self._policy_view(session, _row(session, policy_id))

    def find_policy(self, name_or_id: str) -> int:
        """The id of a policy named or numbered so (a name wins). Raises NotFound."""
        with self._db.read() as session:
            found = session.scalar(select(Policy.id).where(Policy.name == name_or_id))
            if found is None and name_or_id.isascii() and name_or_id.isdecimal() and len(name_or_id) <= 18:
                found = session.scalar(select(Policy.id).where(Policy.id == parse_id("policy", name_or_id)))
            names = list(session.scalars(select(Policy.name).order_by(Policy.name).limit(11))) if found is None else []
        if found is None:
            there = ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
            told = f"there are: {there}" if names else "there is no policy yet"
            raise NotFound(f"no policy has the name or id {name_or_id[:80]!r}; {told}")
        return found

    def create_policy(self, body: PolicyInput, *, actor: str) -> PolicyView:
        """Raises InvalidInput (each field named) or Conflict (name taken)."""
        store, missing = self._store_or_why(body.store_id)
        stored = _body(body.model_dump(include={"select", "protect", "limits", "blackouts"}))
        store_id, _, schedule, timezone = together(
            lambda: _id_of(store, missing),
            lambda: self._check(store, stored, removal=body.removal, quarantine_for=body.quarantine_for),
            lambda: _schedule(body.schedule),
            lambda: validate_timezone(body.timezone),
        )
        now = self._clock()
        row = Policy(
            name=body.name,
            store_id=store_id,
            enabled=body.enabled,
            schedule=schedule,
            timezone=timezone,
            body=stored,
            removal=body.removal,
            quarantine_for=body.quarantine_for,
            created_at=now,
            updated_at=now,
        )
        try:
            with self._db.write() as session:
                session.add(row)
                session.flush()
                self._record(session, actor, "policy.create", row.id, body.model_dump())
        except IntegrityError as error:
            raise _taken(body.name) from error
        self._keep_schedule(row, actor)
        return self.get_policy(row.id)

    def patch_policy(self, policy_id: int, body: PolicyPatch, *, actor: str) -> PolicyView:
        """Raises NotFound, InvalidInput, Conflict. Plans made before keep what they froze."""
        given = body.model_dump(exclude_unset=True)
        for name in ("name", "enabled", "timezone", "select", "removal", "blackouts"):
            if name in given and given[name] is None:
                raise InvalidInput.field(name, "cannot be null; leave it out to keep it as it is")
        with self._db.read() as session:
            old = _row(session, policy_id)
        stored = _body({**old.body, **{k: v for k, v in given.items() if k in old.body or k in _BODY_FIELDS}})
        values: dict[str, Any] = {
            k: v for k, v in given.items() if k in ("name", "enabled", "removal", "quarantine_for")
        }
        _, schedule, timezone = together(
            lambda: self._check(
                self._fleet.store_target(old.store_id),
                stored,
                removal=values.get("removal", old.removal),
                quarantine_for=values.get("quarantine_for", old.quarantine_for),
            ),
            lambda: _schedule(given.get("schedule")),
            lambda: validate_timezone(given.get("timezone", old.timezone)),
        )
        values |= {name: value for name, value in (("schedule", schedule), ("timezone", timezone)) if name in given}
        try:
            with self._db.write() as session:
                row = _row(session, policy_id)
                was = row.enabled
                row.body = stored
                row.updated_at = self._clock()
                for name, value in values.items():
                    setattr(row, name, value)
                session.flush()
                self._record(session, actor, "policy.update", policy_id, given)
                self._record_pause(session, actor, row, was)
        except IntegrityError as error:
            raise _taken(str(values.get("name"))) from error
        self._keep_schedule(row, actor)
        return self.get_policy(policy_id)

    def delete_policy(self, policy_id: int, *, actor: str) -> None:
        """Forgets the policy; its plans, runs and quarantine stay."""
        with self._db.write() as session:
            row = _row(session, policy_id)
            session.delete(row)
            self._record(session, actor, "policy.delete", policy_id, {"name": row.name})
        self._scheduling.set_for(
            _SCHEDULE_KIND, policy_id, name=row.name, cron=None, timezone="UTC", enabled=False, actor=actor
        )

    def presets(self) -> list[PresetView]:
        """Ready policies: "keep it safe", "keep it under 85 %", "two weeks unused"."""
        return presets.presets()

    # for the scheduler

    def check_schedule(self, policy_id: int, options: Mapping[str, Any]) -> None:
        """Raises NotFound when there is no such policy, InvalidInput for options (a policy takes none)."""
        if options:
            raise InvalidInput.field("options", "a policy's schedule takes no options")
        self.get_policy(policy_id)

    def schedule_paused(self, policy_id: int, paused: bool, actor: str) -> None:
        """Its schedule was paused or goes on: the policy says so too, and a later change of it keeps that."""
        with self._db.write() as session:
            row = session.get(Policy, policy_id)
            if row is None:
                return  # forgotten meanwhile
            was, row.enabled = row.enabled, not paused
            self._record_pause(session, actor, row, was)

    def fire(self, policy_id: int, options: Mapping[str, Any], actor: str) -> StartedWork | None:
        """One firing of a policy's schedule. Raises Skipped in a blackout window or when the policy is disabled.

        "Run now" (an actor that is a person) starts it all the same.
        """
        with self._db.read() as session:
            row = _row(session, policy_id)
        by_itself = actor.startswith("schedule:")
        if by_itself and not row.enabled:
            raise Skipped("the policy is switched off")
        if by_itself and self._in_blackout(row):
            raise Skipped('the policy must not run at this time (its "not between")')
        return StartedWork("cleanup", self._start(policy_id, actor, "schedule"))

    def on_layout_change(self, store_id: int) -> list[StartedWork]:
        """Starts the enabled `@layout-change` policies of a store; ones that cannot start now start when they can."""
        with self._db.write() as session:
            query = select(Policy).where(Policy.store_id == store_id, Policy.enabled.is_(True))
            rows = [row for row in session.scalars(query) if on_layout_change(row.schedule)]
            now = self._clock()
            for row in rows:
                row.pending_at = [now, now + FOLLOW_UP_SECONDS]
        return self.start_pending()

    def start_pending(self) -> list[StartedWork]:
        """Starts policies that a layout change called and that are due. For the scheduler, every minute."""
        with self._db.read() as session:
            rows = [row for row in session.scalars(select(Policy).order_by(Policy.id)) if row.pending_at]
        started: list[StartedWork] = []
        for row in rows:
            due = [at for at in row.pending_at if at <= self._clock()]
            if not due or (row.enabled and self._in_blackout(row)):
                continue
            if row.enabled:
                try:
                    started.append(StartedWork("cleanup", self._start(row.id, "system", "layout_change")))
                except Conflict:
                    continue  # another run of the store is active: as soon as it has ended
            with self._db.write() as session:
                again = session.get(Policy, row.id)
                if again is not None:
                    again.pending_at = [at for at in again.pending_at if at not in due]
        return started

    def _start(self, policy_id: int, actor: str, trigger: str) -> int:
        raise NotImplementedError  # RunMethods

    # inside

    def _store_or_why(self, store_id: str) -> tuple[StoreTarget | None, InvalidInput | None]:
        """The store, or what is wrong with its id."""
        try:
            return self._fleet.store_target(parse_id("store", store_id)), None
        except NotFound as error:
            return None, InvalidInput.field("store_id", error.detail)

    def _check(
        self, store: StoreTarget | None, stored: Mapping[str, Any], *, removal: str, quarantine_for: str | None
    ) -> PolicySpec:
        """The spec, checked against the store's file system where that can be looked at."""
        size, atime = None, "unknown"
        try:
            if store is None:
                raise StoreError("which store it is for is not known")
            with store_root(self._inventory, store) as root:
                space, atime = root.space(), root.access_times()
                size = space.used + space.free  # what df's shares are of: more than that cannot be held
        except (StoreError, OSError):
            pass  # it may be down just now; the plan will look again
        spec = parse_spec({**stored, "removal": removal, "quarantine_for": quarantine_for}, filesystem_bytes=size)
        check_use_is_visible(spec, atime)
        return spec

    def _in_blackout(self, row: Policy) -> bool:
        spec = parse_spec(policy_body(row))
        local = datetime.fromtimestamp(self._clock(), ZoneInfo(row.timezone))
        return in_blackout(spec.blackouts, local.isoweekday() % 7, local.hour * 60 + local.minute)

    def _keep_schedule(self, row: Policy, actor: str) -> None:
        self._scheduling.set_for(
            _SCHEDULE_KIND,
            row.id,
            name=row.name,
            cron=cron_of(row.schedule),
            timezone=row.timezone,
            enabled=row.enabled,
            actor=actor,
        )

    def _policy_view(self, session: Session, row: Policy) -> PolicyView:
        last = session.scalar(
            select(CleanupRun).where(CleanupRun.policy_id == row.id).order_by(CleanupRun.id.desc()).limit(1)
        )
        # Paused on the schedules page: the policy promises no firing then.
        paused = session.scalar(
            select(Schedule.paused).where(Schedule.kind == "policy", Schedule.target_id == row.id).limit(1)
        )
        return policy_view(
            row,
            parse_spec(policy_body(row)),
            store_name=self._store_name(session, row.store_id),
            last=last,
            paused=bool(paused),
            now=self._clock(),
        )

    def _record_pause(self, session: Session, actor: str, row: Policy, was: bool) -> None:
        """Who paused or resumed it, and when: an entry of its own, beside what else was changed."""
        if was != row.enabled:
            self._record(session, actor, "policy.resume" if row.enabled else "policy.pause", row.id, {"name": row.name})

    def _record(self, session: Session, actor: str, action: str, policy_id: int, detail: dict[str, Any]) -> None:
        self._audit.record(
            session, actor=actor, action=action, target_kind="policy", target_id=policy_id, detail=detail
        )


def _id_of(store: StoreTarget | None, missing: InvalidInput | None) -> int:
    if store is None:
        raise missing or InvalidInput.field("store_id", "choose a store")
    return store.id


def check_text(body: Mapping[str, Any]) -> None:
    """What a policy's JSON says, however wrong its shape is otherwise. Raises InvalidInput naming each bad field."""
    together(
        lambda: parse_spec({name: body[name] for name in (*_BODY_FIELDS, "quarantine_for") if name in body}),
        lambda: _schedule(body.get("schedule")),
        lambda: validate_timezone(body.get("timezone") or "UTC"),
    )


_BODY_FIELDS = frozenset({"select", "protect", "limits", "blackouts"})


def _body(raw: Mapping[str, Any]) -> dict[str, Any]:
    """What is stored: only the fields that say something."""
    return {k: v for k, v in raw.items() if k in _BODY_FIELDS and (v or k == "select")}


def _schedule(text: str | None) -> str | None:
    """Cron text in its normal form, @layout-change, both, or None. Raises InvalidInput naming `schedule`."""
    if text is None or not text.strip():
        return None
    cleaned = text.strip()
    if cleaned == LAYOUT_CHANGE:
        return cleaned
    if on_layout_change(cleaned):
        by_clock = _schedule(cleaned.removesuffix(LAYOUT_CHANGE))
        return by_clock if on_layout_change(by_clock) else f"{by_clock} {LAYOUT_CHANGE}"
    if cleaned.startswith("@"):
        cron = cron_of(cleaned)
        if cron == cleaned:
            known = "@layout-change, @hourly, @daily, @weekly, @monthly or @yearly"
            raise InvalidInput.field("schedule", f"{text!r} is not one of {known}, nor cron text such as '0 3 * * *'")
        return cleaned
    return validate_cron(cleaned, field="schedule")


def together(*checks: Callable[[], Any]) -> list[Any]:
    """What each check gives. Raises one InvalidInput with what all of them found: nobody mends one field at a time."""
    found: list[Any] = []
    wrong: list[InvalidInput] = []
    for check in checks:
        try:
            found.append(check())
        except InvalidInput as error:
            wrong.append(error)
    if wrong:
        raise InvalidInput("; ".join(e.detail for e in wrong), errors=tuple(f for e in wrong for f in e.errors))
    return found


def _row(session: Session, policy_id: int) -> Policy:
    row = session.get(Policy, policy_id)
    if row is None:
        raise NotFound.of("policy", policy_id)
    return row


def _taken(name: str) -> Conflict:
    message = f"another policy is already called {name!r}; choose another name"
    return Conflict(f"name: {message}", errors=(FieldError("name", message),))
