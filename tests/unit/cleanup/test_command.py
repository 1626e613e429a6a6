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
from app.commands.clean import CleanOptions, _failures, clean, exit_status, filter_body, plan
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


class TestWhatIsPrinted:
    def test_names_reach_no_terminal_raw(self, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
        name = "m\x1b[31m\n\x07" + name_of(7).decode()
        (store / name).write_bytes(b"")
        os.utime(store / name, (time.time() - 7200, time.time() - 7200))
        assert plan(CleanOptions(policy="nightly", everything=True)) == 0
        said = capsys.readouterr().out
        assert "4 records" in said
        assert "\\x1b[31m\\n" in said
        assert all(line.isprintable() for line in said.splitlines())
        assert plan(CleanOptions(policy="nightly", as_json=True)) == 0
        assert name in [item["name"] for item in json.loads(capsys.readouterr().out)["items"]]

    def test_those_that_failed_alike_are_told_together(self, capsys: pytest.CaptureFixture[str]) -> None:
        failed = [{"name": f"n{n}", "errno": 1, "message": "Operation not permitted"} for n in range(99)]
        failed.append({"name": "other", "errno": 30, "message": "Read-only file system"})
        assert list(_failures({"failed": failed, "failed_total": 3000})) == [
            "failed: Operation not permitted (errno 1): 'n0', 'n1', 'n2' and 96 more",
            "failed: Read-only file system (errno 30): 'other'",
            "failed: 2900 more, which the list of the run's records has",
        ]

    def test_a_run_that_deleted_says_its_verdict_and_whose_the_space_is(
        self, store: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for file in store.glob("*.data"):
            file.write_bytes(b"x" * 10)
        assert clean(CleanOptions(store="main", filters=("q=data",), removal="delete")) == 0
        said = capsys.readouterr().out
        assert said.startswith("succeeded: run 1 removed 3 records")
        assert "others' writes and the panel's own files included" in said

    def test_a_filter_given_twice_is_refused(self) -> None:
        with pytest.raises(InvalidInput, match=r"'class' is given twice .* with commas between values"):
            filter_body(CleanOptions(store="main", filters=("class=corrupt", "class=unreachable")))


class TestOnTheDataDirectory:
    def test_plan_then_clean(self, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert plan(CleanOptions(policy="nightly")) == 0
        said = capsys.readouterr()
        told, warned = said.out, [line for line in said.err.splitlines() if line.startswith("warning: ")]
        assert "3 records" in told
        assert "empty: 3 records" in told
        assert all(file.name[-20:] in told for file in store.glob("*.data"))
        assert max(map(len, told.splitlines())) <= 100
        assert "tierkeeper clean --plan 1" in told
        assert len(list(store.glob("*.data"))) == 3
        assert clean(CleanOptions(policy="nightly")) == 0
        said = capsys.readouterr()
        assert "succeeded: run 1 removed 3 records" in said.out
        assert "no space was freed (quarantine frees none)" in said.out
        assert warned
        assert [line for line in said.err.splitlines() if line.startswith("warning: ")] == warned
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

    def test_the_next_clean_purges_what_is_due_where_no_panel_serves(
        self, store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        options = CleanOptions(store="main", filters=("class=corrupt",), quarantine_for="1h")
        assert clean(options) == 0
        said = capsys.readouterr()
        assert "by a panel that serves, else by the next tierkeeper clean" in said.out
        assert "purged first" not in said.err
        waiting = store / ".tierkeeper" / "quarantine"
        assert len(list(waiting.rglob("*.data"))) == 3
        assert plan(options) == 0, "a plan touches nothing"
        assert len(list(waiting.rglob("*.data"))) == 3
        capsys.readouterr()
        later = time.time() + 3700
        monkeypatch.setattr("app.commands.context.system_clock", lambda: later)
        assert clean(CleanOptions(policy="nightly")) == 0
        assert "purged first: the quarantine of 1 run, whose time was over" in capsys.readouterr().err
        assert list(waiting.rglob("*.data")) == []

    def test_what_is_kept_for_ever_says_who_purges_it(self, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert clean(CleanOptions(store="main", filters=("class=corrupt",), quarantine_for="ever")) == 0
        assert "kept until somebody purges it" in capsys.readouterr().out

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
        said = capsys.readouterr()
        assert said.out == "" and "plan 1 ended failed: " in said.err and "does not exist" in said.err
        assert plan(CleanOptions(policy="nightly", as_json=True)) == 3
        said = capsys.readouterr()
        assert json.loads(said.out)["state"] == "failed" and "does not exist" in said.err
        assert clean(CleanOptions(policy="nightly")) == 3
        assert "does not exist" in capsys.readouterr().err

    def test_a_directory_that_is_no_store_yet_says_how_it_becomes_one(self, store: Path) -> None:
        with command_services() as services:
            services.fleet.delete_store(1, actor="t")
        options = CleanOptions(store=str(store), filters=("class=corrupt",))
        with pytest.raises(NotFound, match="tierkeeper target add --name NAME store DIRECTORY"):
            plan(options)

    @pytest.mark.parametrize(
        ("options", "error", "field"),
        [
            ({}, InvalidInput, "--policy"),
            ({"policy": "a", "store": "b"}, InvalidInput, "--store"),
            ({"store": "main"}, InvalidInput, "--filter"),
            ({"policy": "nightly", "filters": ("class=corrupt",)}, InvalidInput, "--filter"),
            ({"store": "main", "filters": ("corrupt",)}, InvalidInput, "--filter"),
            ({"store": "main", "filters": ("clas=corrupt",)}, InvalidInput, "--filter clas"),
            ({"store": "main", "filters": ("min_size=10kb",)}, InvalidInput, "10kB (thousands), 10KiB (1024s)"),
            ({"store": "main", "filters": ("class=corrupt",), "quarantine_for": "x"}, InvalidInput, "--quarantine-for"),
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
