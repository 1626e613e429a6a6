"""What is asked in both passes: presets of how prompts recur. Pure.

Each planned request says how many tokens at its head an earlier request of the plan has left behind (`reusable`); the
cache can give back at most the whole chunks in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from app.benchmark.prompts import Piece

Shape = Literal["repeat", "one_document", "system_prompt", "multi_turn", "code_base", "use_once"]

TITLES: Final[dict[str, str]] = {
    "repeat": "every prompt twice",
    "one_document": "one document, many users",
    "system_prompt": "a long system prompt",
    "multi_turn": "conversations of several turns",
    "code_base": "a code base with edits",
    "use_once": "use once: nothing recurs",
}
MEANINGS: Final[dict[str, str]] = {
    "repeat": "pass 2 asks the prompts of pass 1 again: the most a cache can give",
    "one_document": "pass 1 reads each document once; in pass 2 every user asks another question about it",
    "system_prompt": "all prompts begin with the same long text; pass 2 brings new messages",
    "multi_turn": "pass 1 is each conversation's first turn; pass 2 goes on, each turn after what was said before",
    "code_base": "pass 1 sends whole repositories; in pass 2 one file has changed, and all after it is new",
    "use_once": "pass 2 asks prompts never seen: the cache cannot help, and what it costs becomes visible",
}
FILES: Final = 8


@dataclass(frozen=True)
class Planned:
    """One request before its tokens are known. `text` replaces the pieces (prompts of the operator's own)."""

    key: str
    pieces: tuple[Piece, ...] = ()
    reusable: int | None = 0
    text: str | None = None

    @property
    def tokens(self) -> int:
        """Planned prompt tokens; 0 for a text, whose length only the engine knows."""
        return sum(piece.tokens for piece in self.pieces)


@dataclass(frozen=True)
class Plan:
    """Both passes. `working_set` is how many different tokens they hold together."""

    first: tuple[Planned, ...]
    second: tuple[Planned, ...]
    working_set: int


def reachable(prompt_tokens: int, reusable: int | None, chunk_size: int) -> int:
    """Tokens that can come back: whole chunks of what an earlier prompt shares, and never the last token.

    8,000 tokens at chunk 2,144: 6,432. `reusable` None: the whole prompt.
    """
    shared = prompt_tokens if reusable is None else min(reusable, prompt_tokens)
    return max(0, min(shared // chunk_size * chunk_size, prompt_tokens - 1))


def plan(shape: Shape, *, contexts: int, tokens: int, users: int = 4, turns: int = 4) -> Plan:
    """The requests of a shape: `contexts` documents, conversations or repositories of `tokens` tokens each.

    `users`: questions about each document, or edits of each repository. `turns`: of each conversation.
    """
    question = max(1, min(64, tokens // 16))
    if shape == "one_document":
        return _documents(contexts, max(1, tokens - question), question, users)
    if shape == "system_prompt":
        return _system_prompt(contexts, max(1, tokens * 3 // 4), tokens - max(1, tokens * 3 // 4))
    if shape == "multi_turn":
        return _conversations(contexts, tokens, max(2, turns))
    if shape == "code_base":
        return _code_base(contexts, tokens, question, users)
    first = tuple(Planned(f"c{i}", (Piece(f"context {i}", tokens),)) for i in range(contexts))
    if shape == "use_once":
        second = tuple(Planned(f"n{i}", (Piece(f"once {i}", tokens),)) for i in range(contexts))
        return Plan(first, second, 2 * contexts * tokens)
    second = tuple(Planned(p.key, p.pieces, reusable=tokens) for p in first)
    return Plan(first, second, contexts * tokens)


def own_prompts(texts: Sequence[str]) -> Plan:
    """The operator's own texts, asked twice."""
    first = tuple(Planned(f"t{i}", text=text) for i, text in enumerate(texts))
    second = tuple(Planned(p.key, text=p.text, reusable=None) for p in first)
    return Plan(first, second, 0)


def _documents(count: int, size: int, question: int, users: int) -> Plan:
    def ask(document: int, user: int) -> Planned:
        pieces = (Piece(f"document {document}", size), Piece(f"question {document} {user}", question))
        return Planned(f"d{document}u{user}", pieces, reusable=size if user else 0)

    first = tuple(ask(d, 0) for d in range(count))
    second = tuple(ask(d, u) for u in range(1, users + 1) for d in range(count))
    return Plan(first, second, count * (size + (users + 1) * question))


def _system_prompt(count: int, size: int, message: int) -> Plan:
    def ask(number: int) -> Planned:
        pieces = (Piece("system prompt", size), *((Piece(f"message {number}", message),) if message else ()))
        return Planned(f"m{number}", pieces, reusable=size if number else 0)

    first = tuple(ask(n) for n in range(count))
    second = tuple(ask(n) for n in range(count, 2 * count))
    return Plan(first, second, size + 2 * count * message)


def _conversations(count: int, tokens: int, turns: int) -> Plan:
    step = max(1, tokens // turns)

    def ask(conversation: int, turn: int) -> Planned:
        pieces = tuple(Piece(f"conversation {conversation} turn {t}", step) for t in range(1, turn + 1))
        return Planned(f"v{conversation}t{turn}", pieces, reusable=step * (turn - 1))

    first = tuple(ask(c, 1) for c in range(count))
    second = tuple(ask(c, t) for t in range(2, turns + 1) for c in range(count))
    return Plan(first, second, count * step * turns)


def _code_base(count: int, tokens: int, question: int, edits: int) -> Plan:
    head = max(1, tokens // 8)
    size = max(1, (tokens - head - question) // FILES)

    def ask(repository: int, edit: int) -> Planned:
        # Edits begin at the last file and come closer to the head: each keeps what stands before the edited file.
        edited = FILES - 1 - (edit - 1) % FILES if edit else -1
        files = tuple(
            Piece(f"repository {repository} file {f}" + (f" edit {edit}" if f == edited else ""), size)
            for f in range(FILES)
        )
        pieces = (Piece(f"repository {repository} map", head), *files, Piece(f"ask {repository} {edit}", question))
        return Planned(f"r{repository}e{edit}", pieces, reusable=head + edited * size if edit else 0)

    first = tuple(ask(r, 0) for r in range(count))
    second = tuple(ask(r, e) for e in range(1, edits + 1) for r in range(count))
    whole = head + FILES * size + question
    return Plan(first, second, count * whole + sum(p.tokens - (p.reusable or 0) for p in second))
