"""Every operation of the OpenAPI document under generated requests: no server error, no answer it does not declare.

Requests are generated from the document itself (schemathesis): right ones with ids that name something, wrong ones with
ids and fields that do not. The right ones are sent without credentials and with a token of each role, in that order, so
that what one role may not do is refused before a higher one does it; the wrong ones by the admin
and by nobody. The seed is fixed; `HOSTILE_EXAMPLES=30` makes a long run.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from app.auth.schemas import Role, TokenInput
from tests.unit.hostile.stage import Stage, peopled_panel

EXAMPLES = int(os.environ.get("HOSTILE_EXAMPLES", "1"))
CHECKS: list[Any] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
OPEN = {"/livez", "/readyz"}
CALLERS: tuple[Role | None, ...] = (None, "viewer", "operator", "admin")
_DOING = settings(
    max_examples=EXAMPLES,
    phases=[Phase.generate],
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with peopled_panel(tmp_path_factory.mktemp("openapi")) as found:
        yield found


class Fuzzer:
    """Sends cases for every caller and keeps what was wrong with the answers."""

    def __init__(self, stage: Stage) -> None:
        self.url = stage.panel.url
        self.answers: Counter[tuple[Role | None, int]] = Counter()
        self.wrong: list[str] = []
        self.touched: set[str] = set()
        self._sessions = {role: self._session(stage, role) for role in CALLERS}

    @staticmethod
    def _session(stage: Stage, role: Role | None) -> requests.Session:
        session = requests.Session()
        session.trust_env = False
        if role is not None:
            # A name of its own each time: a test that is run again must not fail by the tokens of its first try.
            name = f"fuzz-{role}-{secrets.token_hex(4)}"
            token = stage.panel.services.auth.create_token(TokenInput(name=name, role=role), actor="test")
            session.headers["Authorization"] = f"Bearer {token.token}"
        return session

    def send(self, case: Case, callers: Sequence[Role | None]) -> None:
        self.touched.add(case.operation.label)
        for role in callers:
            session = self._sessions[role]
            headers = {k: v for k, v in (case.headers or {}).items() if k.lower() != "authorization"}
            headers.update({k: str(v) for k, v in session.headers.items() if k == "Authorization"})
            case.headers = headers
            answer = case.call(base_url=self.url, session=session, timeout=120)
            self.answers[role, answer.status_code] += 1
            if role is None and case.path not in OPEN and answer.status_code not in (401, 403, *_UNREADABLE):
                self.wrong.append(f"{case.operation.label} answers {answer.status_code} without credentials")
            try:
                case.validate_response(answer, checks=CHECKS)
            except FailureGroup as group:
                self.wrong += [f"{case.operation.label} as {role}: {failure}" for failure in group.exceptions]


# What the middleware refuses before anybody is asked who they are; none of it tells anything.
_UNREADABLE = (400, 413, 414, 431)


def _strategies(operation: Any) -> Iterator[tuple[Any, Sequence[Role | None]]]:
    """Right requests for what exists and for ids of any form; wrong ones where a query or a body can be wrong."""
    names = [parameter.name for parameter in operation.path_parameters]
    known = {"path_parameters": dict.fromkeys(names, "1")} if names else {}
    yield operation.as_strategy(generation_mode=GenerationMode.POSITIVE, **known), CALLERS
    if names:
        yield operation.as_strategy(generation_mode=GenerationMode.POSITIVE), ("admin",)
    if operation.body or operation.query:
        yield operation.as_strategy(generation_mode=GenerationMode.NEGATIVE, **known), (None, "admin")


def _fuzz(fuzzer: Fuzzer, document: Any) -> None:
    schema = schemathesis.openapi.from_dict(document)
    operations = [result.ok() for result in schema.get_all_operations()]
    # What takes things away comes last: until then there is something to ask for.
    operations.sort(key=lambda operation: operation.method.lower() == "delete")
    for operation in operations:
        for strategy, callers in _strategies(operation):
            _run(strategy, functools.partial(fuzzer.send, callers=callers))


def _run(strategy: Any, visit: Callable[[Case], None]) -> None:
    @seed(1)
    @_DOING
    @given(strategy)
    def run(case: Case) -> None:
        visit(case)

    with contextlib.suppress(Unsatisfiable):
        run()


@pytest.mark.slow
@pytest.mark.timeout(600 * EXAMPLES)
@pytest.mark.filterwarnings("ignore")
def test_no_server_error_and_no_undeclared_answer_for_any_role(stage: Stage) -> None:
    document = stage.panel.client(None).get("/api/v1/openapi.json", timeout=300).json()
    fuzzer = Fuzzer(stage)
    _fuzz(fuzzer, document)
    expected = {f"{method.upper()} {path}" for path, item in document["paths"].items() for method in item}
    assert fuzzer.touched == expected
    assert fuzzer.wrong == []
    # It reached what is behind the doors, too.
    assert {status for role, status in fuzzer.answers if role == "admin"} >= {200, 201, 202, 204, 404, 422}
    assert {status for role, status in fuzzer.answers if role == "viewer"} >= {200, 403}
