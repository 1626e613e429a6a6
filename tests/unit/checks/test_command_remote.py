"""`tierkeeper check --url`: a running panel looks at its own targets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.auth.schemas import TokenInput
from app.commands.check import CheckOptions, check_command
from app.errors import InvalidInput, NotFound, TierkeeperError
from app.sandbox import SandboxThread
from tests.support.panel import running_panel

GONE = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory, sandbox: SandboxThread) -> Iterator[tuple[str, str]]:
    """(address, operator's token) of a panel that knows the sandbox's pair and a server that is gone."""
    with running_panel(tmp_path_factory.mktemp("remote") / "data", POLL_SECONDS="600") as panel:
        client = panel.client("admin")
        server = client.post("/api/v1/servers", json={"url": sandbox.server_url, "name": "cache-a"}).json()
        body = {"url": sandbox.engine_url, "name": "engine-a", "server_id": server["id"]}
        client.post("/api/v1/engines", json=body).raise_for_status()
        client.post("/api/v1/servers", json={"url": GONE, "name": "gone"}).raise_for_status()
        token = panel.services.auth.create_token(TokenInput(name="ci", role="operator"), actor="t").token
        yield panel.url, token


def run(where: tuple[str, str], capsys: pytest.CaptureFixture[str], **more: object) -> tuple[int, list[dict[str, str]]]:
    options = CheckOptions(url=where[0], token=where[1], as_json=True, **more)  # type: ignore[arg-type]
    code = check_command(options)
    # the panel logs to the same place
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith('{"checks"')]
    found: list[dict[str, str]] = json.loads(line)["checks"]
    return code, found


def test_a_pair_by_name_and_by_address(
    where: tuple[str, str], sandbox: SandboxThread, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = run(where, capsys, server="cache-a", engine="engine-a")
    ids = {item["id"]: item["verdict"] for item in found}
    assert ids["reachable"] == ids["engine_registered"] == "ok"
    assert code == (1 if "fail" in ids.values() else 0)
    assert set(found[0]) >= {"id", "verdict", "subject", "title", "evidence", "fix", "source"}
    _, again = run(where, capsys, server=sandbox.server_url.replace("127.0.0.1", "localhost"))
    assert {item["subject"] for item in again} >= {"cache-a", "engine-a"}


def test_one_that_does_not_answer_ends_with_three(where: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    code, found = run(where, capsys, server="gone")
    assert (code, found[0]["id"]) == (3, "reachable")
    assert run(where, capsys)[0] == 3  # all of them


def test_texts_alone_contact_nobody(where: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "commands").write_text("lmcache server --l1-size-gb 1 --http-host 0.0.0.0\n")
    code, found = run(where, capsys, commands=str(tmp_path / "commands"))
    assert code == 1
    assert "reachable" not in {item["id"] for item in found}


def test_mistakes(where: tuple[str, str]) -> None:
    url, token = where
    with pytest.raises(NotFound, match="leave out --url"):
        check_command(CheckOptions(url=url, token=token, server="http://127.0.0.1:12345"))
    with pytest.raises(NotFound, match="no engine has the name or id 'other'; registered are: "):
        check_command(CheckOptions(url=url, token=token, engine="other"))
    with pytest.raises(InvalidInput, match="--also"):
        check_command(CheckOptions(url=url, token=token, server="cache-a", also=("x",)))
    for wrong in (CheckOptions(url=url, token="no-token", server="cache-a"), CheckOptions(url=GONE, server="cache-a")):
        with pytest.raises(TierkeeperError, match="the panel"):
            check_command(wrong)
