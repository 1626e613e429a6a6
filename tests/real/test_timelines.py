"""What wrote each record, on the real stack: changes of layout, restarts, upgrades, several models, foreign clients.

Each test changes one thing on the same store and asks the panel what the records before and after it are.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.real.jobs import Job, new_job
from tests.real.stack.clients import key_of, prompt, wait_until
from tests.real.stack.commands import REAP_SECONDS
from tests.real.stack.control import RealStack
from tests.real.stack.steps import store
from tests.real.versions import starting

CURRENT = ("current", None)
OTHER_LAYOUT = ("incompatible", "other_layout")
#: Written by the live layout after a change: on a busy machine a poll may come late, and what no sample covers may have
#: been computed behind an old record.
DERIVED = ("unverified", "derived")
#: Published, and with the same names for layouts as the stack's own version.
OLDER = "0.5.5"
#: What `lmcache bench server` calls its model.
FOREIGN_MODEL = "test-model"


@pytest.fixture(scope="module")
def job(session_stack: RealStack) -> Iterator[Job]:
    with new_job(session_stack, "l2-timelines") as job:
        yield job
    if "second" in session_stack.engine_names:
        session_stack.stop_engine("second")


def verdicts(job: Job, names: set[str]) -> dict[tuple[str, str | None], int]:
    """Class and reason -> how many of these records have it, after two polls and a scan."""
    job.panel.wait_polled(job.server_id, 3)
    job.scan()
    classes = job.classes()
    return dict(Counter(classes[name] for name in names))


def epochs(job: Job, model: str | None = None) -> list[dict[str, Any]]:
    """The layouts seen of a model (the stack's own), newest first."""
    wanted = model or str(job.stack.environment.model)
    items = job.panel.get(f"/stores/{job.store_id}/epochs")["items"]
    return [item for item in items if item["kind"] == "observed" and item["model_name"] == wanted]


def alarms(job: Job) -> list[str]:
    found: list[str] = job.panel.get(f"/stores/{job.store_id}/epochs")["alarms"]
    return found


def stored(job: Job, salt: str, seed: int) -> set[str]:
    """The names of the records of one prompt that was computed and stored just now."""
    store(job.stack, prompt(500, seed), salt)
    return set(job.stack.records(salt=salt))


def changed_fields(epoch: dict[str, Any]) -> dict[str, tuple[Any, Any, str]]:
    return {item["field"]: (item["old"], item["new"], item["meaning"]) for item in epoch["changes"]}


def test_a_restart_with_both_contexts_listed_changes_nothing(job: Job) -> None:
    stack = job.stack
    before = stored(job, "restart-a", 700)
    stack.stop_engine(hard=True)
    stack.launch_engine()
    stack.await_engine()
    assert len(stack.server.contexts()) == 2, "the killed engine's context is still listed"
    beside = stored(job, "restart-b", 701)
    assert verdicts(job, before | beside) == {CURRENT: len(before | beside)}
    wait_until("the old context dropped", lambda: len(stack.server.contexts()) == 1, 2 * REAP_SECONDS)
    after = stored(job, "restart-c", 702)
    assert verdicts(job, before | beside | after) == {CURRENT: len(before | beside | after)}
    assert len(epochs(job)) == 1, [item["changes"] for item in epochs(job)]
    assert alarms(job) == []


def test_an_upgrade_that_changes_only_the_version_changes_no_class(job: Job) -> None:
    """Both programs of an older release, then both of the stack's own."""
    stack = job.stack
    folder = starting.package_folder(OLDER, stack.environment)
    stack.stop()
    stack.start(server={"package": folder}, engine={"package": folder})
    assert stack.server.get("/version").json().startswith(OLDER)
    old = stored(job, "version-old", 710)
    assert set(verdicts(job, old)) == {CURRENT}
    stack.stop()
    stack.start(server={"package": None}, engine={"package": None})
    assert not stack.server.get("/version").json().startswith(OLDER)
    new = stored(job, "version-new", 711)
    found = verdicts(job, old | new)
    assert found == {CURRENT: len(old | new)}, found
    versions = [str(item["layout"]["lmcache_version"]) for item in epochs(job)]
    assert any(version.startswith(OLDER) for version in versions), versions
    soft = {name: meaning for item in epochs(job) for name, (_, _, meaning) in changed_fields(item).items()}
    assert soft == {"lmcache_version": "test again"}, soft


def test_another_chunk_size(job: Job) -> None:
    stack = job.stack
    old = set(stack.records())
    stack.stop()
    stack.start(server={"chunk_size": 128})
    job.panel.wait_polled(job.server_id, 3)
    new = stored(job, "chunk-new", 720)
    found = verdicts(job, new)
    assert set(found) <= {CURRENT, DERIVED}, found
    assert verdicts(job, old) == {OTHER_LAYOUT: len(old)}
    assert changed_fields(epochs(job)[0])["chunk_size"] == (64, 128, "decides bytes")


def test_back_to_the_old_chunk_size_the_old_records_are_good_again(job: Job) -> None:
    stack = job.stack
    wide = set(stack.records(salt="chunk-new"))
    old = set(stack.records()) - wide
    stack.stop()
    stack.start(server={"chunk_size": 64})
    job.panel.wait_polled(job.server_id, 3)
    assert verdicts(job, old) == {CURRENT: len(old)}
    assert verdicts(job, wide) == {OTHER_LAYOUT: len(wide)}


def test_another_block_size(job: Job) -> None:
    stack = job.stack
    old = stored(job, "block-old", 730)
    stack.restart_engine(block_size=64, blocks=256)
    wait_until("the old context dropped", lambda: len(stack.server.contexts()) == 1, 2 * REAP_SECONDS)
    job.panel.wait_polled(job.server_id, 3)
    new = stored(job, "block-new", 731)
    found = verdicts(job, new)
    assert set(found) <= {CURRENT, DERIVED}, found
    assert verdicts(job, old) == {OTHER_LAYOUT: len(old)}
    changes = changed_fields(epochs(job)[0])
    blocks = ("groups[0].tokens_per_block", "groups[0].slots_per_block")
    assert changes == dict.fromkeys(blocks, (32, 64, "decides bytes")), changes
    stack.restart_engine(block_size=32, blocks=512)
    wait_until("the old context dropped", lambda: len(stack.server.contexts()) == 1, 2 * REAP_SECONDS)
    # They were written after a change of chunk size, too: a poll that came to nothing meanwhile counts as a hit (C8).
    assert set(verdicts(job, old)) <= {CURRENT, DERIVED}, verdicts(job, old)
    assert verdicts(job, new) == {OTHER_LAYOUT: len(new)}


def test_two_models_on_one_store_are_told_apart(job: Job) -> None:
    stack = job.stack
    first = stored(job, "first-model", 740)
    model = stack.directory / "other-llama"
    shutil.copytree(stack.environment.model, model)
    second = stack.start_engine("second", model=model, served_name="other-llama", dtype="float16")
    job.panel.post("/engines", {"name": "other", "url": second.url, "server_id": job.server_id})
    job.panel.wait_polled(job.server_id, 3)
    cold = second.complete(prompt(500, 741), salt="second-model")
    assert cold.status == 200
    stack.wait_stored(7, salt="second-model")
    theirs = set(stack.records(salt="second-model"))
    assert verdicts(job, theirs) == {CURRENT: len(theirs)}
    assert set(verdicts(job, first)) <= {CURRENT, DERIVED}, "two dtypes, each of its own model"
    items = {item["name"]: item for item in job.panel.items(f"/stores/{job.store_id}/records", page_size=100)}
    assert {items[name]["model_name"] for name in theirs} == {str(model)}
    assert {items[name]["model_name"] for name in first} == {str(stack.environment.model)}
    seen = epochs(job, str(model))
    assert [item["layout"]["dtype"] for item in seen] == ["float16"], [(e["changes"], e["layout"]) for e in seen]
    assert alarms(job) == [], "two models are not mixed layouts"
    stack.stop_engine("second")


# ---- a client that is not vLLM ----


def bench(job: Job, shape: str, start: int) -> set[str]:
    """Records of `lmcache bench server` with this shape; none that was there is written again."""
    stack = job.stack
    before = set(stack.records())
    command = [stack.environment.program("lmcache"), "bench", "server", "--mode", "cpu"]
    command += ["--transfer-mode", "lmcache_driven", "--rpc-url", f"tcp://127.0.0.1:{stack.zmq_port}"]
    command += ["--url", stack.server.url, "--start", str(start), "--end", str(start + 4), "--interval", "2"]
    command += ["--kvcache-shape-spec", shape, "--num-blocks", "256", "--block-size", "16"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=360, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    wait_until("what it stored is on disk", lambda: stack.server.pending() == 0, 20)
    time.sleep(0.5)
    new = set(stack.records()) - before
    assert {key_of(name)["model_name"] for name in new} == {FOREIGN_MODEL}
    return new


@pytest.mark.parametrize(
    ("start", "shape"),
    [
        (0, "(2,256,16,2,32):float32:2"),
        (10, "(2,256,16,2,32):bfloat16:2"),
        (20, "(2,256,16,2,32):float16:2"),
        (30, "(2,256,16,2,32):float16:2;(2,256,16,2,32):float16:2"),
    ],
    ids=["float32", "bfloat16", "float16", "two-groups"],
)
def test_records_of_a_client_without_an_engine(job: Job, start: int, shape: str) -> None:
    """Its context is there only while it runs; what it wrote is what the last one seen writes, all older is not."""
    older = {name for name in job.stack.records() if key_of(name)["model_name"] == FOREIGN_MODEL}
    new = bench(job, shape, start)
    assert new
    found = verdicts(job, new)
    # No engine tells when its process started: what was written before the first poll that saw it stays undecided; and
    # what was written while older records could be read back may have been computed behind one.
    assert {kind for kind, _ in found} <= {"current", "unverified"}, found
    if older:
        assert found.get(DERIVED, 0) + found.get(CURRENT, 0) >= len(new) / 2, found
        outdated = verdicts(job, older)
        assert set(outdated) <= {OTHER_LAYOUT, DERIVED, ("unverified", "mixed_layouts")}, outdated
        assert outdated.get(OTHER_LAYOUT, 0) >= len(older) / 2, outdated
    else:
        assert found.get(CURRENT, 0) >= len(new) / 2, found
