"""What the product is built on: servers that go away, engines that come back with another layout.

Ordered so that the engine is restarted twice only.
"""

from __future__ import annotations

import time

from tests.real.stack.clients import drift, prompt, wait_until
from tests.real.stack.commands import REAP_SECONDS
from tests.real.stack.control import RealStack
from tests.real.stack.steps import contents, from_disk, store

# One float16 engine against one bfloat16 engine of the same model differs by this much without any cache.
DTYPE_FLOOR = 0.12

# --- the server away


def test_a_server_that_is_down_costs_the_cache_and_not_the_answers(stack: RealStack) -> None:
    engine = stack.ensure()
    tokens = prompt(1000, 30)
    cold = store(stack, tokens, "away")
    stack.stop_server()
    engine.empty_l0()
    without = engine.complete(tokens, salt="away")
    assert (without.status, without.external, without.tokens) == (200, 0, cold.tokens)
    assert drift(cold, without) == 0.0
    assert engine.answers("/health")
    time.sleep(3 * stack.engine_knobs().heartbeat)  # the engine has to miss it: only then does it register anew
    server = stack.start_server()
    wait_until("registered again", server.registered, 30)
    again = from_disk(stack, tokens, "away")
    assert (again.external, drift(cold, again)) == (960, 0.0)
    time.sleep(2 * stack.engine_knobs().heartbeat)  # or the server would not miss it for an hour: never heard from


# --- the engine restarted with another layout


def test_another_dtype_over_old_records_gives_wrong_answers_until_every_tier_is_clean(stack: RealStack) -> None:
    stack.ensure()
    tokens, salt = prompt(1000, 40), "layout"
    prefix, prefix_salt = prompt(300, 41), "derived"
    cold = store(stack, tokens, salt)
    store(stack, prefix, prefix_salt)
    old, old_prefix = contents(stack, salt), contents(stack, prefix_salt)
    server = stack.server
    assert server.dtypes() == ["torch.bfloat16"]

    # The server lists the dead engine's context, soon beside the new one's, until it was silent for the reap timeout.
    gone = time.monotonic()
    stack.stop_engine(hard=True)
    stack.launch_engine(dtype="float16")
    wait_until("the old context dropped", lambda: "torch.bfloat16" not in server.dtypes(), 60)
    # The upper end is what an idle machine shows (37 s); a busy one may look late.
    assert REAP_SECONDS - 3 < time.monotonic() - gone < 3 * REAP_SECONDS
    stack.await_engine()
    assert server.dtypes() == ["torch.float16"]
    engine = stack.engine()

    reference = store(stack, tokens, "layout-reference")
    assert drift(cold, reference) < DTYPE_FLOOR
    assert set(stack.records(salt="layout-reference").values()) == {len(raw) for raw in old.values()}, (
        "the size tells nothing"
    )
    wrong = from_disk(stack, tokens, salt)
    assert (wrong.status, wrong.external, wrong.local) == (200, 960, 0)
    assert drift(reference, wrong) > DTYPE_FLOOR

    # Removed from L2 alone, the engine's cache serves the wrong values on, and they are written again, byte for byte.
    wait_until("temporary L1 objects gone", lambda: server.l1_objects() <= 0, 10)
    for name in old:
        (stack.l2 / name).unlink()
    laundered = engine.complete(tokens, salt=salt)
    assert laundered.local == 992
    assert drift(wrong, laundered) == 0.0
    stack.wait_stored(15, salt=salt)
    assert contents(stack, salt) == old
    # With L0 empty too, L1 serves them.
    engine.empty_l0()
    laundered = engine.complete(tokens, salt=salt)
    assert (laundered.external, drift(wrong, laundered)) == (960, 0.0)

    # L2, then L1 by key, then L0: right, and right again from disk.
    for name in old:
        (stack.l2 / name).unlink()
    assert server.delete(list(old))["deleted"] == 15
    engine.empty_l0()
    right = store(stack, tokens, salt)
    assert drift(reference, right) == 0.0
    right = from_disk(stack, tokens, salt)
    assert (right.external, drift(reference, right)) == (960, 0.0)

    # What was computed behind a wrong prefix is wrong as well, and stays so after the prefix has healed.
    longer = prefix[:256] + prompt(300, 42)
    reference = store(stack, longer, "derived-reference")
    behind = from_disk(stack, longer, prefix_salt)
    assert behind.external == 256
    stack.wait_stored(8, salt=prefix_salt)
    for name in old_prefix:
        (stack.l2 / name).unlink()
    from_disk(stack, prefix, prefix_salt)
    stack.wait_stored(8, salt=prefix_salt)
    derived = from_disk(stack, longer, prefix_salt)
    assert derived.external == 512
    assert drift(reference, derived) > DTYPE_FLOOR


def test_a_terminated_engine_is_dropped_at_the_latest_like_a_killed_one(stack: RealStack) -> None:
    """On TERM vLLM kills its worker after a moment; whether the worker's farewell reaches the server is a race."""
    stack.ensure(dtype="float16")
    server, gone = stack.server, time.monotonic()
    stack.stop_engine()
    stack.launch_engine(dtype="bfloat16", dev_mode=False, warm_up=False)
    wait_until("the old context dropped", lambda: "torch.float16" not in server.dtypes(), 60)
    assert time.monotonic() - gone < 3 * REAP_SECONDS
    stack.await_engine()
    engine = stack.engine()
    assert server.dtypes() == ["torch.bfloat16"]

    # Without dev mode there is no reset, and what the engine tells about its cache is on /metrics.
    assert engine.reset().status_code == 404
    assert engine.get("/server_info").status_code == 404
    described = [name for name in engine.metrics() if name.startswith("vllm:cache_config_info{")]
    assert len(described) == 1
    assert 'block_size="32"' in described[0]


def test_an_engine_that_never_stored_misses_a_restart_of_the_server_for_good(stack: RealStack) -> None:
    """Heartbeats start with the first store. Until then the engine's registration is lost with the server, and all
    lights stay green.
    """
    engine = stack.ensure(dev_mode=False, warm_up=False)
    stack.stop_server()
    time.sleep(3 * stack.engine_knobs().heartbeat)
    server = stack.start_server()
    for seed in (50, 51):
        answer = engine.complete(prompt(300, seed), salt="unheard")
        assert (answer.status, answer.external) == (200, 0)
        time.sleep(2 * stack.engine_knobs().heartbeat)
    assert server.registered() == 0
    assert stack.records(salt="unheard") == {}
    assert engine.answers("/health")
    assert server.answers("/healthcheck")
    assert server.status()["is_healthy"] is True
    # Now that it sends heartbeats, the next restart is noticed.
    stack.restart_server()
    assert server.registered() == 1
    engine.complete(prompt(300, 52), salt="heard")
    stack.wait_stored(4, salt="heard")
