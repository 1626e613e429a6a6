"""Restart arms through hooks: commands, webhooks, people; and what a restart can break."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from app.acceptance.hook_schemas import HookAction, HookInput, HookPatch
from app.acceptance.hooks import HookFailed, HookTarget, run_action
from app.errors import Conflict, InvalidInput, NotFound
from app.sandbox import EngineSpec, ServerSpec
from tests.unit.acceptance.conftest import PACE, Panel, PanelMaker

TARGET = HookTarget("engine", "engine-a", "http://127.0.0.1:1")


async def nobody(_: HookTarget) -> None:
    raise AssertionError("no person is asked")


def command(panel: Panel, *calls: tuple[str, str, dict[str, Any]], pause: float = 0.0) -> HookAction:
    """A command that tells the sandbox's control server what to do: (component, action, body), with pauses between."""
    steps = json.dumps([[f"{panel.sandbox.control_url}/{c}/{a}", b] for c, a, b in calls])
    program = (
        "import json,sys,time,urllib.request as u\n"
        f"for url, body in json.loads(sys.argv[1]):\n"
        "    u.urlopen(u.Request(url, json.dumps(body).encode(), {'content-type': 'application/json'}), timeout=10)\n"
        f"    time.sleep({pause})\n"
    )
    return HookAction(argv=[sys.executable, "-c", program, steps])


def hook(panel: Panel, **actions: HookAction) -> str:
    return panel.service.hooks.create(HookInput(name="restart", timeout_seconds=20.0, **actions), actor="t").id


class TestRestartArms:
    def test_both_restarts_pass(self, make_panel: PanelMaker) -> None:
        panel = make_panel(engines=[EngineSpec(heartbeat_seconds=0.2)])
        down = command(panel, ("server-0", "kill", {}), ("server-0", "start", {}), pause=0.5)
        ident = hook(panel, server=down, engine=command(panel, ("engine-0", "restart", {})))
        run = panel.run(restart_hook_id=ident)
        assert run.verdict == "pass", run.reasons
        arms = {a.name: a for a in run.arms}
        assert list(arms)[-2:] == ["restarted_server", "restarted_engine"]
        assert arms["restarted_server"].external_share == 1.0
        assert (arms["restarted_server"].l2_hit_tokens or 0) > 0
        assert arms["restarted_engine"].external_share == 1.0
        assert arms["restarted_engine"].compared_to == "cold on the restarted engine"

    def test_another_dtype_whose_cache_answers_differ_from_its_own_cold(self, make_panel: PanelMaker) -> None:
        panel = make_panel()
        ident = hook(panel, engine=command(panel, ("engine-0", "restart", {"dtype": "float16"})))
        run = panel.run(arms=["warm", "external_l1", "restarted_engine"], restart_hook_id=ident)
        assert run.verdict == "fail"
        assert run.arms[-1].flips > 0
        assert {"answer_differs", "layout_changed"} <= {f.code for f in run.findings}
        light = panel.fleet.get_server(int(panel.server)).health.lights[-1]
        assert light.value is False
        assert light.reason == f"acceptance run {run.id} of engine-0 read back something else than the engine computes"

    def test_a_server_back_within_the_heartbeat_is_never_noticed(self, make_panel: PanelMaker) -> None:
        panel = make_panel(engines=[EngineSpec(heartbeat_seconds=3600.0)])
        ident = hook(panel, server=command(panel, ("server-0", "restart", {})))
        run = panel.run(arms=["warm", "restarted_server"], restart_hook_id=ident)
        assert run.verdict == "invalid"
        assert "not_reregistered" in {f.code for f in run.findings}
        assert "heartbeat" in run.reasons[0]

    def test_a_hook_that_restarts_nothing(self, make_panel: PanelMaker) -> None:
        panel = make_panel()
        ident = hook(panel, engine=HookAction(argv=["true"]))
        run = panel.run(arms=["warm", "restarted_engine"], restart_hook_id=ident)
        assert run.verdict == "invalid"
        assert "not_restarted" in {f.code for f in run.findings}

    def test_a_hook_that_fails_is_an_error(self, make_panel: PanelMaker) -> None:
        panel = make_panel()
        ident = hook(panel, engine=HookAction(argv=["false"]))
        run = panel.run(arms=["warm", "restarted_engine"], restart_hook_id=ident)
        assert run.verdict == "error"
        assert "status 1" in run.reasons[0]

    def test_an_engine_that_does_not_come_back_is_an_error(self, make_panel: PanelMaker) -> None:
        panel = make_panel()
        ident = hook(panel, engine=command(panel, ("engine-0", "kill", {})))
        run = panel.run(arms=["warm", "restarted_engine"], restart_hook_id=ident)
        assert run.verdict == "error"
        assert "engine_not_back" in {f.code for f in run.findings}

    def test_a_person_restarts_and_says_go_on(self, make_panel: PanelMaker) -> None:
        panel = make_panel(threads=True)
        ident = hook(panel, engine=HookAction(manual=True))
        run = panel.run(arms=["warm", "restarted_engine"], restart_hook_id=ident)
        until = time.monotonic() + 20
        while (asked := panel.service.get(int(run.id))).waiting_for is None and time.monotonic() < until:
            assert asked.state in ("queued", "running"), asked.reasons
            time.sleep(0.05)
        assert asked.waiting_for is not None and "engine-0" in asked.waiting_for
        panel.sandbox.control.restart("engine")
        panel.service.go_on(int(run.id), actor="tester")
        ended = panel.service.get(int(run.id), wait=30)
        assert ended.verdict == "pass", ended.reasons
        assert ended.waiting_for is None
        with pytest.raises(Conflict):
            panel.service.go_on(int(run.id), actor="tester")

    def test_a_server_without_l2_gives_nothing_back_after_its_restart(self, make_panel: PanelMaker) -> None:
        panel = make_panel(
            servers=[ServerSpec(l2_enabled=False)], engines=[EngineSpec(heartbeat_seconds=0.2)], with_store=False
        )
        down = command(panel, ("server-0", "kill", {}), ("server-0", "start", {}), pause=0.5)
        run = panel.run(arms=["warm", "restarted_server"], restart_hook_id=hook(panel, server=down))
        assert run.verdict == "invalid"


class TestHookRows:
    def test_header_values_never_come_out(self, panel: Panel) -> None:
        action = HookAction(webhook="http://hooks.example:9/x", headers={"Authorization": "secret"})
        made = panel.service.hooks.create(HookInput(name="h", engine=action), actor="t")
        assert made.engine is not None and made.engine.header_names == ["Authorization"]
        assert "secret" not in made.model_dump_json()

    def test_change_and_forget(self, panel: Panel) -> None:
        made = panel.service.hooks.create(HookInput(name="h", engine=HookAction(argv=["true"])), actor="t")
        ident = int(made.id)
        changed = panel.service.hooks.patch(ident, HookPatch(name="i", server=HookAction(manual=True)), actor="t")
        assert (changed.name, changed.server is not None, changed.engine is not None) == ("i", True, True)
        with pytest.raises(InvalidInput):
            panel.service.hooks.patch(ident, HookPatch(server=None, engine=None), actor="t")
        with pytest.raises(Conflict):
            panel.service.hooks.create(HookInput(name="i", engine=HookAction(argv=["true"])), actor="t")
        assert [h.id for h in panel.service.hooks.list_hooks(page_size=5, page_token=None).items] == [made.id]
        panel.service.hooks.delete(ident, actor="t")
        with pytest.raises(NotFound):
            panel.service.hooks.get(ident)

    @pytest.mark.parametrize(
        ("body", "field"),
        [
            ({"name": "h"}, "server"),
            ({"name": "h", "engine": {"webhook": "ftp://x"}}, "engine.webhook"),
            ({"name": "h", "engine": {"webhook": "http://169.254.169.254/latest"}}, "engine.webhook"),
            ({"name": "h", "engine": {"argv": [" "]}}, "engine.argv"),
        ],
    )
    def test_what_cannot_work_is_refused(self, panel: Panel, body: dict[str, Any], field: str) -> None:
        with pytest.raises(InvalidInput) as caught:
            panel.service.hooks.create(HookInput.model_validate(body), actor="t")
        assert caught.value.errors[0].field == field

    def test_exactly_one_way(self) -> None:
        for wrong in ({}, {"argv": ["a"], "manual": True}, {"argv": []}, {"headers": {"a": "b"}, "manual": True}):
            with pytest.raises(ValueError):
                HookAction.model_validate(wrong)

    def test_a_run_needs_a_hook_that_fits(self, panel: Panel) -> None:
        ident = hook(panel, engine=HookAction(argv=["true"]))
        for fields in ({"restart_hook_id": "99"}, {"restart_hook_id": ident, "arms": ["restarted_server"]}):
            with pytest.raises(InvalidInput) as caught:
                panel.run(**{"arms": ["restarted_engine"], **fields})
            assert caught.value.errors[0].field == "restart_hook_id"


class _Webhook(BaseHTTPRequestHandler):
    status = 204
    seen: list[dict[str, Any]]

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["content-length"]))
        type(self).seen.append({**json.loads(raw), "token": self.headers.get("x-token")})
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def webhook() -> Iterator[tuple[str, type[_Webhook]]]:
    handler = type("Handler", (_Webhook,), {"seen": []})
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/restart", handler
    server.shutdown()
    server.server_close()


class TestActions:
    async def test_a_webhook_is_told_what_to_restart(self, webhook: tuple[str, type[_Webhook]]) -> None:
        url, handler = webhook
        action = {"webhook": url, "headers": {"X-Token": "t"}}
        assert "204" in await run_action(action, TARGET, seconds=5, ask_operator=nobody)
        assert handler.seen == [
            {"action": "restart", "target": "engine", "name": "engine-a", "url": TARGET.url, "token": "t"}
        ]

    async def test_a_webhook_that_refuses(self, webhook: tuple[str, type[_Webhook]]) -> None:
        url, handler = webhook
        handler.status = 500
        with pytest.raises(HookFailed, match="500"):
            await run_action({"webhook": url}, TARGET, seconds=5, ask_operator=nobody)
        with pytest.raises(HookFailed, match="does not answer"):
            await run_action({"webhook": "http://127.0.0.1:1/"}, TARGET, seconds=5, ask_operator=nobody)

    async def test_a_command_gets_no_shell_and_little_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TIERKEEPER_ADMIN_PASSWORD", "hush")
        program = (
            "import os,sys; sys.exit(sys.argv[1] != '$(id) ; x' or 'TIERKEEPER_ADMIN_PASSWORD' in os.environ"
            " or os.environ['TIERKEEPER_HOOK_NAME'] != 'engine-a')"
        )
        action = {"argv": [sys.executable, "-c", program, "$(id) ; x"]}
        assert "ended well" in await run_action(action, TARGET, seconds=20, ask_operator=nobody)

    async def test_a_command_that_hangs_is_ended_with_its_children(self) -> None:
        before = time.monotonic()
        with pytest.raises(HookFailed, match="did not end"):
            await run_action({"argv": ["sh", "-c", "sleep 60 & sleep 60"]}, TARGET, seconds=0.3, ask_operator=nobody)
        assert time.monotonic() - before < 5

    async def test_a_command_that_is_not_there(self) -> None:
        with pytest.raises(HookFailed, match="cannot be started"):
            await run_action({"argv": ["/no/such/program"]}, TARGET, seconds=5, ask_operator=nobody)

    async def test_nobody_says_go_on(self) -> None:
        async def never(_: HookTarget) -> None:
            import asyncio

            await asyncio.Event().wait()

        with pytest.raises(HookFailed, match="nobody said"):
            await run_action({"manual": True}, TARGET, seconds=0.1, ask_operator=never)


def test_restart_waits_are_short_in_tests() -> None:
    assert PACE.registered <= 2.0
