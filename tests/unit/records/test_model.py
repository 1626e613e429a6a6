"""The model-based test: over random histories, judgement never contradicts what really happened."""

from __future__ import annotations

import stat

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.lmcache.layouts import Verdict, compare_layouts
from app.lmcache.object_keys import ObjectKey, format_name, parse_name
from app.records.classify import Context, OwnerJudge, RecordOwner, Sample, ServerState, classify, learn_sizes
from app.records.facts import FileFact, Judgement
from app.records.history import build_history
from app.records.timeline import NS, Adoption, Declaration, build_timeline
from tests.unit.records.world import LAYOUTS, MODEL, POLL, World, Written

_OPS = st.one_of(
    st.tuples(st.just("start"), st.integers(0, 2), st.integers(0, 2), st.floats(1, 20)),
    st.tuples(st.just("stop"), st.integers(0, 2)),
    st.tuples(st.just("server"), st.floats(1, 30)),
    st.tuples(st.just("write"), st.integers(0, 2), st.floats(0.01, 25), st.integers(1, 40)),
    st.tuples(st.just("damage"), st.integers(0, 2), st.floats(0.01, 25)),
    st.tuples(st.just("polls"), st.integers(1, 30)),
    st.tuples(st.just("fails"), st.integers(1, 6)),
    st.tuples(st.just("quiet"), st.floats(1, 900)),
)


def run(world: World, ops: list[tuple[object, ...]]) -> None:
    for name, *args in ops:
        if name == "start":
            world.start(args[0], LAYOUTS[args[1]], args[2])  # type: ignore[index,arg-type]
        elif name == "stop":
            world.stop(args[0])  # type: ignore[arg-type]
        elif name == "unregister":
            world.unregister(args[0])  # type: ignore[arg-type]
        elif name == "server":
            world.restart_server(args[0])  # type: ignore[arg-type]
        elif name == "write":
            for _ in range(args[2]):  # type: ignore[arg-type]
                world.write(args[0], args[1])  # type: ignore[arg-type]
        elif name == "damage":
            world.write(args[0], args[1], damaged=True)  # type: ignore[arg-type]
        elif name in ("polls", "fails"):
            for _ in range(args[0]):  # type: ignore[arg-type]
                world.advance(POLL)
                world.poll() if name == "polls" else world.fail_poll()
            continue
        else:
            world.advance(args[0])  # type: ignore[arg-type]
            continue
        world.advance(1.5)


def context_of(world: World, *, fresh: bool, **options: object) -> Context:
    history = build_history(world.spans, gap_limit=3 * POLL)
    timeline = build_timeline({1: history}, now=world.now, poll_seconds=POLL, **options)  # type: ignore[arg-type]
    margin = round((POLL + abs(world.disk_offset)) * NS)
    states = {1: ServerState(healthy=fresh, polled_now=fresh, version=(0, 5, 6), process_start=world.server_start)}
    base = Context(round(world.now * NS), margin, timeline, servers=states, fresh=fresh)
    samples = [Sample(owner_of(), round(r.mtime * NS), r.size, 1) for r in world.disk]
    return Context(
        base.now, margin, timeline, learn_sizes(samples, base, (4096,)), servers=states, fresh=fresh
    )


KEY = ObjectKey(MODEL, 0x01000100, 0, bytes(range(32)))
NAME = parse_name(format_name(KEY))


def owner_of() -> RecordOwner:
    assert NAME is not None
    return RecordOwner.of(NAME)


def fact_of(record: Written) -> FileFact:
    mtime = round(record.mtime * NS)
    return FileFact(format_name(KEY).encode(), record.size, mtime, mtime, mtime, 7, 1, 1, stat.S_IFREG | 0o644)


def check(world: World, record: Written, found: Judgement) -> None:
    said = f"{found} for {record} at {world.now}; spans {world.spans}"
    if found.cls == "corrupt":
        assert record.damaged, said
    # A truncated record of unknown origin has no size of the live layout: that is all `other_size` says.
    if found.cls == "incompatible" and not (record.damaged and found.reason == "other_size"):
        assert not any(compare_layouts(record.layout, live).verdict is Verdict.SAME for live in world.live), said
    if found.cls == "current":
        assert found.epoch == record.layout.fingerprint, said


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    ops=st.lists(_OPS, min_size=3, max_size=25),
    server_offset=st.floats(-50, 50),
    disk_offset=st.floats(-20, 20),
    offset_error=st.floats(0, 1),
    fixed_instance=st.booleans(),
)
def test_no_judgement_contradicts_the_truth(
    ops: list[tuple[object, ...]],
    server_offset: float,
    disk_offset: float,
    offset_error: float,
    fixed_instance: bool,
) -> None:
    world = World(server_offset, disk_offset, offset_error, fixed_instance=fixed_instance)
    run(world, ops)
    # What is live is what the last poll shows; without one just now, nothing may be called incompatible.
    stale = context_of(world, fresh=False)
    for record in world.disk:
        found = classify(fact_of(record), NAME, stale)
        assert found.cls != "incompatible"
        check(world, record, found)
    world.poll()
    context = context_of(world, fresh=True)
    quick = OwnerJudge(owner_of(), context)
    for record in world.disk:
        found = classify(fact_of(record), NAME, context)
        check(world, record, found)
        assert quick.judge(quick.segment(round(record.mtime * NS)), record.size) == found
