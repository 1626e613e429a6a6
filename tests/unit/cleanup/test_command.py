"""`tierkeeper plan` and `tierkeeper clean`: bodies, exit statuses, JSON; on the data directory and through a panel."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from app.cleanup.schemas import PolicyInput
from app.commands import plan_listing
from app.commands.clean import CleanOptions, clean, exit_status, filter_body, plan
from app.commands.context import command_services
from app.errors import InvalidInput, NotFound
from app.fleet.schemas import StoreCreate
from tests.support.panel import running_panel
from tests.unit.cleanup.support import name_of


def empty_records(path: Path, count: int) -> None:
    path.mkdir(exist_ok=True)
    for number in range(count):
        file = path / name_of(number).decode()
        file.write_bytes(b"")
        os.utime(file, (time.time() - 7200, time.time() - 7200))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory with a store and a policy, and no panel."""
    monkeypatch.setenv("TIERKEEPER_DATA_DIR", str(tmp_path / "var"))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "l2"
    empty_records(path, 3)
    with command_services(create=True) as services:
        services.fleet.create_store(StoreCreate(path=str(path), name="main", confirm=True), actor="t")
        for name, more in (("nightly", {}), ("limited", {"limits": {"max_records": 1}})):
            body = PolicyInput(name=name, store_id="1", select=[{"kind": "corrupt"}], **more)
            services.cleanup.create_policy(body, actor="t")
    return path


class TestOnTheDataDirectory:
    def test_plan_then_clean(self, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert plan(CleanOptions(policy="nightly")) == 0
        told = capsys.readouterr().out
        assert "3 records" in told
        assert "empty: 3 records" in told
        assert all(file.name[-20:] in told for file in store.glob("*.data"))
        assert max(map(len, told.splitlines())) <= 100
        assert "tierkeeper clean --plan 1" in told
        assert len(list(store.glob("*.data"))) == 3
        assert clean(CleanOptions(policy="nightly")) == 0
        assert "succeeded: run 1 removed 3 records" in capsys.readouterr().out
        assert list(store.glob("*.data")) == []
        assert clean(CleanOptions(policy="nightly")) == 0
        assert capsys.readouterr().out.startswith("nothing_to_do: run 2")

    def test_json_is_what_the_api_answers(self, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert plan(CleanOptions(policy="1", as_json=True)) == 0
        made = json.loads(capsys.readouterr().out)
        assert (made["state"], made["records"], made["by_reason"]["empty"]["records"]) == ("succeeded", 3, 3)
        assert clean(CleanOptions(plan=made["id"], as_json=True)) == 0
        run = json.loads(capsys.readouterr().out)
        assert (run["verdict"], run["removed"]["records"]) == ("succeeded", 3)

    def test_a_long_list_is_cut_and_says_so(self, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
        empty_records(store, 40)
        assert plan(CleanOptions(policy="nightly")) == 0
        told = capsys.readouterr().out
        assert told.count(".data") == plan_listing.SHOWN
        assert f"and {40 - plan_listing.SHOWN} more; --all" in told
        assert plan(CleanOptions(policy="nightly", everything=True, as_json=True)) == 0
        made = json.loads(capsys.readouterr().out)
        assert len({item["name"] for item in made["items"]}) == made["records"] == 40
        assert {(item["class"], item["reason"], item["why"]) for item in made["items"]} == {
            ("corrupt", "empty", "corrupt")
        }

    def test_the_advice_names_options_that_exist(self, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(InvalidInput) as refused:
            plan(CleanOptions())
        assert "--plan" not in refused.value.detail

    def test_how_long_quarantine_keeps(self, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for given, kept in ((None, "7d"), ("14d", "14d"), ("ever", None)):
            options = CleanOptions(store="main", filters=("class=corrupt",), quarantine_for=given, as_json=True)
            assert plan(options) == 0
            assert json.loads(capsys.readouterr().out)["quarantine_for"] == kept

    def test_a_limit_is_exit_1(self, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert clean(CleanOptions(policy="limited")) == 1
        said = capsys.readouterr()
        assert said.out.startswith("stopped_at_limit")
        assert "max_records" in said.err

    def test_filter(self, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
        options = CleanOptions(store="main", filters=("class=corrupt", "reason=empty"), removal="delete")
        assert clean(options) == 0
        assert "removed 3 records" in capsys.readouterr().out
        assert not (store / ".tierkeeper" / "quarantine").exists() or list(store.rglob("*.data")) == []

    def test_a_store_that_is_gone_is_exit_3(self, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
        store.rename(store.with_name("moved"))
        assert plan(CleanOptions(policy="nightly")) == 3
        assert clean(CleanOptions(policy="nightly")) == 3
        assert "does not exist" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("options", "error", "field"),
        [
            ({}, InvalidInput, "--policy"),
            ({"policy": "a", "store": "b"}, InvalidInput, "--store"),
            ({"store": "main"}, InvalidInput, "--filter"),
            ({"policy": "nightly", "filters": ("class=corrupt",)}, InvalidInput, "--filter"),
            ({"store": "main", "filters": ("corrupt",)}, InvalidInput, "--filter"),
            ({"store": "main", "filters": ("clas=corrupt",)}, InvalidInput, "filter.clas"),
            ({"store": "main", "filters": ("class=corrupt",), "removal": "burn"}, InvalidInput, "--removal"),
            ({"policy": "weekly"}, NotFound, "weekly"),
            ({"plan": "x"}, NotFound, "plan"),
        ],
    )
    def test_usage(self, store: Path, options: dict[str, Any], error: type[Exception], field: str) -> None:
        with pytest.raises(error) as caught:
            clean(CleanOptions(**options))
        fields = [e.field for e in getattr(caught.value, "errors", ())]
        assert field in fields or field in str(caught.value)


@pytest.mark.parametrize(
    ("verdict", "status"),
    [("succeeded", 0), ("nothing_to_do", 0), ("insufficient", 1), ("stopped_at_limit", 1), ("failed", 3), (None, 3)],
)
def test_exit_statuses(verdict: str | None, status: int) -> None:
    assert exit_status({"verdict": verdict}) == status


def test_filter_values_may_hold_equal_signs() -> None:
    assert filter_body(CleanOptions(store="s", filters=("salt=a=b",))).filter == {"salt": "a=b"}


def test_through_a_panel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "l2"
    empty_records(path, 2)
    with running_panel(tmp_path / "var") as panel:
        client = panel.client()
        store = client.post("/api/v1/stores", json={"path": str(path), "name": "main", "confirm": True}).json()
        body = {"name": "remote", "store_id": store["id"], "select": [{"kind": "corrupt"}]}
        assert client.post("/api/v1/policies", json=body).status_code == 201
        token = client.headers["authorization"].removeprefix("Bearer ")
        assert plan(CleanOptions(policy="remote", url=panel.url, token=token)) == 0
        assert "2 records" in capsys.readouterr().out
        assert clean(CleanOptions(policy="remote", url=panel.url, token=token)) == 0
        assert list(path.glob("*.data")) == []
        with pytest.raises(NotFound):
            clean(CleanOptions(policy="elsewhere", url=panel.url, token=token))
        with pytest.raises(Exception, match="401"):
            clean(CleanOptions(policy="remote", url=panel.url, token="wrong"))
    with pytest.raises(Exception, match="does not answer"):
        clean(CleanOptions(policy="remote", url=panel.url, token=token))
