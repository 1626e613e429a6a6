"""The room inside a whole panel: REST and the command, over the sandbox."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.commands import bench
from app.errors import InvalidInput, NotFound
from app.sandbox import SandboxThread
from tests.support.panel import Panel as WholePanel
from tests.unit.benchmark.conftest import Ids, bench_body, ended


def test_the_result_names_what_the_contract_names(measured: dict[str, Any]) -> None:
    result = measured["result"]
    assert result["ttft_ms"]["median"] > 0
    assert {"l0", "l1", "l2", "recomputed"} <= result["tokens"].keys()
    assert result["tokens"]["l1"] == 2 * 128
    assert measured["scope"]["sentence"]
    # A note that its link was only guessed may come; its records were removed, so nothing says that they stay.
    assert {f["code"] for f in measured["findings"]} <= {"only_the_connector", "no_connector"}, measured["findings"]


def test_the_runs_own_records_are_gone(measured: dict[str, Any], simulated: SandboxThread) -> None:
    assert [p.name for p in simulated.store_path.rglob("*") if measured["salt_prefix"] in p.name and p.is_file()] == []


def test_lists_requests_exports_and_comparison(api: httpx.Client, measured: dict[str, Any], ids: Ids) -> None:
    listed = api.get("/benchmark-runs", params={"engine_id": ids["engine"], "verdict": "valid"}).json()
    assert measured["id"] in [r["id"] for r in listed["items"]]
    requests = api.get(f"/benchmark-runs/{measured['id']}/requests", params={"scenario": "a", "phase": "second"}).json()
    assert len(requests["items"]) == 2 * 2
    for form, media in (
        ("json", "application/json"),
        ("csv", "text/csv"),
        ("txt", "text/plain"),
        ("md", "text/markdown"),
        ("svg", "image/svg+xml"),
    ):
        answer = api.get(f"/benchmark-runs/{measured['id']}/export.{form}")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith(media)
        assert "attachment" in answer.headers["content-disposition"]
        assert answer.text
    assert api.get(f"/benchmark-runs/{measured['id']}/export.exe").status_code == 404
    both = api.get("/benchmark-runs/compare", params={"a": measured["id"], "b": measured["id"]})
    assert both.status_code == 200
    assert both.json()["rows"][0]["ratio"] == 1.0
    assert api.get("/benchmark-runs/compare", params={"a": measured["id"], "b": "999"}).status_code == 404


def test_bad_requests_are_named(api: httpx.Client, ids: Ids) -> None:
    for given, field in (
        ({"engine_id": "999"}, "engine_id"),
        (bench_body(ids, tokens=1), "body.tokens"),
        (bench_body(ids, shape="round"), "body.shape"),
        (bench_body(ids, surprise=1), "body.surprise"),
        (bench_body(ids, image="a\nb"), "body.image"),
        (bench_body(ids, baseline_image="a\x1b[31m"), "body.baseline_image"),
        (bench_body(ids, hardware="H100\u202e"), "body.hardware"),
        (bench_body(ids, experiment="unheard-of"), "experiment"),
    ):
        answer = api.post("/benchmark-runs", json=given)
        assert answer.status_code == 422, answer.text
        assert any(field.rpartition(".")[2] in e["field"] for e in answer.json()["errors"]), answer.text
    for path in ("/benchmark-runs/x", "/benchmark-runs/999", "/experiments/none"):
        assert api.get(path).status_code == 404


def test_roles(whole: WholePanel, ids: Ids, measured: dict[str, Any]) -> None:
    viewer = whole.client("viewer")
    assert viewer.get("/api/v1/benchmark-runs").status_code == 200
    assert viewer.get("/api/v1/experiments").status_code == 200
    assert viewer.post("/api/v1/benchmark-runs", json=bench_body(ids)).status_code == 403
    assert viewer.post(f"/api/v1/benchmark-runs/{measured['id']}/cancel").status_code == 403
    assert whole.client(None).get("/api/v1/experiments").status_code == 401


def test_estimate_starts_nothing(api: httpx.Client, ids: Ids, measured: dict[str, Any]) -> None:
    before = len(api.get("/benchmark-runs").json()["items"])
    found = api.post("/benchmark-runs/estimate", json=bench_body(ids)).json()
    assert found["requests"] == 2 * 2 * 4
    assert found["seconds"] is not None  # by the run before
    assert len(api.get("/benchmark-runs").json()["items"]) == before


def test_experiments(api: httpx.Client, ids: Ids) -> None:
    found = api.get("/experiments", params={"engine_id": ids["engine"]}).json()["items"]
    assert [x["id"] for x in found] == ["ab", "cold-start", "accumulation", "backends"]
    assert {x["label"] for x in found} == {"published, not measured here"}
    assert all(x["open_questions"] for x in found)
    assert api.get("/experiments/backends", params={"statistic": "p99"}).status_code == 200
    assert api.get("/experiments/backends", params={"statistic": "best"}).status_code == 422
    started = api.post(
        "/benchmark-runs",
        json={"engine_id": ids["engine"], "experiment": "accumulation", "experiment_mode": "exact", "output_tokens": 1},
    )
    assert started.status_code == 202
    assert ended(api, started.headers["location"])["verdict"] == "invalid"  # 8,000 tokens do not fit this engine


# --- the command


def test_the_command_measures_at_a_panel(
    whole: WholePanel, ids: Ids, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from app.auth.schemas import TokenInput

    token = whole.services.auth.create_token(TokenInput(name="bench", role="operator"), actor="test").token
    csv = tmp_path / "requests.csv"
    options = bench.BenchOptions(
        engine="b<script>",
        fields={"contexts": 2, "tokens": 150, "output_tokens": 2, "repeats": 1, "noise_repeat": False},
        export=(csv,),
        tables=True,
        url=whole.url,
        token=token,
    )
    assert bench.bench(options) == 0
    told = capsys.readouterr()
    assert "Serving Benchmark Result" in told.out
    assert "valid: b<script> (run " in told.out
    assert "Holds for" in told.out
    assert len(csv.read_text().splitlines()) == 1 + 8


def test_a_name_that_is_none_lists_those_there_are(whole: WholePanel, ids: Ids) -> None:
    from app.auth.schemas import TokenInput
    from app.commands import accept

    token = whole.services.auth.create_token(TokenInput(name="lost", role="operator"), actor="test").token
    told = r"no engine has the name or id 'nosuch'; registered are: alone, b<script>"
    with pytest.raises(NotFound, match=told):
        bench.bench(bench.BenchOptions(engine="nosuch", url=whole.url, token=token))
    with pytest.raises(NotFound, match=told):
        accept.accept(accept.AcceptOptions(engine="nosuch", url=whole.url, token=token))


def test_the_command_prints_json_and_ends_1_for_an_invalid_run(
    whole: WholePanel, ids: Ids, capsys: pytest.CaptureFixture[str]
) -> None:
    from app.auth.schemas import TokenInput

    token = whole.services.auth.create_token(TokenInput(name="bench-2", role="operator"), actor="test").token
    options = bench.BenchOptions(engine="alone", fields={"tokens": 9000}, as_json=True, url=whole.url, token=token)
    assert bench.bench(options) == 1
    printed = capsys.readouterr().out
    assert json.loads(printed[printed.index("{\n") :])["verdict"] == "invalid"  # after the panel's own log lines


def test_options_that_cannot_be_used_are_named() -> None:
    for fields, name in (({"tokens": 0}, "--tokens"), ({"shape": "x"}, "--shape"), ({"rate": -1.0}, "--rate")):
        with pytest.raises(InvalidInput) as refused:
            bench.bench(bench.BenchOptions(engine="e", fields=fields))
        assert refused.value.errors[0].field == name
    with pytest.raises(InvalidInput, match=r"\.json"):
        bench.bench(bench.BenchOptions(engine="e", export=(Path("x.xlsx"),)))
    with pytest.raises(InvalidInput, match="1000,10000"):
        bench.lookup_of("many", allow_fill=True)
    assert bench.lookup_of("10,20", allow_fill=True) == {"records": [10, 20], "allow_fill": True}
    assert bench.restart_of(None, None) is None


def test_prompts_from_a_sharegpt_file(tmp_path: Path) -> None:
    path = tmp_path / "sharegpt.json"
    conversations = [
        {"id": "1", "conversations": [{"from": "human", "value": "one?"}, {"from": "gpt", "value": "1"}]},
        {"id": "2", "conversations": [{"from": "human", "value": "nobody answered"}]},
        {"id": "3", "conversations": [{"from": "human", "value": "three?"}, {"from": "gpt", "value": "3"}]},
    ]
    path.write_text(json.dumps(conversations))
    assert bench.read_prompts(path, limit=10) == ["one?", "three?"]
    assert bench.read_prompts(path, limit=1) == ["one?"]
    lines = tmp_path / "own.jsonl"
    lines.write_text('{"prompt": "a", "output_tokens": 5}\n\n{"prompt": "b"}\n')
    assert bench.read_prompts(lines, limit=10) == ["a", "b"]
    lines.write_text('{"prompt": "only one"}\n')
    assert bench.read_prompts(lines, limit=10) == ["only one"]
    plain = tmp_path / "own.json"
    plain.write_text('["x", "y"]')
    assert bench.read_prompts(plain, limit=10) == ["x", "y"]
    for content in ("{}", "[]", "not json", "[1]"):
        plain.write_text(content)
        with pytest.raises(InvalidInput):
            bench.read_prompts(plain, limit=10)
    with pytest.raises(InvalidInput, match="cannot be read"):
        bench.read_prompts(tmp_path / "absent.json", limit=10)


def test_exit_statuses() -> None:
    assert [bench.exit_status({"verdict": v}) for v in ("valid", "invalid", "error", None)] == [0, 1, 3, 3]
