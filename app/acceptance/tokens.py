"""A token as people read it: by its text where the engine gives one, and always by its id where it is known. Pure."""

from __future__ import annotations

from app.vllm.completions import token_id_of


def token_told(key: str | None, text: str | None) -> tuple[str, str]:
    """(what it reads like, its id in words): ``("could", "token 17")``, ``("", "token 2")`` for one without text.

    White space alone is told as an escape. Where the engine printed texts there is no id; no key: the answer ends.
    """
    if key is None:
        return "", "the end of the answer"
    ident = token_id_of(key)
    if ident is None:
        text = key if text is None else text
    if text and not text.strip():
        text = repr(text)[1:-1].replace(" ", "␣")
    return text or "", "" if ident is None else f"token {ident}"
