"""Whose certificates are believed, target by target: an authority of its own (PEM text or a file), or nobody's.

A certificate is no secret: what was given is stored and shown as it is. A file is read again whenever the target is
used, so a renewed one counts without a restart; one that has become unreadable is trouble with that target alone.
"""

from __future__ import annotations

import functools
import ssl
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import structlog
from cryptography import x509

from app.clock import iso
from app.errors import InvalidInput, TargetError
from app.fleet.schemas import TlsView
from app.wire.tls import Tls, context_of

MAX_BYTES = 512 * 1024
_BEGIN = "-----BEGIN "
_FIELD = "tls_ca"

log = structlog.get_logger()


def check_ca(given: str | None) -> str | None:
    """A CA as stored: PEM text, or the absolute path of a PEM file. Raises InvalidInput naming ``tls_ca``."""
    if given is None:
        return None
    text = given.strip()
    if not text:
        raise InvalidInput.field(_FIELD, "is empty; give PEM text or the path of a PEM file, or leave it out")
    _certificates(read_ca(text), text)
    return text


def read_ca(stored: str) -> str:
    """The PEM text. Raises InvalidInput naming ``tls_ca`` for a file that cannot be read."""
    if _BEGIN in stored:
        return stored
    if "\n" in stored or not stored.startswith("/"):
        raise InvalidInput.field(
            _FIELD,
            f"{stored[:80]!r} is neither PEM text (-----BEGIN CERTIFICATE-----) nor the absolute path of a PEM file",
        )
    path = Path(stored)
    try:
        # asked first: opening a pipe would wait for its writer
        if not stat.S_ISREG(path.stat().st_mode):
            raise InvalidInput.field(_FIELD, f"{stored!r} is not a file")
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InvalidInput.field(_FIELD, f"the file {stored!r} cannot be read ({why})") from error
    if len(raw) > MAX_BYTES:
        raise InvalidInput.field(_FIELD, f"the file {stored!r} is larger than {MAX_BYTES} bytes: no CA is")
    return raw.decode("utf-8", "replace")


def tls_of(verify: bool, ca: str | None) -> Tls:
    """What a client needs. Never raises: a CA that cannot be read now is told by each call. Reads a file."""
    if not verify or ca is None:
        return Tls(verify=verify)
    try:
        return Tls(ca=read_ca(ca))
    except InvalidInput as error:
        log.error("tls_ca.unreadable", reason=error.detail)
        return Tls(problem=error.detail)


def view_of(url: str, verify: bool, ca: str | None, now: float) -> TlsView:
    """How the certificate of this address is verified, and by which authorities. Reads a file."""
    by: Literal["system", "own_ca", "nobody"] | None = None
    if url.startswith("https:"):
        by = "nobody" if not verify else "system" if ca is None else "own_ca"
    view = TlsView(verified_by=by, verify=verify, ca=ca)
    if ca is None:
        return view
    try:
        found = _certificates(read_ca(ca), ca)
    except InvalidInput as error:
        return view.model_copy(update={"reason": error.detail})
    ends = min(c.not_valid_after_utc for c in found)
    return view.model_copy(
        update={
            "ca_names": [c.subject.rfc4514_string() for c in found[:8]],
            "ca_expires_at": iso(ends.timestamp()),
            "reason": f"the CA has expired: it was valid until {iso(ends.timestamp())}"
            if ends.timestamp() < now
            else None,
        }
    )


def tls_warnings(tls: TlsView) -> list[str]:
    """What an operator should know about it, in sentences; nothing while the connection is plain HTTP."""
    if tls.verified_by == "nobody":
        return [
            "Its certificate is NOT verified: anybody on the way can answer in its place and read the API key. "
            "Give the CA that signed it instead (tls_ca)."
        ]
    return [f"TLS: {tls.reason}"] if tls.verified_by == "own_ca" and tls.reason is not None else []


def _certificates(pem: str, given: str) -> Sequence[x509.Certificate]:
    where = "it" if _BEGIN in given else f"the file {given!r}"
    if "PRIVATE KEY-----" in pem:
        raise InvalidInput.field(_FIELD, f"{where} holds a private key; give the CA's certificate alone")
    try:
        found = _parsed(pem)
        context_of(Tls(ca=pem))
    except (ValueError, ssl.SSLError, TargetError) as error:
        raise InvalidInput.field(
            _FIELD, f"{where} holds no certificate that can be read (-----BEGIN CERTIFICATE-----, base64, -----END …)"
        ) from error
    return found


@functools.lru_cache(maxsize=256)
def _parsed(pem: str) -> Sequence[x509.Certificate]:
    return x509.load_pem_x509_certificates(pem.encode())
