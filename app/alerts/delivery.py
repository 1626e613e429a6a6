"""Getting a message out: through Apprise, or as JSON to a webhook. Network, no database.

Addresses are secrets: no error says more than what kind of trouble it was.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from urllib.parse import urlsplit

import apprise
import httpx

from app.alerts.messages import Message, digest, payload
from app.errors import InvalidInput, TargetError
from app.fleet.addresses import Resolver, check_host, system_resolver
from app.wire.destinations import guard_sync
from app.wire.proxies import for_httpx, proxy_of

TIMEOUT_SECONDS = 20.0
#: Services that act on the panel's own machine instead of telling somebody.
_LOCAL = frozenset({"syslog", "dbus", "kde", "qt", "glib", "gnome", "windows", "macosx", "blink1"})
_STATUS = re.compile(r"error=(\d{3})")
_TYPES = {"critical": "failure", "warning": "warning", "info": "info"}

# Apprise logs what it is given, addresses included: nothing of it may reach our log.
_apprise_log = logging.getLogger("apprise")
_apprise_log.addHandler(logging.NullHandler())
_apprise_log.propagate = False


@dataclass(frozen=True)
class Destination:
    """Where a notifier sends. `url` and `headers` are secret."""

    kind: str
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Sent:
    """Whether the messages got out, and what kind of trouble there was."""

    ok: bool
    detail: str


class Sender:
    """Sends messages. One attempt; trying again is the outbox's business."""

    def __init__(
        self,
        *,
        allow_link_local: bool = False,
        resolve: Resolver = system_resolver,
        timeout: float = TIMEOUT_SECONDS,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._allow_link_local = allow_link_local
        self._resolve = resolve
        self._timeout = timeout
        self._transport = transport

    def check(self, destination: Destination) -> str:
        """What the address is of, for people ("Slack", "webhook at alerts.example"). Raises InvalidInput naming
        ``url``, never showing it."""
        if destination.kind == "webhook":
            host = self._webhook_host(destination.url)
            return f"webhook at {host}"
        service = _apprise_service(destination.url)
        for host in _hosts(service):
            self._check_host(host)
        return str(service.service_name or "Apprise")[:120]

    def send(self, destination: Destination, messages: Sequence[Message]) -> Sent:
        """Sends some messages as one. Never raises for what is on the other side."""
        try:
            if destination.kind == "webhook":
                return self._webhook(destination, messages)
            return self._apprise(destination, messages)
        except InvalidInput as error:
            return Sent(False, error.detail)

    def _webhook(self, destination: Destination, messages: Sequence[Message]) -> Sent:
        self._webhook_host(destination.url)
        try:
            proxy = for_httpx(proxy_of(destination.url))
            # Redirects are not followed: they would carry the headers to an address nobody entered.
            # The answer's body is of no interest, so it is not read: it may be endless.
            with (
                httpx.Client(
                    timeout=self._timeout,
                    transport=self._transport,
                    follow_redirects=False,
                    trust_env=False,
                    proxy=proxy,
                ) as client,
                client.stream(
                    "POST",
                    destination.url,
                    json=payload(messages),
                    headers=dict(destination.headers),
                    extensions={"trace": guard_sync},
                ) as answer,
            ):
                pass
        except TargetError as error:
            return Sent(False, error.detail)
        except httpx.TimeoutException:
            return Sent(False, f"no answer within {self._timeout:g} s")
        except httpx.ConnectError as error:
            return Sent(False, f"could not connect ({_kind(error)})")
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            return Sent(False, f"the request failed ({type(error).__name__})")
        if answer.is_success:
            return Sent(True, f"answered {answer.status_code}")
        if answer.is_redirect:
            return Sent(
                False, f"answered {answer.status_code}: it redirects, which is not followed; enter its new address"
            )
        return Sent(False, f"answered {answer.status_code}")

    def _webhook_host(self, url: str) -> str:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            raise InvalidInput.field("url", "cannot be read; write https://host/path (it is not shown)") from None
        if parts.scheme not in ("http", "https") or not host or any(ord(c) <= 32 for c in url):
            raise InvalidInput.field("url", "must be an http:// or https:// address (it is not shown)")
        if parts.username is not None or parts.password is not None:
            raise InvalidInput.field("url", "must not hold a user name or password; put them into headers")
        self._check_host(host)
        return host if port is None else f"{host}:{port}"

    def _check_host(self, host: str) -> None:
        check_host("url", host, allow_link_local=self._allow_link_local, resolve=self._resolve)

    def _apprise(self, destination: Destination, messages: Sequence[Message]) -> Sent:
        service = _apprise_service(destination.url, self._timeout)
        for host in _hosts(service):
            self._check_host(host)
        shown = messages[0] if len(messages) == 1 else digest(messages)
        kind = "success" if shown.event == "resolved" else _TYPES.get(shown.severity, "info")
        seen: list[str] = []
        box = apprise.Apprise(asset=_asset(self._timeout))
        box.add(service)
        try:
            done = bool(
                box.notify(
                    body=shown.body,
                    title=shown.title,
                    notify_type=apprise.NotifyType(kind),
                    log_callback=lambda entry, _service: seen.append(str(entry.message)),
                    log_level=logging.INFO,
                )
            )
        except Exception as error:  # a plugin's bug is not ours to die of
            return Sent(False, f"the service's plugin failed ({type(error).__name__})")
        if done:
            return Sent(True, "accepted")
        status = _STATUS.search("".join(seen))
        return Sent(False, f"answered {status.group(1)}" if status else "refused, or could not be reached")


@cache
def _load_plugins() -> None:
    """Apprise reads its hundred plugins at first use, about half a second, and some of them warn of their imports."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        apprise.Apprise.instantiate("json://localhost/", asset=_asset(TIMEOUT_SECONDS))


def _asset(timeout: float) -> apprise.AppriseAsset:
    asset = apprise.AppriseAsset(
        plugin_paths=[], secure_logging=True, storage_mode=apprise.PersistentStoreMode.MEMORY, service_timeout=timeout
    )
    asset.app_id, asset.app_desc, asset.app_url = "Tierkeeper", "Tierkeeper alarms", ""
    asset.async_mode, asset.http_redirects = False, False
    return asset


def _apprise_service(url: str, timeout: float = TIMEOUT_SECONDS) -> apprise.NotifyBase:
    """The service of an address. Raises InvalidInput for one that Apprise cannot use here."""
    _load_plugins()
    scheme = url.partition("://")[0].lower()
    found = apprise.Apprise.instantiate(url, asset=_asset(timeout), suppress_exceptions=True)
    if found is None:
        raise InvalidInput.field(
            "url", f"Apprise cannot use an address that begins with {scheme[:20]!r} as it stands (it is not shown)"
        )
    if scheme in _LOCAL or type(found).__module__.rpartition(".")[2] in _LOCAL:
        raise InvalidInput.field("url", f"{scheme} acts on the panel's own machine; use a service that tells somebody")
    return found


def _hosts(service: apprise.NotifyBase) -> list[str]:
    """Where it connects to, as far as its address says so (of many services the host is a token, and harmless)."""
    found = [getattr(service, name, None) for name in ("host", "smtp_host")]
    return [host for host in found if isinstance(host, str) and host]


def _kind(error: Exception) -> str:
    text = str(error).lower()
    if "refused" in text:
        return "refused"
    if "name or service" in text or "nodename" in text or "resolution" in text or "getaddrinfo" in text:
        return "the name does not resolve"
    if "certificate" in text or "ssl" in text or "tls" in text:
        return "TLS: the certificate was not accepted"
    return "unreachable"
