"""The main job on the real stack: what the panel shows, finds, removes and proves. One panel, its REST API and its
command line only.

Ordered so that engines are restarted as rarely as can be: first without dev mode, then with it, last with another
dtype.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.real.attempts import Shared, shared
from tests.real.jobs import ARMS, Job, new_job
from tests.real.stack.clients import drift, key_of, prompt, total, wait_until
from tests.real.stack.control import RealStack
from tests.real.stack.steps import contents, from_disk, store

# One float16 engine against one bfloat16 engine of the same model differs by this much without any cache.
DTYPE_FLOOR = 0.12


@pytest.fixture(scope="module")
def jobs(session_stack: RealStack) -> Iterator[Shared[Job]]:
    knobs = {"dev_mode": False, "warm_up": False}
    with shared(lambda: new_job(session_stack, "l2-main-job", engine=knobs)) as jobs:
        yield jobs


@pytest.fixture
def job(jobs: Shared[Job], request: pytest.FixtureRequest) -> Job:
    return jobs.of(request)


# --- what the panel shows and finds


def test_numbers_are_those_of_the_server_itself(job: Job) -> None:
    stack, panel = job.stack, job.panel
    before = stack.server.metrics()
    for seed in range(3):
        store(stack, prompt(1000, 500 + seed), f"shown-{seed}")
    for seed in range(3):
        stack.engine().complete(prompt(1000, 500 + seed), salt=f"shown-{seed}")
    stack.server.clear_l1()
    stack.engine().complete(prompt(1000, 500), salt="shown-0")
    wait_until("server at rest", lambda: stack.server.pending() == 0, 10)
    panel.wait_polled(job.server_id, 3)

    l1 = stack.server.status()["storage_manager"]["l1_manager"]
    after = stack.server.metrics()
    moved = {
        name: (total(after, f"lmcache_mp_lookup_{name}_tokens_total") or 0)
        - (total(before, f"lmcache_mp_lookup_{name}_tokens_total") or 0)
        for name in ("requested", "hit", "hit_l1", "hit_l2")
    }
    assert moved["hit_l1"] > 0
    assert moved["hit_l2"] > 0
    shown = panel.get(f"/servers/{job.server_id}")
    assert shown["health"]["state"] == "healthy", shown["health"]
    assert shown["l1"]["used_bytes"] == l1["memory_used_bytes"]
    assert shown["l1"]["capacity_bytes"] == l1["memory_total_bytes"]
    assert shown["l1"]["object_count"] == l1["total_object_count"]
    rate = shown["hit_rate"]
    assert rate["state"] == "value"
    assert (rate["hit_tokens"], rate["requested_tokens"]) == (moved["hit"], moved["requested"])
    assert rate["value"] == pytest.approx(moved["hit"] / moved["requested"])
    assert rate["l1_share"] == pytest.approx(moved["hit_l1"] / moved["requested"])
    assert rate["l2_share"] == pytest.approx(moved["hit_l2"] / moved["requested"])
    layouts = shown["layouts"]
    assert [(x["model_name"], x["world_size"], x["chunk_size"], x["bytes_per_token"]) for x in layouts] == [
        (str(stack.environment.model), 1, 64, 512)
    ]
    assert "bfloat16" in layouts[0]["dtype"]


def test_a_scan_lists_exactly_the_files_on_disk(job: Job) -> None:
    stack, panel = job.stack, job.panel
    store(stack, prompt(1600, 511), "listed")
    have = len(stack.records())
    stack.engine().complete(prompt(130, 510))  # without a salt, too
    stack.wait_stored(have + 2)
    on_disk = stack.records()
    done = job.scan()
    assert done["records"] == len(on_disk) == have + 2
    assert len(on_disk) > 20, "more than a page"
    assert done["bytes"] == sum(on_disk.values())
    listed = list(panel.items(f"/stores/{job.store_id}/records", page_size=20))
    assert {item["name"]: item["size_bytes"] for item in listed} == on_disk
    assert len(listed) == len(on_disk)
    for item in listed:
        key = key_of(item["name"])
        assert item["model_name"] == str(stack.environment.model)
        assert (item["kv_rank"], item["world_size"], item["rank"]) == (key["kv_rank"], 1, 0)
        assert item["object_group_id"] == key["object_group_id"]
        assert item["chunk_hash"] == key["chunk_hash_hex"]
        assert item["cache_salt"] == key["cache_salt"]
        assert (item["class"], item["reason"]) == ("current", None), item
    summary = panel.get(f"/stores/{job.store_id}/summary")
    assert (summary["records"], summary["bytes"]) == (len(on_disk), sum(on_disk.values()))
    assert summary["by_class"]["current"] == {"records": len(on_disk), "bytes": sum(on_disk.values())}


# --- acceptance


def test_without_dev_mode_a_run_is_invalid_and_says_what_to_do(job: Job) -> None:
    assert not job.stack.engine_knobs().dev_mode
    run = job.accept()
    assert run["verdict"] == "invalid", run["reasons"]
    assert "VLLM_SERVER_DEV_MODE" in json.dumps(run), run["reasons"]


def test_a_healthy_stack_passes_with_full_external_shares(job: Job) -> None:
    job.stack.ensure()
    wait_until("reset seen", lambda: job.panel.get(f"/engines/{job.engine_id}")["reset_available"], 30)
    others = set(job.stack.records())
    run = job.accept()
    assert run["verdict"] == "pass", (run["verdict"], run["reasons"])
    arms = {arm["name"]: arm for arm in run["arms"]}
    assert set(arms) == set(ARMS)
    assert arms["cold"]["external_tokens"] == 0
    for name in ("external_l1", "external_l2"):
        arm = arms[name]
        assert arm["expected_external_tokens"] > 0
        assert arm["external_share"] == 1.0, arm
        assert arm["compared_to"] in ("warm", "cold")
        assert (arm["exact_matches"], arm["flips"]) == (arm["requests"], 0), arm
        assert arm["logprob"]["max_abs_difference"] == 0.0
        assert arm["ttft_ms"]["median"] > 0
    assert (arms["external_l2"]["l2_hit_tokens"] or 0) > 0
    assert others <= set(job.stack.records()), "nobody else's record was touched"
    assert run["id"] in {item["id"] for item in job.panel.items("/acceptance-runs")}


def test_the_command_says_the_same_with_its_exit_status(job: Job) -> None:
    job.stack.ensure()
    passed = job.panel.command("accept", "--engine", job.engine_name, "--json")
    assert passed.returncode == 0, (passed.stdout, passed.stderr)
    assert json.loads(passed.stdout)["verdict"] in ("pass", "pass_with_near_ties")
    unknown = job.panel.command("accept", "--engine", "nobody-of-that-name")
    assert unknown.returncode in (2, 3)
    assert "nobody-of-that-name" in unknown.stderr


def test_records_zeroed_between_the_passes_fail_the_run(job: Job) -> None:
    job.stack.ensure()
    stop = threading.Event()
    spoilt: set[str] = set()

    def spoil() -> None:
        while not stop.wait(0.005):
            for name, size in job.stack.records().items():
                if "@tk-" in name and name not in spoilt and size == 32768:
                    spoilt.add(name)
                    _zero(job.stack.l2 / name)

    vandal = threading.Thread(target=spoil)
    vandal.start()
    try:
        run = job.accept()
    finally:
        stop.set()
        vandal.join()
    assert spoilt, "the run left no record that could be spoilt"
    assert run["verdict"] == "fail", (run["verdict"], run["reasons"])
    assert run["reasons"]


def _zero(path: Path) -> None:
    try:
        with path.open("r+b") as record:
            record.write(bytes(32768))
    except FileNotFoundError:
        pass  # the run removed its own record meanwhile


def test_without_the_cache_server_a_run_never_passes(job: Job) -> None:
    job.stack.ensure()
    # What was written within a second or two of the last poll before an outage stays `observation_gap` for ever: the
    # run of the test before left records, on a quick machine no earlier than that.
    job.panel.wait_polled(job.server_id, 3)
    with job.stack.without_server():
        wait_until(
            "outage seen",
            lambda: job.panel.get(f"/servers/{job.server_id}")["health"]["state"] == "unreachable",
            20,
        )
        run = job.accept()
        told = job.panel.command("accept", "--engine", job.engine_name)
    assert run["verdict"] == "invalid", (run["verdict"], run["reasons"])
    assert told.returncode == 1, (told.returncode, told.stdout, told.stderr)
    back = lambda: job.panel.get(f"/servers/{job.server_id}")["health"]["state"] == "healthy"  # noqa: E731
    wait_until("recovery seen", back, 30)
    job.panel.wait_polled(job.server_id, 3)


# --- cleanup


def test_a_truncated_record_is_found_cleaned_and_heals(job: Job) -> None:
    stack, panel = job.stack, job.panel
    stack.ensure()
    tokens = prompt(1000, 520)
    cold = store(stack, tokens, "cut")
    store(stack, prompt(600, 521), "whole")
    saved = contents(stack, "cut")
    victim = sorted(saved)[4]
    (stack.l2 / victim).write_bytes(saved[victim][:10_000])
    assert len(stack.records()) > 20
    hurt = from_disk(stack, tokens, "cut")
    assert (hurt.external or 0) < 960

    job.scan()
    classes = job.classes()
    assert classes[victim] == ("corrupt", "short")
    assert [name for name, (kind, _) in classes.items() if kind == "corrupt"] == [victim]
    others = {name: size for name, size in stack.records().items() if name != victim}
    policy = panel.post("/policies", {"name": "Broken", "store_id": job.store_id, "select": [{"kind": "corrupt"}]})
    plan = panel.work(f"/policies/{policy['id']}/plans")
    assert (plan["records"], plan["bytes"], set(plan["by_reason"])) == (1, 10_000, {"short"})
    run = panel.work(f"/plans/{plan['id']}/runs")
    assert (run["verdict"], run["removed"]["records"]) == ("succeeded", 1), run
    assert stack.records() == others

    from_disk(stack, tokens, "cut")
    stack.wait_stored(15, salt="cut")
    healed = from_disk(stack, tokens, "cut")
    assert (healed.external, drift(cold, healed)) == (960, 0.0)
    assert contents(stack, "cut") == saved
    job.scan()
    assert job.classes()[victim] == ("current", None)


def test_records_of_another_dtype_are_found_removed_in_every_tier_and_can_be_restored(job: Job) -> None:
    stack, panel = job.stack, job.panel
    stack.ensure()
    tokens, prefix = prompt(1000, 530), prompt(300, 531)
    longer = prefix[:256] + prompt(300, 532)
    for salt, text in (("live-a", tokens), ("live-b", prefix), ("live-c", prompt(1000, 533))):
        store(stack, text, salt)
    old = {name: (stack.l2 / name).read_bytes() for name in stack.records()}
    job.scan()
    classes = job.classes()
    assert {name: verdict for name, verdict in classes.items() if verdict != ("current", None)} == {}
    assert set(classes) == set(old)

    engine = stack.restart_engine(dtype="float16")
    wait_until("the old context dropped", lambda: stack.server.dtypes() == ["torch.float16"], 60)
    panel.wait_polled(job.server_id, 3)
    # Good records of the new layout, written before anything wrong was read.
    right, right_longer = store(stack, tokens, "good-a"), store(stack, longer, "good-b")
    good = set(stack.records(salt="good-a")) | set(stack.records(salt="good-b"))
    panel.wait_polled(job.server_id, 3)
    # Wrong answers from old records, and new records computed behind them.
    wrong = from_disk(stack, tokens, "live-a")
    assert (wrong.status, wrong.external) == (200, 960)
    assert drift(right, wrong) > DTYPE_FLOOR
    assert from_disk(stack, longer, "live-b").external == 256
    stack.wait_stored(8, salt="live-b")
    derived = set(stack.records(salt="live-b")) - set(old)
    assert len(derived) == 4

    panel.wait_polled(job.server_id, 3)
    job.scan()
    classes = job.classes()
    assert {name for name, verdict in classes.items() if verdict == ("incompatible", "other_layout")} == set(old)
    assert not [name for name in good if classes[name][0] in ("incompatible", "corrupt")]
    assert {stack.records()[name] for name in good} == {len(raw) for raw in old.values()}, "sizes tell nothing"
    condemned = set(old) | {name for name, (_, reason) in classes.items() if reason == "derived"}
    assert derived <= condemned

    run = _scheduled_run(job, [{"kind": "incompatible"}, {"kind": "derived"}])
    assert run["verdict"] == "succeeded", run
    assert run["removed"]["records"] == len(condemned)
    assert set(stack.records()) == set(classes) - condemned, "exactly those"
    assert stack.server.delete(sorted(condemned)) == {"deleted": 0, "skipped": 0, "ok": True}, "L1 was cleared of them"

    # What was wrong is right, without the engine's own cache and without L2; and stays right from disk.
    healed = engine.complete(tokens, salt="live-a")
    assert (healed.local, healed.external, drift(right, healed)) == (0, 0, 0.0)
    stack.wait_stored(15, salt="live-a")
    again = from_disk(stack, tokens, "live-a")
    assert (again.external, drift(right, again)) == (960, 0.0)
    healed = engine.complete(longer, salt="live-b")
    assert (healed.external, drift(right_longer, healed)) == (0, 0.0)
    stack.wait_stored(8, salt="live-b")
    again = from_disk(stack, longer, "live-b")
    assert (again.external, drift(right_longer, again)) == (512, 0.0)

    rewritten = {name: (stack.l2 / name).read_bytes() for name in set(old) & set(stack.records())}
    missing = {name: raw for name, raw in old.items() if name not in rewritten}
    assert len(missing) >= 15
    panel.post(f"/cleanup-runs/{run['id']}/restore", {})
    wait_until("restored", lambda: set(missing) <= set(stack.records()), 30)
    time.sleep(1)
    assert {name: (stack.l2 / name).read_bytes() for name in missing} == missing, "byte for byte"
    assert {name: (stack.l2 / name).read_bytes() for name in rewritten} == rewritten, "never over an existing file"


def _scheduled_run(job: Job, select: list[dict[str, Any]]) -> dict[str, Any]:
    """Gives a policy a schedule, waits for the firing that finds something, and takes the schedule away again."""
    panel = job.panel
    body = {"name": "Keep it safe", "store_id": job.store_id, "select": select, "schedule": "* * * * *"}
    policy = panel.post("/policies", body)
    found: list[dict[str, Any]] = []

    def fired() -> bool:
        runs = panel.items("/cleanup-runs", page_size=50)
        found[:] = [run for run in runs if run["policy_id"] == policy["id"] and run["verdict"] is not None]
        return bool(found)

    wait_until("a scheduled run", fired, 90, every=0.5)
    panel.patch(f"/policies/{policy['id']}", {"enabled": False})
    return panel.ended(f"/api/v1/cleanup-runs/{found[-1]['id']}")
