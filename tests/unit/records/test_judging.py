"""The inventory's cohorts say of every row what `classify` says of it alone, after any history and any re-judging."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.lmcache.object_keys import format_name, parse_name
from app.records.classify import Context, Sample, classify, learn_sizes
from app.records.facts import FileFact
from app.records.filters import RecordFilter
from app.records.inventory_file import Inventory
from app.records.judging import judge_inventory
from app.records.query import Reader
from app.records.scan_work import scan_directory
from app.records.store_dir import StoreDirectory
from app.records.timeline import NS, Adoption, Declaration
from tests.unit.records.disk import key, write
from tests.unit.records.test_model import HISTORIES, WORLDS, Op, context_of, run
from tests.unit.records.world import LAYOUTS, MODEL, World

_FORMS = st.sampled_from(["current", "current", "current", "legacy", "temporary", "salted", "empty", "odd", "odd"])


class Store:
    """A directory that follows a world, and its inventory."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "l2"
        self.root.mkdir()
        self.database = folder / "i.db"
        self.written = 0

    def follow(self, world: World, form: str) -> None:
        for number, record in enumerate(world.disk[self.written :], self.written):
            made = key(number, model=MODEL, group=None if form == "legacy" else 0, salt="x" if form == "salted" else "")
            name = format_name(made)
            size = record.size
            if form == "empty" or (form == "odd" and number % 40 == 9):
                size = 0
            elif form == "odd" and number % 30 == 7:
                size = 30_000 + 100 * number  # some shorter, some longer than a record
            write(self.root, f".tmp/{name}" if form == "temporary" else name, size, mtime=record.mtime)
        self.written = len(world.disk)

    def scan(self, context: Context) -> None:
        with StoreDirectory.open(str(self.root)) as directory:
            scan_directory(
                directory,
                self.database,
                clock=lambda: context.now / NS,
                context_of=lambda _probe: context,
                temp_dirs=(),
                tick=lambda _files: None,
                probe_clock=False,
            )

    def check(self, context: Context) -> None:
        with Inventory.require(self.database) as inventory:
            owners = inventory.owners()
            samples = [
                Sample(owners[row.owner.id].judged, row.mtime, row.size if row.cohort.size is not None else None, 1)
                for row in Reader(inventory, context.now).stream(RecordFilter())
            ]
            judged = Context(
                context.now,
                context.margin,
                context.timeline,
                learn_sizes(samples, context, (4096,)),
                context.servers,
                context.fresh,
            )
            rows = list(Reader(inventory, context.now).stream(RecordFilter()))
            assert len(rows) == self.written
            for row in rows:
                fact = FileFact(b"", row.size, row.mtime, row.ctime, row.atime, row.inode, 1, 1, 0o100644)
                said = classify(fact, parse_name(row.name), judged)
                assert (row.cohort.cls, row.cohort.reason, row.cohort.epoch) == (said.cls, said.reason, said.epoch)
            for cohort in inventory.cohorts().values():
                assert cohort.records == sum(row.cohort.id == cohort.id for row in rows) > 0


@dataclass(frozen=True)
class Moment:
    """A time within a world's past, most often among its records."""

    share: float

    def pick(self, world: World) -> float:
        written = sorted(record.mtime for record in world.disk) or [world.now]
        return min(world.now, written[int(self.share * (len(written) - 1))] + self.share)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    world=WORLDS,
    first=HISTORIES,
    then=HISTORIES,
    forms=st.tuples(_FORMS, _FORMS),
    act=st.sampled_from([None, "declare", "declare", "adopt"]),
    times=st.builds(Moment, st.floats(0, 1)),
)
def test_cohorts_agree_with_the_plain_rules(
    world: World, first: list[Op], then: list[Op], forms: tuple[str, str], act: str | None, times: Moment
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("app.records.owners._SIZES", 2)
        store = Store(Path(folder))
        run(world, first)
        store.follow(world, forms[0])
        context = context_of(world, fresh=True)
        store.scan(context)
        store.check(context)
        middle = times.pick(world)
        run(world, then)
        world.poll()
        options: dict[str, object] = {}
        if act == "declare":
            options["declarations"] = [Declaration(MODEL.replace("/", "-SEP-"), middle)]
        elif act == "adopt":
            model = MODEL.replace("/", "-SEP-")
            options["adoptions"] = [Adoption(model, 1, LAYOUTS[0], middle, frozenset())]
        context = context_of(world, fresh=True, **options)
        # The same rows judged by what is known now, without a walk; then with one.
        with Inventory.require(store.database) as inventory:
            judge_inventory(inventory, context, (4096,))
        seen = store.written
        store.check(context)
        store.follow(world, forms[1])
        assert store.written >= seen
        store.scan(context)
        store.check(context)
