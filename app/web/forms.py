"""What a form shows: what was typed, and what is wrong with it. Nothing typed is ever lost, secrets excepted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from app.errors import FieldError, TierkeeperError

_SECRET_FIELDS = frozenset({"password", "api_key"})


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

    @classmethod
    def of(cls, values: Mapping[str, object], *, fields: Sequence[str] = ()) -> FormState:
        """A form filled from plain values: None is empty, lists keep every item, true is ``on``."""
        return cls(values={k: _texts(v) for k, v in values.items()}, fields=frozenset(fields or values))

    def failed(self, error: TierkeeperError, aliases: Mapping[str, str] | None = None) -> FormState:
        """The same form with what is wrong with it."""
        return FormState(
            self.values,
            error.errors,
            error.title + ": " + error.detail
            if not error.errors
            else f"{error.title}: {_named(error)}. Nothing was changed.",
            self.fields,
            aliases or self.aliases,
        )

    def value(self, name: str) -> str:
        """The (first) value of a field; secrets are never shown again."""
        found = self.values.get(name, ())
        return found[0] if found and name not in _SECRET_FIELDS else ""

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

    def _field(self, path: str) -> str:
        if path in self.aliases:
            return self.aliases[path]
        return path if path in self.fields else path.split("[")[0].split(".")[0]


def _named(error: TierkeeperError) -> str:
    """The fields that are wrong, in the words of the form."""
    return ", ".join(dict.fromkeys(e.field.replace("_", " ").replace(".", " ") for e in error.errors))


def _texts(value: object) -> tuple[str, ...]:
    if value is None or value is False:
        return ()
    if value is True:
        return ("on",)
    if isinstance(value, (list, tuple, set, frozenset)):
        return tuple(str(v) for v in value)
    return (str(value),)
