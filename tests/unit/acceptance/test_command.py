"""`tierkeeper accept` on a data directory: verdict on one line, exit statuses, prompt files, reports."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from app.commands.accept import AcceptOptions, accept, exit_status, one_line, option, read_prompts, request_body
from app.commands.context import command_services
from app.commands.option_names import naming_options
from app.commands.panel_link import say_where
from app.data_dir import ServeLock
from app.errors import InvalidInput, NotFound
from app.fleet.schemas import EngineCreate, ServerCreate, StoreCreate
from app.sandbox import EngineSpec, SandboxThread


@pytest.fixture
def data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., SandboxThread]]:
    """A data directory whose panel knows a sandbox's engine as ``engine-a``."""
    monkeypatch.setenv("TIERKEEPER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("TIERKEEPER_LOG_LEVEL", "ERROR")
    monkeypatch.chdir(tmp_path)
    started: list[SandboxThread] = []

    def make(spec: EngineSpec | None = None) -> SandboxThread:
        sandbox = SandboxThread(tmp_path / "sandbox", engines=[spec or EngineSpec()])
        sandbox.start()
        started.append(sandbox)
        with command_services(create=True) as services:
            server = services.fleet.create_server(ServerCreate(url=sandbox.server_url), actor="test")
            services.fleet.create_engine(
                EngineCreate(url=sandbox.engine_url, name="engine-a", server_id=server.id), actor="test"
            )
            services.fleet.create_store(
                StoreCreate(path=str(sandbox.store_path), server_ids=[server.id], confirm=True), actor="test"
            )
        return sandbox

    yield make
    for sandbox in started:
        sandbox.stop()


class TestAccept:
    def test_a_pass_is_one_line_and_status_0(
        self, data_directory: Callable[..., SandboxThread], capsys: pytest.CaptureFixture[str]
    ) -> None:
        data_directory()
        assert accept(AcceptOptions(engine="engine-a", lengths="150,210")) == 0
        out, err = capsys.readouterr()
        assert out.startswith("pass: engine-a (run 1, ") and out.count("\n") == 1
        assert err == ""

    def test_json_is_the_run(
        self, data_directory: Callable[..., SandboxThread], capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        data_directory()
        reports = (tmp_path / "r.xml", tmp_path / "r.md", tmp_path / "r.html", tmp_path / "r.json")
        options = AcceptOptions(engine="1", lengths="150", arms="warm,external_l1", as_json=True, report=reports)
        assert accept(options) == 0
        run = json.loads(capsys.readouterr().out)
        assert run["verdict"] == "pass"
        assert [a["name"] for a in run["arms"]] == ["cold", "warm", "external_l1"]
        assert ElementTree.parse(reports[0]).getroot().tag == "testsuites"
        assert reports[1].read_text().startswith("# Acceptance: pass")
        assert "<!doctype html>" in reports[2].read_text()
        assert json.loads(reports[3].read_text())["id"] == run["id"]

    def test_invalid_is_status_1_and_says_the_way_out(
        self, data_directory: Callable[..., SandboxThread], capsys: pytest.CaptureFixture[str]
    ) -> None:
        data_directory(EngineSpec(dev_mode=False))
        assert accept(AcceptOptions(engine="engine-a")) == 1
        out, err = capsys.readouterr()
        assert out.startswith("invalid: engine-a")
        assert "VLLM_SERVER_DEV_MODE=1" in err

    def test_an_error_is_status_3(
        self, data_directory: Callable[..., SandboxThread], capsys: pytest.CaptureFixture[str]
    ) -> None:
        data_directory().control.kill("engine")
        assert accept(AcceptOptions(engine="engine-a")) == 3
        assert capsys.readouterr().out.startswith("error: engine-a")

    def test_an_unknown_engine(self, data_directory: Callable[..., SandboxThread]) -> None:
        data_directory()
        with pytest.raises(NotFound, match="engine-z"):
            accept(AcceptOptions(engine="engine-z"))


class TestOptions:
    @pytest.mark.parametrize(
        ("changes", "named"),
        [
            ({"profile": "huge"}, "--profile"),
            ({"arms": "tepid"}, "--arms"),
            ({"mode": "vague"}, "--mode"),
            ({"deadline": -1.0}, "--deadline: "),
            ({"lengths": "a,b"}, "--lengths"),
            ({"concurrency": 0}, "--concurrency"),
            ({"tolerance": "max_abs_nats"}, "--tolerance"),
            ({"tolerance": "max_nats=1"}, "--tolerance"),
            ({"tolerance": "max_abs_nats=-1"}, "--tolerance"),
            ({"request_timeout": 0.0}, "--request-timeout: "),
        ],
    )
    def test_names_the_option(self, changes: dict[str, object], named: str) -> None:
        with pytest.raises(InvalidInput) as caught:
            request_body(AcceptOptions(engine="x", **changes))  # type: ignore[arg-type]
        assert caught.value.detail.startswith(named)

    def test_a_restart_arm_without_a_hook_names_the_option(self) -> None:
        told = InvalidInput.field("restart_hook_id", "arm restarted_engine needs a restart hook")
        for error in (told, InvalidInput(told.detail)):  # as the service here and as a panel elsewhere says it
            with pytest.raises(InvalidInput) as caught, naming_options(option):
                raise error
            assert caught.value.detail == "--restart-hook: arm restarted_engine needs a restart hook"

    def test_where_the_run_is_seen_is_a_whole_address_or_says_whose_page_it_is(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("TIERKEEPER_DATA_DIR", str(tmp_path))

        def said(url: str | None = None, *, matters: bool = True) -> str:
            say_where("the run", url, "/acceptance/runs/7", matters=matters)
            return capsys.readouterr().err.strip()

        assert said("http://panel:1/") == "the run: http://panel:1/acceptance/runs/7"
        assert said().startswith(f"the run: /acceptance/runs/7 in the panel of the data directory {tmp_path}, which")
        assert said(matters=False) == ""
        lock = ServeLock(tmp_path)
        lock.acquire("http://127.0.0.1:8090")
        assert said(matters=False) == "the run: http://127.0.0.1:8090/acceptance/runs/7", "a panel that serves here"
        lock.release()
        (tmp_path / "serve.lock").write_text(f"process {2**22 + 1} at http://127.0.0.1:8090")
        assert said(matters=False) == "", "it does not live any more"
        monkeypatch.setenv("TIERKEEPER_PUBLIC_URL", "https://tk.example/panel")
        assert said() == "the run: https://tk.example/panel/acceptance/runs/7"

    def test_a_report_of_no_known_form(self) -> None:
        with pytest.raises(InvalidInput, match="--report"):
            accept(AcceptOptions(engine="x", report=(Path("r.pdf"),)))

    def test_prompts_in_every_form(self, tmp_path: Path) -> None:
        wanted = [{"prompt": "one"}, {"prompt": "two", "expected": "2", "score": "number"}]
        (tmp_path / "p.json").write_text(json.dumps(["one", wanted[1]]))
        (tmp_path / "p.jsonl").write_text('"one"\n' + json.dumps(wanted[1]) + "\n")
        (tmp_path / "p.yaml").write_text('prompts:\n- one\n- {prompt: two, expected: "2", score: number}\n')
        for name in ("p.json", "p.jsonl", "p.yaml"):
            assert read_prompts(tmp_path / name) == wanted
        (tmp_path / "p.txt").write_text("one\n\n two \n")
        assert read_prompts(tmp_path / "p.txt") == [{"prompt": "one"}, {"prompt": "two"}]

    def test_the_tolerance_is_the_body_s(self) -> None:
        body = request_body(AcceptOptions(engine="x", tolerance="max_abs_nats=0.2, max_score_drop=0.1"))
        assert body["tolerance"] == {"max_abs_nats": 0.2, "max_score_drop": 0.1}

    @pytest.mark.parametrize("text", ["", "{", "[]", '"x"', "3"])
    def test_files_that_hold_no_prompts(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "p.json").write_text(text)
        with pytest.raises(InvalidInput, match="--prompts"):
            read_prompts(tmp_path / "p.json")
        with pytest.raises(InvalidInput, match="--prompts"):
            read_prompts(tmp_path / "missing.json")


class TestExitStatus:
    @pytest.mark.parametrize(
        ("verdict", "state", "status"),
        [
            ("pass", "succeeded", 0),
            ("pass_with_near_ties", "succeeded", 0),
            ("fail", "succeeded", 1),
            ("invalid", "succeeded", 1),
            ("timeout", "succeeded", 1),
            ("error", "failed", 3),
            (None, "cancelled", 3),
            (None, "interrupted", 3),
        ],
    )
    def test_as_documented(self, verdict: str | None, state: str, status: int) -> None:
        run = {
            "verdict": verdict,
            "state": state,
            "id": "1",
            "engine_name": "e",
            "duration_seconds": None,
            "headline": None,
            "error": None,
        }
        assert exit_status(run) == status
        assert one_line(run) == f"{verdict or state}: e (run 1)"
