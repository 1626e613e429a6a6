"""Secrets at rest: what the panel must be able to say again (API keys, addresses of notifiers) is sealed in its rows.

The key is a file of the data directory (`secret.key`, mode 0600), never a row: a copy of the database alone, such as a
backup, tells no secret. The seal is ChaCha20-Poly1305 (authenticated) with a fresh 96-bit nonce each time. Sealed text
is told by its prefix; text without it is read as it is, so rows from before are sealed when they are next written.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
from pathlib import Path
from typing import Any

import structlog
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from sqlalchemy import JSON, String
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

from app.errors import InvalidInput

KEY_FILE = "secret.key"
PREFIX = "sealed1:"
_KEY_BYTES, _NONCE_BYTES = 32, 12

log = structlog.get_logger()


class Vault:
    """Seals and opens texts under one 256-bit key."""

    def __init__(self, key: bytes) -> None:
        if len(key) != _KEY_BYTES:
            raise ValueError(f"a key has {_KEY_BYTES} bytes")
        self._cipher = ChaCha20Poly1305(key)

    @classmethod
    def of(cls, data_dir: Path) -> Vault:
        """The vault of a data directory; its key is made at first use. Raises InvalidInput for a damaged key file."""
        path = data_dir / KEY_FILE
        try:
            handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        except FileExistsError:
            key = path.read_bytes()
        except OSError as error:
            raise InvalidInput.field("TIERKEEPER_DATA_DIR", f"{path} cannot be made ({error.strerror})") from error
        else:
            key = secrets.token_bytes(_KEY_BYTES)
            with os.fdopen(handle, "wb") as file:
                file.write(key)
                file.flush()
                os.fsync(file.fileno())
        if len(key) != _KEY_BYTES:
            raise InvalidInput.field(
                "TIERKEEPER_DATA_DIR",
                f"{path} is damaged ({len(key)} bytes instead of {_KEY_BYTES}); put its copy back, or remove it and "
                "enter the API keys and notifier addresses again",
            )
        return cls(key)

    def seal(self, text: str) -> str:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = nonce + self._cipher.encrypt(nonce, text.encode("utf-8", "surrogatepass"), None)
        return PREFIX + base64.b64encode(sealed).decode("ascii")

    def open(self, sealed: str) -> str:
        """Raises ValueError where it was sealed under another key, or changed since."""
        raw = base64.b64decode(sealed.removeprefix(PREFIX), validate=True)
        try:
            plain = self._cipher.decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], None)
        except (InvalidTag, ValueError) as error:
            raise ValueError("sealed under another key, or damaged") from error
        return plain.decode("utf-8", "surrogatepass")


def attach(dialect: Dialect, vault: Vault) -> None:
    """Makes the columns of one engine use this vault. An engine without one keeps texts as they are."""
    dialect.tierkeeper_vault = vault  # type: ignore[attr-defined]


def _vault(dialect: Dialect) -> Vault | None:
    found: Vault | None = getattr(dialect, "tierkeeper_vault", None)
    return found


def _opened(dialect: Dialect, stored: str) -> str | None:
    vault = _vault(dialect)
    try:
        if vault is not None:
            return vault.open(stored)
    except ValueError:
        pass
    log.error("secrets.unreadable", way_out=f"put {KEY_FILE} of that data directory back, or enter the secrets again")
    return None


class SecretText(TypeDecorator[str]):
    """A text column that is sealed in the database. A secret whose key is gone reads as empty."""

    impl = String
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        vault = _vault(dialect)
        return value if value is None or vault is None else vault.seal(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        return value if value is None or not value.startswith(PREFIX) else _opened(dialect, value) or ""


class SecretJson(TypeDecorator[dict[str, Any]]):
    """A JSON object that is sealed as one text. One whose key is gone reads as empty."""

    impl = JSON
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        vault = _vault(dialect)
        return value if not value or vault is None else vault.seal(json.dumps(value))

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        if not isinstance(value, str):
            return value
        found = _opened(dialect, value) if value.startswith(PREFIX) else value
        return json.loads(found) if found else {}
