"""The pipeline examples of docs/ACCEPTANCE.md: they say what the command and the API know, and end as they promise."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from typer.testing import CliRunner

from app import __version__
from app.acceptance.schemas import AcceptanceRequest, AcceptanceRunView
from app.auth.schemas import TokenInput
from app.cli import cli
from app.commands.context import command_services
from app.fleet.schemas import EngineCreate, ServerCreate, StoreCreate
from app.main import create_app
from app.sandbox import SandboxThread
from app.settings import load_settings

ROOT = Path(__file__).parents[3]
DOCS = (ROOT / "docs/ACCEPTANCE.md").read_text("utf-8")
SECTION = DOCS[DOCS.index("## In pipelines") :]
PROGRAM = [sys.executable, "-m", "app"]
NEEDED = {"TIERKEEPER_URL", "TIERKEEPER_TOKEN"}


def example(after: str, language: str) -> str:
    """The first fenced block behind these words."""
    found = re.search(rf"{re.escape(after)}.*?```{language}\n(.*?)```", SECTION, re.S)
    assert found, after
    return found.group(1)


GITHUB: list[dict[str, Any]] = yaml.safe_load(example("GitHub Actions", "yaml"))
GITLAB: dict[str, Any] = yaml.safe_load(example("GitLab CI", "yaml"))
JOB: dict[str, Any] = yaml.safe_load(example("Kubernetes Job", "yaml"))
CURL = example("With curl alone", "sh")
CONTAINER: dict[str, Any] = JOB["spec"]["template"]["spec"]["containers"][0]
COMMANDS = {
    "github": shlex.split(GITHUB[0]["run"])[1:],
    "gitlab": shlex.split(GITLAB["kv-cache-acceptance"]["script"][0])[1:],
    "kubernetes": CONTAINER["args"],
}


def command(name: str) -> Any:
    """One command of the program (typer brings its own click, whose classes have no public names)."""
    root: Any = typer.main.get_command(cli)
    return root.commands[name]


def parsed(arguments: list[str]) -> dict[str, Any]:
    """What the command line understands of it; an option it does not know is an error of its own kind."""
    found: dict[str, Any] = command(arguments[0]).make_context(arguments[0], list(arguments[1:])).params
    return found


class TestWhatTheySay:
    def test_none_is_left_out(self) -> None:
        assert SECTION.count("```yaml") == 3 and SECTION.count("```sh") == 1

    @pytest.mark.parametrize("name", COMMANDS)
    def test_the_command_knows_every_option(self, name: str) -> None:
        options = parsed(COMMANDS[name])
        assert COMMANDS[name][0] == "accept"
        assert (options["engine"], options["profile"], options["deadline"]) == ("prod-a", "standard", 1800)
        AcceptanceRequest(engine_id="1", profile=options["profile"], deadline_seconds=options["deadline"])

    def test_an_option_it_does_not_know_would_be_seen(self) -> None:
        refused = CliRunner().invoke(cli, [*COMMANDS["gitlab"], "--no-such-option"])
        assert refused.exit_code == 2 and "No such option" in refused.output

    def test_address_and_token_come_from_where_the_command_looks_for_them(self) -> None:
        assert {p.envvar for p in command("accept").params if p.envvar} == NEEDED
        assert set(GITHUB[0]["env"]) == NEEDED
        assert {item["name"] for item in CONTAINER["env"]} == NEEDED
        assert all(name in SECTION[SECTION.index("GitLab CI") :].partition("```")[0] for name in NEEDED)
        assert set(re.findall(r"TIERKEEPER_[A-Z]+", CURL)) == NEEDED

    def test_reports_that_are_picked_up_are_written(self) -> None:
        job = GITLAB["kv-cache-acceptance"]
        assert job["artifacts"]["reports"]["junit"] in COMMANDS["gitlab"]
        assert job["artifacts"]["when"] == "always"
        (summary,) = set(re.findall(r"acceptance\.\w+", GITHUB[1]["run"]))
        assert summary in COMMANDS["github"] and GITHUB[1]["if"] == "always()"

    def test_the_job_is_one_and_outlives_the_run(self) -> None:
        spec = JOB["spec"]
        assert (JOB["apiVersion"], JOB["kind"], spec["backoffLimit"]) == ("batch/v1", "Job", 0)
        assert spec["template"]["spec"]["restartPolicy"] == "Never"
        assert spec["activeDeadlineSeconds"] > parsed(CONTAINER["args"])["deadline"]

    def test_the_image_takes_the_arguments_as_a_command_of_this_version(self) -> None:
        assert CONTAINER["image"] == f"tierkeeper:{__version__}"
        assert 'ENTRYPOINT ["tierkeeper"]' in (ROOT / "Dockerfile").read_text("utf-8")

    def test_the_paths_and_fields_of_the_script_are_the_api_s(self, tmp_path: Path) -> None:
        schema = create_app(load_settings({}, data_dir=tmp_path)).openapi()
        base = re.search(r"\$TIERKEEPER_URL(/api/v1/[\w-]+)", CURL)
        assert base and {"get", "post"} <= set(schema["paths"][base.group(1)])
        one = schema["paths"][f"{base.group(1)}/{{run_id}}"]["get"]
        (wait,) = [p["schema"] for p in one["parameters"] if p["name"] == "wait"]
        asked = int(re.findall(r"wait=(\d+)", CURL)[0])
        limit = wait.get("maximum") or max(part.get("maximum", 0) for part in wait.get("anyOf", [{}]))
        assert asked <= limit
        assert f"{base.group(1)}/{{run_id}}/report.{{form}}" in schema["paths"]
        AcceptanceRequest.model_validate(json.loads(re.findall(r"-d '(.*?)'", CURL)[0]))
        assert {"id", "state", "verdict"} <= set(AcceptanceRunView.model_fields)


@dataclass
class Pipeline:
    """A served panel with one engine ``prod-a``, and a shell that can start `tierkeeper`."""

    directory: Path
    url: str
    token: str
    sandbox: SandboxThread
    engine_id: str = ""

    def sh(self, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs a piece as the pipelines do: a shell that stops at the first failure."""
        known = {"TIERKEEPER_URL": self.url, "TIERKEEPER_TOKEN": self.token, "PYTHONPATH": str(ROOT)}
        path = f"{self.directory / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            ["sh", "-e", "-c", script],
            cwd=self.directory,
            env=_without_settings() | known | {"PATH": path} | environment,
            capture_output=True,
            text=True,
            timeout=500,
        )

    @contextmanager
    def zeroed_records(self) -> Iterator[None]:
        """Overwrites records of runs as soon as they are on disk; L1 keeps the right bytes."""
        stop = threading.Event()

        def work() -> None:
            while not stop.wait(0.005):
                for path in self.sandbox.store_path.glob("*@tk-*.data"):
                    try:
                        path.write_bytes(bytes(path.stat().st_size))
                    except FileNotFoundError:
                        continue

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    directory = tmp_path_factory.mktemp("pipeline")
    (directory / "bin").mkdir()
    program = directory / "bin/tierkeeper"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m app "$@"\n')
    program.chmod(0o755)
    with SandboxThread(directory / "sandbox") as sandbox:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TIERKEEPER_DATA_DIR", str(directory / "var"))
            token, engine_id = _set_up(sandbox)
        environment = _without_settings() | {"TIERKEEPER_DATA_DIR": str(directory / "var")}
        served = subprocess.Popen(
            [*PROGRAM, "serve", "--port", "0"],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert served.stdout is not None
            found = re.match(r"Tierkeeper on (http://\S+)", served.stdout.readline())
            assert found
            yield Pipeline(directory, found.group(1).rstrip("/"), token, sandbox, engine_id)
        finally:
            served.send_signal(signal.SIGTERM)
            served.wait(30)


def _without_settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("TIERKEEPER_")}


def _set_up(sandbox: SandboxThread) -> tuple[str, str]:
    """The data directory of a panel that knows the sandbox: an operator's token and the engine's id."""
    with command_services(create=True) as services:
        server = services.fleet.create_server(ServerCreate(url=sandbox.server_url), actor="test")
        engine = EngineCreate(url=sandbox.engine_url, name="prod-a", server_id=server.id)
        store = StoreCreate(path=str(sandbox.store_path), server_ids=[server.id], temp_dir=".tmp", confirm=True)
        services.fleet.create_store(store, actor="test")
        token = services.auth.create_token(TokenInput(name="ci", role="operator"), actor="test").token
        return token, services.fleet.create_engine(engine, actor="test").id


def steps_of(name: str) -> list[str]:
    """The shell pieces of an example, in order; shortened, for what is proven here is how they end."""
    pieces = {
        "github": [step["run"] for step in GITHUB],
        "gitlab": GITLAB["kv-cache-acceptance"]["script"],
        "kubernetes": [shlex.join(["tierkeeper", *CONTAINER["args"]])],
        "curl": [CURL],
    }[name]
    return [piece.replace("--profile standard", "--profile quick") for piece in pieces]


def status_after(pipeline: Pipeline, name: str, **environment: str) -> int:
    """The status of the step that tests; what comes after it must always work."""
    if name == "curl" and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    for report in pipeline.directory.glob("acceptance.*"):
        report.unlink()
    summary = str(pipeline.directory / "summary.md")
    first, *others = [pipeline.sh(piece, GITHUB_STEP_SUMMARY=summary, **environment) for piece in steps_of(name)]
    assert all(step.returncode == 0 for step in others), others
    return first.returncode


EXAMPLES = ("github", "gitlab", "kubernetes", "curl")


@pytest.mark.timeout(600)  # programs start; on a machine under load each takes its time
class TestHowTheyEnd:
    @pytest.mark.parametrize("name", EXAMPLES)
    def test_0_for_a_pass(self, pipeline: Pipeline, name: str) -> None:
        assert pipeline.engine_id == "1"  # as the script with curl says
        assert status_after(pipeline, name) == 0
        if name == "github":
            assert (pipeline.directory / "summary.md").read_text("utf-8").startswith("# Acceptance: pass")
        if name in ("github", "gitlab"):
            assert "<testsuite" in (pipeline.directory / "acceptance.xml").read_text("utf-8")
        if name == "curl":
            assert (pipeline.directory / "acceptance.md").read_text("utf-8").startswith("# Acceptance: pass")

    @pytest.mark.parametrize("name", EXAMPLES)
    def test_1_for_wrong_answers(self, pipeline: Pipeline, name: str) -> None:
        with pipeline.zeroed_records():
            assert status_after(pipeline, name) == 1
        if name in ("github", "curl"):
            assert (pipeline.directory / "acceptance.md").read_text("utf-8").startswith("# Acceptance: fail")

    @pytest.mark.parametrize("name", EXAMPLES)
    def test_3_for_an_engine_that_is_down(self, pipeline: Pipeline, name: str) -> None:
        pipeline.sandbox.control.kill("engine")
        try:
            assert status_after(pipeline, name) == 3
        finally:
            pipeline.sandbox.control.restart("engine")

    @pytest.mark.parametrize("name", EXAMPLES)
    def test_3_where_no_panel_answers_or_the_token_is_none(self, pipeline: Pipeline, name: str) -> None:
        assert status_after(pipeline, name, TIERKEEPER_URL="http://127.0.0.1:9") == 3
        assert status_after(pipeline, name, TIERKEEPER_TOKEN="tk_wrong") == 3
