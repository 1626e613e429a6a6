"""All settings, from the environment or `.env`, prefix TIERKEEPER_; docs/SETTINGS.md lists each (a test compares)."""

from __future__ import annotations

import difflib
import functools
import io
import os
import re
from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any, Literal, Self

import structlog
from dotenv.parser import parse_stream
from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from app import secret_files
from app.errors import FieldError, InvalidInput

PREFIX = "TIERKEEPER_"
# Read by the command line as a client of a running panel, not by the panel itself.
CLIENT_NAMES = frozenset({"TIERKEEPER_URL", "TIERKEEPER_TOKEN"})
# Kubernetes injects these into every pod of a namespace that has a service named "tierkeeper".
_KUBERNETES = re.compile(r"^TIERKEEPER_(.+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT_\d+_.+)$")
# Used by the project's own tests and tools.
_HOST_PATTERN = re.compile(r"(\*\.)?[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]")
_TOOLING = frozenset({"TIERKEEPER_REAL", "TIERKEEPER_REAL_CACHE", "TIERKEEPER_REAL_KEEP"})

log = structlog.get_logger()


class Settings(BaseSettings):
    """The panel's settings. Field docstrings are the documentation shown by `tierkeeper serve --help`."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_file=".env", extra="ignore", frozen=True)

    data_dir: Path = Field(Path("./var"), description="Directory for the database, backups and locks.")
    database_url: str | None = Field(None, description="SQLAlchemy URL; default is tierkeeper.db in DATA_DIR.")
    host: str = Field("127.0.0.1", description="Address the panel listens on.")
    port: int = Field(8090, ge=0, le=65535, description="Port the panel listens on; 0 takes a free one.")
    poll_seconds: float = Field(10.0, ge=1.0, le=3600.0, description="Seconds between two polls of a target.")
    admin_password: SecretStr | None = Field(
        None, description="Password of the user admin; else one is made and printed once."
    )
    targets_file: Path | None = Field(None, description="YAML that declares servers, engines, stores and policies.")
    metrics_token: SecretStr | None = Field(None, description="When set, GET /metrics needs it as a bearer token.")
    secure_cookies: bool = Field(
        False, description="Set when people reach the panel over https: __Host- cookies with Secure."
    )
    public_url: str | None = Field(None, description="Where people reach the panel: messages about alarms link there.")
    root_path: str = Field("", description="Path prefix under which a proxy serves the panel, as in /tierkeeper.")
    allowed_hosts: str = Field(
        "", description="Host names the panel answers to, separated by commas, * for one label; empty: any."
    )
    trusted_proxies: str = Field(
        "", description="Addresses or networks of reverse proxies whose forwarded headers are believed."
    )
    forward_auth_header: str | None = Field(
        None, description="Header in which a trusted proxy names the person it has signed in, such as Remote-User."
    )
    forward_auth_role: Literal["none", "viewer", "operator", "admin"] = Field(
        "viewer", description="Role of people a proxy has signed in who have no account here; none refuses them."
    )
    allow_link_local: bool = Field(False, description="Allow targets on link-local and cloud metadata addresses.")
    secrets_dir: Path = Field(
        Path("/run/secrets"), description="Where API keys given as file:/path may be read from; nothing outside of it."
    )
    keep_raw_hours: float = Field(48.0, ge=3, le=24 * 31, description="Hours for which every single poll is kept.")
    keep_5m_days: float = Field(30.0, ge=2, le=3650, description="Days for which five-minute roll-ups are kept.")
    keep_1h_days: float = Field(730.0, ge=7, le=36500, description="Days for which hourly roll-ups are kept.")
    prometheus_url: str | None = Field(
        None, description="Prometheus that scrapes the same targets: history from before the panel's own."
    )
    prometheus_token: SecretStr | None = Field(None, description="Bearer token for that Prometheus.")
    session_idle_seconds: float = Field(12 * 3600.0, gt=0, description="A session unused for this long ends.")
    session_absolute_seconds: float = Field(7 * 86400.0, gt=0, description="A session older than this ends.")
    log_level: str = Field("INFO", description="DEBUG, INFO, WARNING or ERROR.")

    @field_validator("admin_password", "metrics_token", mode="before")
    @classmethod
    def _from_file(cls, value: Any) -> Any:
        if isinstance(value, str) and secret_files.is_reference(value):
            try:
                return secret_files.read(value, "it")
            except InvalidInput as error:
                raise ValueError(error.detail) from None
        return value

    @field_validator("log_level")
    @classmethod
    def _known_level(cls, value: str) -> str:
        level = value.upper()
        if level not in {"DEBUG", "INFO", "WARNING", "ERROR"}:
            raise ValueError("use DEBUG, INFO, WARNING or ERROR")
        return level

    @field_validator("public_url", "prometheus_url")
    @classmethod
    def _usable_url(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("http://", "https://")):
            raise ValueError("start with http:// or https://, as in https://cache-panel.example")
        return value.rstrip("/") if value else None

    @field_validator("root_path")
    @classmethod
    def _clean_root(cls, value: str) -> str:
        if value and (not value.startswith("/") or value.endswith("/")):
            raise ValueError("start with / and do not end with /, as in /tierkeeper")
        return value

    @field_validator("trusted_proxies")
    @classmethod
    def _networks(cls, value: str) -> str:
        for part in _parts(value):
            try:
                ip_network(part)
            except ValueError as error:
                raise ValueError(f"{part!r} is no address or network ({error}), as in 10.0.0.0/24") from None
        return value

    @field_validator("allowed_hosts")
    @classmethod
    def _host_names(cls, value: str) -> str:
        for part in _parts(value):
            if not _HOST_PATTERN.fullmatch(part):
                raise ValueError(f"{part!r} is no host name; write names without scheme and port, as in panel.example")
        return value

    @field_validator("forward_auth_header")
    @classmethod
    def _header_name(cls, value: str | None) -> str | None:
        if value and not re.fullmatch(r"[A-Za-z0-9-]{1,64}", value):
            raise ValueError("is no header name, as in Remote-User")
        if value and value.lower() in ("authorization", "cookie", "host", "origin"):
            raise ValueError("every client may send this header; take one that only the proxy sets, as in Remote-User")
        return value or None

    @model_validator(mode="after")
    def _proxy_is_named(self) -> Self:
        if self.forward_auth_header and not _parts(self.trusted_proxies):
            raise ValueError("FORWARD_AUTH_HEADER needs TRUSTED_PROXIES: anybody else could claim to be anybody")
        return self

    def is_trusted_proxy(self, address: str) -> bool:
        """Whether what this peer says about clients is believed."""
        return bool(self.trusted_proxies) and _listed(address, self.trusted_proxies)

    def is_allowed_host(self, host: str) -> bool:
        """Whether the panel answers under this Host header."""
        allowed = _parts(self.allowed_hosts)
        bare = host.lower().rpartition(":")[0] if re.search(r":\d*$", host) else host.lower()
        name = bare.removesuffix(".")
        return not allowed or any(_host_matches(name, pattern.lower()) for pattern in allowed)

    @model_validator(mode="after")
    def _coarser_is_kept_longer(self) -> Self:
        if not self.keep_raw_hours / 24 <= self.keep_5m_days <= self.keep_1h_days:
            raise ValueError("TIERKEEPER_KEEP_RAW_HOURS / 24 ≤ TIERKEEPER_KEEP_5M_DAYS ≤ TIERKEEPER_KEEP_1H_DAYS")
        return self

    @property
    def sqlalchemy_url(self) -> str:
        """The database URL in force."""
        return self.database_url or f"sqlite:///{self.data_dir.resolve() / 'tierkeeper.db'}"


def _parts(value: str) -> list[str]:
    return [part.strip() for part in value.split(",") if part.strip()]


@functools.lru_cache(maxsize=1024)
def _listed(address: str, networks: str) -> bool:
    try:
        found = ip_address(address)
    except ValueError:
        return False
    return any(found in ip_network(part) for part in _parts(networks))


def _host_matches(name: str, pattern: str) -> bool:
    if not pattern.startswith("*."):
        return name == pattern
    label, dot, rest = name.partition(".")
    return bool(label and dot) and rest == pattern[2:]


def load_settings(environment: Mapping[str, str] | None = None, **overrides: object) -> Settings:
    """Settings from the process environment and `.env`, with `overrides` (command-line flags) on top.

    Raises InvalidInput that names the variable, its value and the nearest known name or the allowed range.
    """
    environment = dict(os.environ if environment is None else environment)
    # A service named "tierkeeper" makes Kubernetes inject TIERKEEPER_PORT=tcp://10.0.0.1:8090: not our PORT.
    injected = {n for n in environment if _KUBERNETES.match(n)}
    if environment.get("TIERKEEPER_PORT", "").startswith("tcp://"):
        injected.add("TIERKEEPER_PORT")
    if injected:
        log.info("settings.kubernetes_names_ignored", names=sorted(injected))
    names = {f"{PREFIX}{field.upper()}" for field in Settings.model_fields}
    unknown = [n for n in environment if n.startswith(PREFIX) and n not in names | CLIENT_NAMES | _TOOLING | injected]
    unknown += [n for n in _dotenv_names() if n.startswith(PREFIX) and n not in names | CLIENT_NAMES | injected]
    if unknown:
        raise InvalidInput(
            "; ".join(_unknown(n, names) for n in sorted(set(unknown))),
            errors=tuple(FieldError(n, _unknown(n, names)) for n in sorted(set(unknown))),
        )
    values = {
        field: environment[f"{PREFIX}{field.upper()}"]
        for field in Settings.model_fields
        if f"{PREFIX}{field.upper()}" in environment and f"{PREFIX}{field.upper()}" not in injected
    }
    values.update({k: v for k, v in overrides.items() if v is not None})  # type: ignore[misc]
    try:
        return _IsolatedSettings(**values)  # type: ignore[arg-type]
    except ValidationError as error:
        found = tuple(
            FieldError(f"{PREFIX}{'_'.join(map(str, e['loc'])).upper()}", f"{_shown(e)}: {e['msg']}")
            for e in error.errors()
        )
        raise InvalidInput("; ".join(f"{f.field}={f.message}" for f in found), errors=found) from None


class _IsolatedSettings(Settings):
    """Reads `.env` but not os.environ: `load_settings` has already chosen what of that counts."""

    @classmethod
    def settings_customise_sources(cls, *_args: Any, **sources: Any) -> tuple[Any, ...]:
        init_settings, dotenv_settings = sources["init_settings"], sources["dotenv_settings"]
        return init_settings, dotenv_settings


def _shown(error: object) -> str:
    value = error.get("input") if isinstance(error, dict) else None
    return "(hidden)" if isinstance(value, SecretStr) else repr(value)


def _unknown(name: str, known: set[str]) -> str:
    near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.0)
    return f"{name} is not a setting; the nearest is {near[0]}"


def _dotenv_names() -> list[str]:
    """The names that `.env` sets. Raises InvalidInput naming the line that is no setting."""
    path = Path(".env")
    if not path.is_file():
        return []
    try:
        bindings = list(parse_stream(io.StringIO(path.read_text("utf-8"))))
    except OSError as error:
        raise InvalidInput.field(".env", f"cannot be read ({error.strerror}); see to its permissions") from error
    except UnicodeDecodeError as error:
        raise InvalidInput.field(".env", f"is not UTF-8 text (byte {error.start}); write it anew") from error
    for binding in bindings:
        lacks_value = binding.key is not None and binding.key.startswith(PREFIX) and binding.value is None
        if binding.error or lacks_value:
            text = binding.original.string
            number = binding.original.line + text[: len(text) - len(text.lstrip())].count("\n")
            line = text.strip().splitlines()[0][:80]
            raise InvalidInput.field(
                f".env line {number}",
                f"{line!r} is not a line like NAME=value; correct it, or put # before it",
            )
    return [binding.key for binding in bindings if binding.key is not None]
