"""What a form shows: what was typed, and what is wrong with it. Nothing typed is ever lost; secrets go along sealed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from app.errors import FieldError, TierkeeperError
from app.web import kept

_SECRET_FIELDS = kept.KEPT_FIELDS | {"password"}
#: Fields that a form calls otherwise than the API does.
_CALLED = {"tls_ca": "own CA"}


@dataclass(frozen=True)
class FormState:
    """`values` holds every field by name; a field with several values (check boxes) keeps all of them.

    `fields` names the fields the form shows: errors about others appear on top of the form instead.
    """

    values: Mapping[str, Sequence[str]] = field(default_factory=dict)
    errors: tuple[FieldError, ...] = ()
    summary: str = ""
    fields: frozenset[str] = frozenset()
    aliases: Mapping[str, str] = field(default_factory=dict)  # JSON path of the API -> field of the form
    labels: Mapping[str, str] = field(default_factory=dict)  # field of the form -> what the form calls it

    @classmethod
    def of(cls, values: Mapping[str, object], *, fields: Sequence[str] = ()) -> FormState:
        """A form filled from plain values: None is empty, lists keep every item, true is ``on``."""
        return cls(values={k: _texts(v) for k, v in values.items()}, fields=frozenset(fields or values))

    def failed(
        self,
        error: TierkeeperError,
        aliases: Mapping[str, str] | None = None,
        *,
        outcome: str = "Nothing was changed.",
    ) -> FormState:
        """The same form with what is wrong with it. `outcome` says what came of it: a filter changes nothing anyway."""
        form = replace(self, errors=error.errors, aliases=aliases or self.aliases)
        named = ", ".join(dict.fromkeys(form._called(e.field) for e in error.errors))
        told = f"{error.title}: {named}. {outcome}" if named else f"{error.title}: {error.detail}"
        return replace(form, summary=told)

    def value(self, name: str) -> str:
        """The (first) value of a field; secrets are never shown again."""
        found = self.values.get(name, ())
        return found[0] if found and name not in _SECRET_FIELDS else ""

    def kept(self, name: str) -> str:
        """A secret that was typed, sealed, for a hidden field beside its own; empty where there is none."""
        typed = (self.values.get(name) or [""])[0].strip() if name in kept.KEPT_FIELDS else ""
        return kept.seal(name, typed) if typed else ""

    def has(self, name: str, value: str = "on") -> bool:
        """Whether a check box is ticked."""
        return value in self.values.get(name, ())

    def errors_of(self, name: str) -> tuple[str, ...]:
        """The sentences about one field."""
        return tuple(e.message for e in self.errors if self._field(e.field) == name)

    @property
    def stray_errors(self) -> tuple[FieldError, ...]:
        """Errors about what this form does not show."""
        return tuple(e for e in self.errors if self._field(e.field) not in self.fields)

    def _called(self, path: str) -> str:
        """A field that is wrong, in the words of the form."""
        return self.labels.get(self._field(path)) or _CALLED.get(path, path.replace("_", " ").replace(".", " "))

    def _field(self, path: str) -> str:
        if path in self.aliases:
            return self.aliases[path]
        return path if path in self.fields else path.split("[")[0].split(".")[0]


def _texts(value: object) -> tuple[str, ...]:
    if value is None or value is False:
        return ()
    if value is True:
        return ("on",)
    if isinstance(value, (list, tuple, set, frozenset)):
        return tuple(str(v) for v in value)
    return (str(value),)
