"""How a target's certificate is verified: by the system's authorities, by its own, or not at all.

A context with the system's trust store costs 20 ms and is shared by all; one with a target's own authority is kept by
the text of that authority, so that a poll loads nothing. Contexts are values here: two targets with one CA share one.
"""

from __future__ import annotations

import functools
import ssl
from dataclasses import dataclass, field

from app.errors import TargetError

_KEPT = 256


@dataclass(frozen=True, slots=True)
class Tls:
    """`ca`: PEM text of the only authorities that count; None: the system's. `verify` False: whoever answers is taken
    for the target. `problem`: why the authority cannot be used just now; every call then fails and says so."""

    verify: bool = True
    ca: str | None = field(default=None, repr=False)
    problem: str | None = None


SYSTEM = Tls()
UNVERIFIED = Tls(verify=False)


def context_of(tls: Tls) -> ssl.SSLContext:
    """The context to connect with. Raises TargetError ``tls`` for an authority that cannot be used."""
    if not tls.verify:
        return _unverified()
    if tls.problem is not None:
        raise TargetError("tls", tls.problem)
    if tls.ca is None:
        return _system()
    try:
        return _own(tls.ca)
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error)
        raise TargetError("tls", f"tls_ca cannot be used ({reason}); give the PEM text of a CA certificate") from error


@functools.lru_cache(maxsize=1)
def _system() -> ssl.SSLContext:
    return ssl.create_default_context()


@functools.lru_cache(maxsize=1)
def _unverified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@functools.lru_cache(maxsize=_KEPT)
def _own(pem: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=pem)
    # Who made it trusts it: a CA made by hand often lacks the extensions that newer Pythons insist on, and a server's
    # own certificate given here is its own authority.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context
