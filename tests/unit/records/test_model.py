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
from app.records.timeline import NS, build_timeline
from tests.unit.records.world import LAYOUTS, MODEL, POLL, World, Written

Op = tuple[object, ...]
_ENGINE, _LAYOUT = st.integers(0, 2), st.integers(0, 2)
_POLLS = st.tuples(st.just("polls"), st.sampled_from([1, 2, 3, 13, 15]))
_QUIET = st.tuples(st.just("quiet"), st.sampled_from([1.0, 2.0, 5.0, 10.0, 25.0, 40.0, 130.0, 200.0, 900.0]))
_DELAY = st.sampled_from([0.05, 4.0, 12.0, 25.0, 60.0, 200.0])


@st.composite
def _swap(draw: st.DrawFn) -> list[Op]:
    """An engine changes its layout and writes at once."""
    engine = draw(_ENGINE)
    return [
        ("start", engine, draw(_LAYOUT), draw(st.sampled_from([0.5, 1.0, 3.0, 15.0]))),
        ("quiet", draw(st.sampled_from([1.0, 2.0, 6.0, 16.0]))),
        ("write", engine, draw(_DELAY), draw(st.sampled_from([1, 3, 25]))),
        draw(_POLLS),
    ]


@st.composite
def _hidden(draw: st.DrawFn) -> list[Op]:
    """Things that happen while nobody polls."""
    engine = draw(_ENGINE)
    ops: list[Op] = [draw(_QUIET), ("start", engine, draw(_LAYOUT), 1.0), ("quiet", 3.0), ("write", engine, 0.1, 3)]
    ops.append(draw(_QUIET))
    ops += draw(st.sampled_from([[], [("server", 2.0)], [("stop", engine)], [("unregister", engine)]]))
    if draw(st.booleans()):
        ops += [draw(_QUIET), ("start", engine, draw(_LAYOUT), 1.0), ("quiet", 5.0), ("write", engine, 0.1, 2)]
    return [*ops, draw(_POLLS)]


@st.composite
def _leave(draw: st.DrawFn) -> list[Op]:
    """An engine leaves with chunks still queued, another layout comes."""
    engine = draw(_ENGINE)
    ops: list[Op] = [("write", engine, draw(_DELAY), 3), ("unregister", engine), draw(_POLLS)]
    return [*ops, ("start", engine, draw(_LAYOUT), 1.0), ("quiet", 2.0), ("write", engine, 0.1, 2), draw(_POLLS)]


@st.composite
def _guest(draw: st.DrawFn) -> list[Op]:
    """A server restarts, and an engine comes and goes before anybody looks."""
    engine = draw(_ENGINE)
    ops: list[Op] = [
        draw(_QUIET),
        ("server", 1.0),
        ("quiet", 4.0),
        ("start", engine, draw(_LAYOUT), 0.5),
        ("quiet", 2.0),
    ]
    ops += [("quiet", 2.0), ("write", engine, draw(st.sampled_from([0.1, 20.0])), 3)]
    return [*ops, ("unregister", engine), draw(_POLLS)]


@st.composite
def _steady(draw: st.DrawFn) -> list[Op]:
    """An engine that runs on and writes now and then."""
    engine = draw(_ENGINE)
    ops: list[Op] = [("start", engine, draw(_LAYOUT), 1.0), ("quiet", 2.0)]
    for _ in range(draw(st.integers(2, 4))):
        ops += [("write", engine, 0.1, draw(st.sampled_from([1, 10]))), ("polls", draw(st.sampled_from([1, 3, 15])))]
    return ops


@st.composite
def _burst(draw: st.DrawFn) -> list[Op]:
    """Enough records to prove a size, and a damaged one."""
    engine = draw(_ENGINE)
    return [("write", engine, 1.0, draw(st.sampled_from([25, 110]))), ("damage", engine, 0.5)]


_FAILS = st.tuples(st.just("fails"), st.integers(1, 6))
_SERVER = st.tuples(st.just("server"), st.floats(1, 30))
_PLAIN = st.one_of(_POLLS, _QUIET, _FAILS, _SERVER)
HISTORIES = st.lists(
    st.one_of(_swap(), _hidden(), _leave(), _guest(), _steady(), _burst(), _PLAIN.map(lambda op: [op])),
    min_size=2,
    max_size=10,
).map(lambda parts: [op for part in parts for op in part])
WORLDS = st.builds(
    World,
    server_offset=st.floats(-50, 50),
    disk_offset=st.sampled_from([0.0, 0.0, 7.0, -13.0, 20.0]),
    offset_error=st.floats(0, 1),
    fixed_instance=st.booleans(),
    metrics=st.sampled_from([True, True, True, False]),
)


def run(world: World, ops: list[Op]) -> None:
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
    return Context(base.now, margin, timeline, learn_sizes(samples, base, (4096,)), servers=states, fresh=fresh)


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


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(world=WORLDS, ops=HISTORIES)
def test_no_judgement_contradicts_the_truth(world: World, ops: list[Op]) -> None:
    run(world, ops)
    # Without a poll just now nothing may be called incompatible: what is live is not known.
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
