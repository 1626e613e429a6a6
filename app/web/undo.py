"""Taking back what was just done: a toast offers it for ten minutes, to the person who did it.

What takes a change back is known best at the moment of the change, so it is kept as a function, in this process (there
is one). A cookie only ever holds the key, which nobody can guess and which works once.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

from app.auth.service import Principal
from app.clock import Clock
from app.errors import Conflict

KEEP_SECONDS = 600.0
MOST = 200

#: Takes a change back; given who asks, for the audit trail.
TakeBack = Callable[[str], object]


@dataclass(frozen=True)
class Undo:
    """One change that can be taken back. `said` is the toast once it was, `path` where it is then shown."""

    take_back: TakeBack
    path: str
    said: str
    actor: str
    role: str
    until: float


class UndoStore:
    """The last changes that can be taken back. Shared by all threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()
        self._kept: dict[str, Undo] = {}

    def keep(self, take_back: TakeBack, *, path: str, said: str, principal: Principal) -> str:
        """The key under which the change can be taken back."""
        key = secrets.token_urlsafe(16)
        undo = Undo(take_back, path, said, principal.actor, principal.role, self._clock() + KEEP_SECONDS)
        with self._lock:
            now = self._clock()
            live = {k: u for k, u in self._kept.items() if u.until > now}
            # The oldest go first: there are never more than anybody could have made in ten minutes.
            self._kept = dict(list(live.items())[-(MOST - 1) :])
            self._kept[key] = undo
        return key

    def take(self, key: str, principal: Principal) -> Undo:
        """The change, once. Raises Conflict where it is too late, was taken back already, or is somebody else's."""
        with self._lock:
            undo = self._kept.get(key)
            good = (
                undo is not None
                and undo.until > self._clock()
                and undo.actor == principal.actor
                and principal.may(undo.role)
            )
            if undo is None or not good:
                raise Conflict(
                    "this can be taken back no more: ten minutes are over, the panel was restarted, or it was taken "
                    "back already. Change it on its page instead."
                )
            del self._kept[key]
        return undo
