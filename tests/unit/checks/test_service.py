"""Runs over real HTTP (the sandbox): what is found, kept, changed and told; routes and the command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import select

from app.checks import ledger
from app.checks.schemas import CheckRunInput, CheckTextsInput
from app.checks.tables import CheckInput, CheckResult, CheckSetting
from app.commands.check import CheckOptions, check_command
from app.errors import Forbidden, InvalidInput, NotFound
from app.sandbox import SandboxThread
from tests.unit.checks.bench import Bench
from tests.unit.checks.support import all_of, capture, facts, server, status

CLOSED = "http://127.0.0.1:9"


class TestRuns:
    def test_a_pair_is_read_judged_and_kept(self, bench: Bench, sandbox: SandboxThread) -> None:
        server_id = bench.server(sandbox.server_url)
        engine_id = bench.engine(sandbox.engine_url, server_id)
        store_id = bench.store(sandbox.store_path, server_id)
        bench.policies.add(store_id, "keep it small", "capacity")
        run = bench.checks.start_run(CheckRunInput(), actor="test")
        assert (run.state, run.pairs, run.error) == ("succeeded", 1, None)
        page = bench.checks.list_checks(server_id=server_id, engine_id=engine_id)
        found = {(item.id, item.subject): item for item in page.items}
        assert page.counts.fail == run.counts.fail
        assert found["reachable", "cache-a"].verdict == "ok"
        assert found["chunk_size_multiple", "cache-a · engine-a"].verdict == "ok"
        assert found["engine_registered", "cache-a · engine-a"].verdict == "ok"
        assert found["write_probe", str(sandbox.store_path)].verdict == "ok"
        assert found["growth_bounded", str(sandbox.store_path)].evidence.endswith("keep it small")
        assert found["shared_directory", str(sandbox.store_path)].verdict == "ok"
        assert all(item.since == item.checked_at for item in page.items)
        assert [p.name for p in sandbox.store_path.iterdir() if "probe" in p.name] == []
        assert ("check.start", run.id) in {(action, ident) for action, ident, _ in bench.base.audited()}

    def test_two_servers_on_one_directory(self, bench: Bench, sandbox: SandboxThread) -> None:
        first = bench.server(sandbox.server_urls[0])
        bench.server(sandbox.server_urls[1], "cache-b")
        bench.checks.start_run(CheckRunInput(server_id=str(first), write_probe=False), actor="test")
        found = {item.id: item for item in bench.checks.list_checks(server_id=first).items}
        assert found["shared_directory"].verdict == "warn"
        assert "cache-b" in found["shared_directory"].evidence
        assert found["write_probe"].verdict == "unknown"
        assert bench.checks.list_checks().checked_at is not None

    def test_pairs_are_ordered_by_how_they_stand(self, bench: Bench, sandbox: SandboxThread) -> None:
        calm = bench.server(sandbox.server_url)
        bench.engine(sandbox.engine_url, calm)
        bench.server(CLOSED, "cache-gone")
        bench.checks.start_run(CheckRunInput(), actor="test")
        pairs = bench.checks.list_pairs()
        assert [pair.name for pair in pairs] == ["cache-gone", "cache-a · engine-a"]
        assert (pairs[0].worst, pairs[0].worst_title) == ("fail", "The cache server does not answer")
        assert pairs[1].counts.ok > 20
        assert [pair.name for pair in bench.checks.list_pairs(server_id=calm)] == ["cache-a · engine-a"]
        answer = bench.client("viewer").get("/api/v1/checks/pairs", params={"server_id": calm})
        assert [item["engine_id"] for item in answer.json()] == ["1"]
        assert bench.client("viewer").get("/api/v1/checks/pairs", params={"server_id": "99"}).status_code == 404

    def test_targets_that_do_not_answer(self, bench: Bench) -> None:
        server_id = bench.server(CLOSED)
        bench.engine("http://127.0.0.1:10", server_id)
        run = bench.checks.start_run(CheckRunInput(), actor="test")
        assert run.state == "succeeded"
        page = bench.checks.list_checks()
        assert {item.id for item in page.items if item.verdict == "fail"} >= {"reachable"}
        assert page.items[0].verdict == "fail"

    def test_a_policy_counts_only_when_it_runs_and_frees(self, bench: Bench, sandbox: SandboxThread) -> None:
        store_id = bench.store(sandbox.store_path, bench.server(sandbox.server_url))
        bench.policies.add(store_id, "off", "capacity", enabled=False)
        bench.policies.add(store_id, "by hand", "capacity", schedule=None)
        bench.policies.add(store_id, "only wrong records", "incompatible")
        assert bench.checks.bounding_policies(store_id) == ()
        bench.policies.add(store_id, "floor", "free_space")
        assert bench.checks.bounding_policies(store_id) == ("floor",)

    def test_forgetting_a_target_forgets_its_findings(self, bench: Bench, sandbox: SandboxThread) -> None:
        server_id = bench.server(sandbox.server_url)
        bench.checks.start_run(CheckRunInput(), actor="test")
        bench.fleet.delete_server(server_id, actor="test")
        assert bench.checks.list_checks().items == []
        with bench.db.read() as session:
            assert list(session.scalars(select(CheckSetting))) == []

    def test_refresh_only_when_old(self, bench: Bench, sandbox: SandboxThread) -> None:
        bench.checks.refresh()
        assert bench.checks.list_runs(page_size=10, page_token=None).items == []
        bench.server(sandbox.server_url)
        bench.checks.refresh()
        bench.checks.refresh()
        bench.clock.now += 3601
        bench.checks.refresh()
        assert len(bench.checks.list_runs(page_size=10, page_token=None).items) == 2

    def test_unknown_targets(self, bench: Bench) -> None:
        for call in (
            lambda: bench.checks.start_run(CheckRunInput(server_id="99"), actor="t"),
            lambda: bench.checks.start_run(CheckRunInput(engine_id="x"), actor="t"),
            lambda: bench.checks.list_checks(server_id=99),
            lambda: bench.checks.changes(engine_id=99),
            lambda: bench.checks.get_run(99),
        ):
            with pytest.raises(NotFound):
                call()


class TestTexts:
    def test_a_log_is_kept_masked_and_used_until_the_engine_restarts(
        self, bench: Bench, sandbox: SandboxThread, tmp_path: Path
    ) -> None:
        engine_id = bench.engine(sandbox.engine_url, bench.server(sandbox.server_url))
        log = capture("logs/vllm-startup.log") + "\nHF_TOKEN=hf_abcdefghijklmnopqrstuv api_key='sk-123456789'\n"
        bench.checks.start_run(CheckRunInput(engine_id=str(engine_id), engine_log=log), actor="t")

        def details() -> str:
            found = {item.id: item for item in bench.checks.list_checks(engine_id=engine_id).items}
            return found["prompt_tokens_details"].verdict

        assert details() == "ok"
        with bench.db.read() as session:
            kept = session.scalars(select(CheckInput)).one()
        assert "hf_abc" not in kept.text
        assert "sk-123" not in kept.text
        assert "'max_model_len': 4096" in kept.text
        assert kept.process_start is not None
        with bench.db.write() as session:
            session.get_one(CheckInput, ("engine", engine_id, "log")).process_start = 1.0
        bench.checks.start_run(CheckRunInput(engine_id=str(engine_id)), actor="t")
        assert details() == "unknown"
        bench.checks.start_run(CheckRunInput(engine_id=str(engine_id), engine_log=" "), actor="t")
        with bench.db.read() as session:
            assert list(session.scalars(select(CheckInput))) == []

    def test_paths_are_for_admins(self, bench: Bench, sandbox: SandboxThread, tmp_path: Path) -> None:
        engine_id = str(bench.engine(sandbox.engine_url, None))
        path = tmp_path / "vllm.log"
        path.write_text(capture("logs/vllm-startup.log"))
        body = CheckRunInput(engine_id=engine_id, engine_log_path=str(path))
        with pytest.raises(Forbidden):
            bench.checks.start_run(body, actor="t")
        assert bench.checks.start_run(body, actor="t", may_read_files=True).state == "succeeded"
        for wrong in ("relative.log", str(tmp_path), str(tmp_path / "gone"), "/dev/zero"):
            with pytest.raises(InvalidInput, match="engine_log_path"):
                bench.checks.start_run(
                    CheckRunInput(engine_id=engine_id, engine_log_path=wrong), actor="t", may_read_files=True
                )

    def test_a_text_needs_its_target(self, bench: Bench) -> None:
        with pytest.raises(InvalidInput, match="engine_id"):
            bench.checks.start_run(CheckRunInput(engine_log="x"), actor="t")

    def test_containers_of_a_pasted_compose_file(self, bench: Bench, sandbox: SandboxThread) -> None:
        server_id = str(bench.server(sandbox.server_url))
        text = "services:\n  cache:\n    image: lmcache/standalone:latest\n    command: lmcache server --l1-size-gb 1\n"
        bench.checks.start_run(CheckRunInput(server_id=server_id, commands=text), actor="t")
        found = {item.id: item for item in bench.checks.list_checks(server_id=int(server_id)).items}
        assert found["image_tag"].verdict == "warn"

    def test_texts_alone(self, bench: Bench) -> None:
        found = bench.checks.check_texts(CheckTextsInput(commands="lmcache server --http-host 0.0.0.0"))
        assert {item.id: item.verdict for item in found}["open_port"] == "fail"


class TestHistory:
    def keep(self, bench: Bench, given: object, at: float, run: int = 1) -> None:
        bench.clock.now = at
        result = ledger.PairResult((1, 2), given, all_of(given))  # type: ignore[arg-type]
        with bench.db.write() as session:
            ledger.write(session, [result], run, at)

    def test_only_changes_make_rows(self, bench: Bench) -> None:
        self.keep(bench, facts(), 1000.0)
        self.keep(bench, facts(memory=replace(facts().memory, available_bytes=2**35)), 2000.0)  # type: ignore[type-var]
        with bench.db.read() as session:
            rows = list(session.scalars(select(CheckResult)))
        assert {(row.first_at, row.last_at, row.ended_at) for row in rows} == {(1000.0, 2000.0, None)}
        changed = facts(server=server(config={"chunk_size": 48}))
        self.keep(bench, changed, 3000.0)
        with bench.db.read() as session:
            ended = list(session.scalars(select(CheckResult).where(CheckResult.ended_at == 3000.0)))
        assert [row.check_id for row in ended] == ["chunk_size_multiple"]

    def test_what_changed_since_it_worked(self, bench: Bench) -> None:
        bench.server("http://127.0.0.1:8080")
        self.keep(bench, facts(), 1000.0)
        worse = facts(server=server(config={"chunk_size": 48, "max_workers": 4}, version="0.5.7"))
        self.keep(bench, worse, 3000.0)
        bench.clock.now = 4000.0
        view = bench.checks.changes(since=2000.0)
        by_name = {change.name: change for change in view.changes}
        assert by_name["chunk_size"].old == "64"
        assert (by_name["chunk_size"].new, by_name["chunk_size"].subject) == ("48", "cache-a")
        assert by_name["version"].new == "0.5.7"
        assert by_name["max_workers"].new == "4"
        assert by_name["chunk_size_multiple"].verdict == "fail"
        assert (by_name["chunk_size_multiple"].old or "").startswith("ok")
        assert "instance_id" not in by_name
        assert bench.checks.changes(since=3500.0).changes == []
        assert "last day" in bench.checks.changes().since_reason

    def test_the_moment_it_worked_is_acceptance_then_a_good_run(self, bench: Bench, sandbox: SandboxThread) -> None:
        server_id = bench.server(sandbox.server_url)
        run = bench.checks.start_run(CheckRunInput(), actor="t")
        reason = bench.checks.changes(server_id=server_id).since_reason
        assert reason == ("the last run of the checks without a fail" if run.counts.fail == 0 else reason)
        bench.fleet.mark_data_path(server_id, bench.clock.now, right=True, by="acceptance run 1")
        assert "acceptance" in bench.checks.changes(server_id=server_id).since_reason

    def test_the_first_look_at_a_pair_is_no_change(self, bench: Bench) -> None:
        bench.server("http://127.0.0.1:8080")
        self.keep(bench, facts(), 3000.0)
        bench.clock.now = 4000.0
        view = bench.checks.changes(since=2000.0)
        assert view.changes == []
        assert "what was before is not known" in view.since_reason
        self.keep(bench, facts(server=server(metrics={"l1_allocation_failures": 3.0})), 5000.0)
        self.keep(bench, facts(problems=("--l2-adapter: is no JSON",)), 6000.0)
        names = [change.name for change in bench.checks.changes(since=2000.0).changes]
        assert "readable_settings" in names  # a finding that was not there before, and nothing ended for it
        assert "what was before" not in bench.checks.changes(since=3500.0).since_reason

    def test_a_setting_that_is_not_told_once_has_not_changed(self, bench: Bench) -> None:
        bench.server("http://127.0.0.1:8080")
        self.keep(bench, facts(), 1000.0)
        self.keep(bench, facts(server=server(version=None)), 2000.0)
        self.keep(bench, facts(), 3000.0)
        assert [change for change in bench.checks.changes(since=1500.0).changes if change.kind == "setting"] == []

    def test_pages_of_history(self, bench: Bench) -> None:
        for at, chunk in ((1000.0, 64), (2000.0, 48), (3000.0, 64)):
            self.keep(bench, facts(server=server(config={"chunk_size": chunk}, status={})), at)
        first = bench.checks.history(check_id="chunk_size_multiple", page_size=2, page_token=None)
        assert [item.verdict for item in first.items] == ["ok", "fail"]
        rest = bench.checks.history(check_id="chunk_size_multiple", page_size=2, page_token=first.next_page_token)
        assert [item.verdict for item in rest.items] == ["ok"]
        assert status().chunk_size == 64


class TestRoutes:
    def test_lists_runs_and_texts(self, bench: Bench, sandbox: SandboxThread) -> None:
        server_id = bench.server(sandbox.server_url)
        client = bench.client("operator")
        started = client.post("/api/v1/checks/runs", json={"server_id": str(server_id)})
        assert started.status_code == 202, started.text
        where = started.headers["Location"]
        run = client.get(where).json()
        assert run["state"] == "succeeded"
        assert set(run) >= {"id", "state", "progress", "error", "counts", "pairs"}
        page = client.get("/api/v1/checks", params={"page_size": 5}).json()
        assert set(page["items"][0]) >= {"id", "verdict", "subject", "title", "evidence", "fix", "source", "checked_at"}
        assert page["checked_at"]
        seen, token = list(page["items"]), page["next_page_token"]
        while token:
            page = client.get("/api/v1/checks", params={"page_size": 5, "page_token": token}).json()
            seen += page["items"]
            token = page["next_page_token"]
        whole = client.get("/api/v1/checks").json()["items"]
        assert seen == whole
        assert client.get("/api/v1/checks", params={"verdict": "ok"}).json()["items"]
        assert client.get("/api/v1/checks/runs").json()["items"][0]["id"] == run["id"]
        assert client.get("/api/v1/checks/changes", params={"server_id": server_id}).json()["changes"] == []
        assert len(client.get("/api/v1/checks/rules").json()) >= 40
        texts = client.post("/api/v1/checks/texts", json={"commands": "lmcache server --chunk-size 48"})
        assert any(item["verdict"] == "fail" for item in texts.json())
        assert client.post(f"{where}/cancel").json()["state"] == "succeeded"

    def test_roles_and_mistakes(self, bench: Bench) -> None:
        viewer = bench.client("viewer")
        assert bench.client(None).get("/api/v1/checks").status_code == 401
        assert viewer.get("/api/v1/checks").json()["items"] == []
        assert viewer.post("/api/v1/checks/runs", json={}).status_code == 403
        assert viewer.get("/api/v1/checks", params={"server_id": "99"}).status_code == 404
        assert viewer.get("/api/v1/checks", params={"verdict": "bad"}).status_code == 422
        assert viewer.get("/api/v1/checks", params={"page_token": "bm9uc2Vuc2U"}).status_code == 400
        assert viewer.get("/api/v1/checks/runs/1").status_code == 404
        assert viewer.get("/api/v1/checks/changes", params={"since": "yesterday"}).status_code == 422
        operator = bench.client("operator")
        answer = operator.post("/api/v1/checks/runs", json={"engine_log": "x"})
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["field"] == "engine_id"
        assert operator.post("/api/v1/checks/runs", json={"colour": 1}).status_code == 422


class TestCommand:
    def test_plain_addresses_need_no_database(
        self, sandbox: SandboxThread, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        (tmp_path / "log").write_text(capture("logs/vllm-startup.log"))
        options = CheckOptions(
            server=sandbox.server_url, engine=sandbox.engine_url, log=str(tmp_path / "log"), as_json=True
        )
        code = check_command(options)
        found = json.loads(capsys.readouterr().out)["checks"]
        contract = {"id", "verdict", "subject", "title", "evidence", "fix", "source"}
        assert set(found[0]) == contract | {"why", "configured", "effective", "origin"}
        assert code == (1 if any(item["verdict"] == "fail" for item in found) else 0)
        assert {item["id"]: item["verdict"] for item in found}["prompt_tokens_details"] == "ok"

    def test_also_finds_a_shared_directory(self, sandbox: SandboxThread, capsys: pytest.CaptureFixture[str]) -> None:
        first, second = sandbox.server_urls
        check_command(CheckOptions(server=first, also=(second,), as_json=True))
        found = {item["id"]: item for item in json.loads(capsys.readouterr().out)["checks"]}
        assert found["shared_directory"]["verdict"] == "warn"

    def test_exit_three_when_a_target_does_not_answer(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert check_command(CheckOptions(server=CLOSED, as_json=True)) == 3
        printed = capsys.readouterr()
        assert json.loads(printed.out)["checks"][0]["id"] == "reachable"
        assert CLOSED in printed.err

    def test_exit_one_and_sentences_on_a_fail(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        (tmp_path / "commands").write_text("lmcache server --l1-size-gb 1 --eviction-policy LRU --http-host 0.0.0.0\n")
        assert check_command(CheckOptions(commands=str(tmp_path / "commands"))) == 1
        printed = capsys.readouterr().out
        assert "FAIL  The HTTP port is open to everybody" in printed
        assert "fix: lmcache server --http-host 127.0.0.1" in printed
        assert "checks are ok" in printed

    def test_exit_zero_when_nothing_fails(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "commands").write_text("lmcache server --l1-size-gb 1 --eviction-policy LRU\n")
        assert check_command(CheckOptions(commands=str(tmp_path / "commands"), all_verdicts=True)) == 0
        assert " ok " in capsys.readouterr().out

    @pytest.mark.parametrize(
        "options",
        [CheckOptions(), CheckOptions(server="ftp://x"), CheckOptions(commands="/gone"), CheckOptions(log="/dev/zero")],
        ids=["nothing", "address", "file", "device"],
    )
    def test_usage(self, options: CheckOptions) -> None:
        with pytest.raises(InvalidInput):
            check_command(options)
