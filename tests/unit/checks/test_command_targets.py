"""`tierkeeper check` with plain addresses: what a panel knows of them, and addresses that are swapped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.checks.schemas import CheckRunInput
from app.cleanup.schemas import PolicyInput
from app.commands.check import CheckOptions, check_command
from app.commands.context import command_services
from app.errors import InvalidInput, NotFound
from app.fleet.schemas import EngineCreate, ServerCreate, StoreCreate
from app.sandbox import SandboxThread
from tests.unit.checks.bench import Bench


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TIERKEEPER_DATA_DIR", str(tmp_path / "var"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "var"


@pytest.fixture
def registered(data: Path, sandbox: SandboxThread) -> None:
    """A panel, not running, that knows the pair, its store, and a policy that bounds it."""
    with command_services(create=True) as services:
        fleet = services.fleet
        server = fleet.create_server(ServerCreate(url=sandbox.server_url, name="cache-a"), actor="t")
        fleet.create_engine(EngineCreate(url=sandbox.engine_url, name="engine-a", server_id=server.id), actor="t")
        store = StoreCreate(path=str(sandbox.store_path), name="l2", server_ids=[server.id], confirm=True)
        store_id = fleet.create_store(store, actor="t").id
        policy = PolicyInput(
            name="keep it small",
            store_id=store_id,
            schedule="0 3 * * *",
            select=[{"kind": "capacity", "high": "85%", "low": "70%"}],
        )
        services.cleanup.create_policy(policy, actor="t")


def findings(options: CheckOptions, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, dict[str, Any]]]:
    capsys.readouterr()
    code = check_command(options)
    return code, {item["id"]: item for item in json.loads(capsys.readouterr().out)["checks"]}


def growth(url: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return findings(CheckOptions(server=url, write_probe=False, as_json=True), capsys)[1]["growth_bounded"]


def test_an_address_that_a_panel_knows_has_its_stores_and_policies(
    registered: None, sandbox: SandboxThread, capsys: pytest.CaptureFixture[str]
) -> None:
    for url in (sandbox.server_url, sandbox.server_url.replace("127.0.0.1", "localhost") + "/"):
        found = growth(url, capsys)
        assert (found["verdict"], found["effective"]) == ("ok", "keep it small")


def test_a_panel_without_such_a_server_is_told_apart_from_no_panel(
    data: Path, sandbox: SandboxThread, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "no panel was asked" in growth(sandbox.server_url, capsys)["evidence"]
    assert not data.exists()  # looking for a panel makes none
    with command_services(create=True):
        pass
    assert "no store of the panel stands for this directory" in growth(sandbox.server_url, capsys)["evidence"]


def test_a_database_of_another_version_is_left_alone(
    registered: None, data: Path, sandbox: SandboxThread, capsys: pytest.CaptureFixture[str]
) -> None:
    with command_services() as services, services.db.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    assert "no panel was asked" in growth(sandbox.server_url, capsys)["evidence"]


def test_a_damaged_database_is_no_hindrance(
    registered: None, sandbox: SandboxThread, capsys: pytest.CaptureFixture[str]
) -> None:
    with command_services() as services, services.db.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE server RENAME TO server_gone")
        connection.exec_driver_sql("ALTER TABLE engine RENAME TO engine_gone")
    assert "no panel was asked" in growth(sandbox.server_url, capsys)["evidence"]
    code, found = findings(CheckOptions(engine=sandbox.engine_url, as_json=True), capsys)
    assert (code, found["reachable"]["verdict"]) == (0, "ok")


def test_swapped_addresses_are_recognised(sandbox: SandboxThread, capsys: pytest.CaptureFixture[str]) -> None:
    code = check_command(CheckOptions(server=sandbox.engine_url, engine=sandbox.server_url, as_json=True))
    found = json.loads(capsys.readouterr().out)["checks"]
    assert code == 1
    assert [item["id"] for item in found] == ["reachable", "reachable"]  # nothing else is said of them
    assert "a vLLM engine answers there" in found[0]["evidence"]
    assert "an LMCache cache server answers there" in found[1]["evidence"]
    assert {item["fix"] for item in found} == {"swap the two addresses"}


def test_one_wrong_address_is_named_and_the_right_side_is_still_judged(
    sandbox: SandboxThread, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = findings(CheckOptions(server=sandbox.server_url, engine=sandbox.server_url, as_json=True), capsys)
    assert code == 1
    assert found["l1_size"]["verdict"] == "ok"
    assert "connector_class" not in found


def test_a_registered_pair_that_is_swapped(bench: Bench, sandbox: SandboxThread) -> None:
    server_id = bench.server(sandbox.engine_url)
    bench.engine(sandbox.server_url, server_id)
    bench.checks.start_run(CheckRunInput(), actor="t")
    found = bench.checks.list_checks(verdict="fail").items
    assert {item.fix for item in found} == {"swap the two addresses"}


@pytest.mark.parametrize("option", ["server", "engine"])
def test_what_looks_like_an_address_is_told_as_one(registered: None, option: str) -> None:
    with pytest.raises(InvalidInput, match="is no address; write it like http://host:8080"):
        check_command(CheckOptions(**{option: "htp:/x"}))  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=f"--{option}: '127.0.0.1:8080' has no scheme; write http://127.0.0.1:8080"):
        check_command(CheckOptions(**{option: "127.0.0.1:8080"}))  # type: ignore[arg-type]
    with pytest.raises(NotFound, match="has the name or id 'other'"):
        check_command(CheckOptions(**{option: "other"}))  # type: ignore[arg-type]
