"""A secret that was typed goes along with its form when the form is shown again: nothing typed is lost (a probe before
"Add it", an error in another field), and no secret stands in a page.

It travels as a hidden field, sealed under a key of this process: useless elsewhere, after a restart, or to the vault.
"""

from __future__ import annotations

import secrets

from app.vault import Vault

#: What a form shows again sealed. A sign-in's password is not among them: it is typed anew.
KEPT_FIELDS = frozenset({"api_key"})
SUFFIX = "_kept"

_vault = Vault(secrets.token_bytes(32))


def seal(name: str, text: str) -> str:
    """What the hidden field of `name` holds."""
    return _vault.seal(f"{name}\n{text}")


def unseal(values: dict[str, list[str]]) -> dict[str, list[str]]:
    """A form's values, with what was typed before in every field of `KEPT_FIELDS` that was left empty now."""
    found = {name: value for name, value in values.items() if name.removesuffix(SUFFIX) not in KEPT_FIELDS}
    for name in KEPT_FIELDS:
        typed = [text for text in values.get(name, []) if text]
        kept = values.get(name + SUFFIX, [""])[0]
        if not typed and kept:
            try:
                owner, _, text = _vault.open(kept).partition("\n")
            except ValueError:  # of another process, or made up: as if it had been left out
                owner, text = "", ""
            typed = [text] if owner == name else []
        if name in values or typed:
            found[name] = typed or [""]
    return found
