"""What goes wrong on the way to a target and back, in one sentence: error bodies, and the errors of the HTTP stack."""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from app.errors import TargetError
from app.wire import fields

_SENTENCE = 300
#: X509_V_ERR_… of OpenSSL.
_EXPIRED, _HOSTNAME_MISMATCH, _ADDRESS_MISMATCH = 10, 62, 64


def describe_error(status: int, body: bytes) -> str:
    """One sentence from an error body.

    Known shapes: ``{"detail": text | [{"loc", "msg"}]}``, ``{"error": text | {"message"}}``, ``{"status", "reason"}``
    (LMCache and vLLM use all of them), plain text, a web page.
    """
    try:
        value: object = fields.loads(body, "")
    except TargetError:
        value = body.decode("utf-8", "replace")
    return describe_value(value)


def describe_value(value: object) -> str:
    """As `describe_error`, for a body that is parsed already."""
    return fields.clean_text(" ".join(_sentence(value).split()))[:_SENTENCE] or "no explanation"


def _sentence(value: object) -> str:
    if isinstance(value, str):
        return "a web page, not an API answer" if value.lstrip()[:1] == "<" else value
    if not isinstance(value, dict):
        return ""
    error = value.get("error")
    if isinstance(error, dict):
        error = error.get("message")
    if isinstance(error, str):
        return error
    for key in ("reason", "detail", "message"):
        found = value.get(key)
        if isinstance(found, str):
            return found
        if isinstance(found, list):
            return "; ".join(_one_problem(item) for item in found[:5])
    return str(value.get("status") or "")


def _one_problem(item: object) -> str:
    problem = fields.mapping(item)
    place = ".".join(str(step) for step in fields.sequence(problem.get("loc")))
    return f"{place}: {problem.get('msg', item)}" if place else str(problem.get("msg", item))


@contextmanager
def translated(where: str, seconds: float) -> Iterator[None]:
    """Turn everything httpx, the socket layer and the clock may raise into TargetError."""
    try:
        yield
    except TargetError:
        raise
    except TimeoutError as error:
        raise TargetError("timeout", f"{where} took longer than {seconds:g} s") from error
    except httpx.TimeoutException as error:
        doing = "connecting to" if isinstance(error, httpx.ConnectTimeout) else "an answer from"
        raise TargetError("timeout", f"{where}: waited too long for {doing} the target") from error
    except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, OSError) as error:
        raise _from_transport(where, error) from error


def _from_transport(where: str, error: Exception) -> TargetError:
    for cause in _causes(error):
        if isinstance(cause, socket.gaierror):
            return TargetError("dns", f"{where}: the host name is not known")
        if isinstance(cause, ssl.SSLError):
            return TargetError("tls", f"{where}: {_of_tls(cause)}")
        if isinstance(cause, ConnectionRefusedError):
            return TargetError("refused", f"{where}: connection refused; nothing listens there (or only on 127.0.0.1)")
        if isinstance(cause, OSError) and cause.errno in (
            errno.EHOSTUNREACH,
            errno.ENETUNREACH,
            errno.EACCES,
            errno.EPERM,
        ):
            return TargetError("refused", f"{where}: no way to that host")
    if isinstance(error, httpx.ConnectError):
        return TargetError("refused", f"{where}: no connection ({_short(error)})")
    said = str(error).lower()
    if isinstance(error, httpx.RemoteProtocolError) and "disconnected" not in said and "closed" not in said:
        return TargetError("unreadable", f"{where}: what answers there does not speak HTTP ({_short(error)})")
    if isinstance(error, (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.LocalProtocolError)):
        return TargetError("unreadable", f"{where}: the request cannot be sent ({_short(error)})")
    return TargetError("closed", f"{where}: the connection was cut off ({_short(error)})")


def _of_tls(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        way = {
            _HOSTNAME_MISMATCH: "register it by a name that its certificate holds",
            _ADDRESS_MISMATCH: "register it by a name that its certificate holds",
            _EXPIRED: "the target needs a new certificate",
        }.get(error.verify_code, "give the CA that signed it (tls_ca)")
        return f"its certificate is not accepted ({error.verify_message}); {way}"
    if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"):
        return f"it does not speak TLS there ({error.reason}); try http://"
    return f"no secure connection ({error.reason or 'no TLS'})"


def _causes(error: BaseException) -> Iterator[BaseException]:
    pending: list[BaseException | None] = [error]
    seen: set[int] = set()
    while pending:
        current = pending.pop(0)
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        if isinstance(current, BaseExceptionGroup):
            pending.extend(current.exceptions)
        # the HTTP stack hides the system's error with "from None"; it is still the context
        pending.append(current.__cause__ or current.__context__)


def _short(error: Exception) -> str:
    return fields.clean_text(" ".join(str(error).split()))[:120] or type(error).__name__
