"""Views of the records room, for rendering pages."""

from __future__ import annotations

from typing import Any

from app.records import schemas as rs
from app.records import traffic_schemas as ts
from tests.unit.web.room_samples import work
from tests.unit.web.samples import ago, made

HASH = "3fa91c02d4e85b7790aabbccddeeff00112233445566778899aabbccddeeff00"


def summary(*, scanned: bool = True, clean: bool = False, odd: str = "") -> rs.SummaryView:
    mount = rs.MountView(
        fs_type="xfs", mount_point="/srv/kv", access_times="relatime", volatile=bool(odd), block_size=4096
    )
    eviction = rs.EvictionView(
        vanished_records=0,
        vanished_bytes=0,
        since=ago(900000) if scanned else None,
        sentence="The fs adapter does not evict.",
    )
    if not scanned:
        return rs.SummaryView(
            store_id="1",
            state="never_scanned",
            records=None,
            bytes=None,
            by_class={},
            by_reason={},
            by_model=[],
            filesystem=rs.FilesystemSummary(
                total_bytes=None, free_bytes=None, inodes_free=None, reason="not looked yet"
            ),
            mount=rs.MountView(),
            growth_bytes_per_hour=None,
            growth_reason="needs two scans",
            full_in_hours=None,
            scanned_at=None,
            scan_id=None,
            classified_at=None,
            allocated_bytes=None,
            foreign_examples=[],
            unreadable=[],
            oldest_modified_at=None,
            newest_modified_at=None,
            eviction=eviction,
            alarms=[],
        )
    classes = {"current": rs.Count(records=101_204, bytes=1_510_000_000_000)}
    reasons = {}
    if not clean:
        classes |= {
            "incompatible": rs.Count(records=1204, bytes=38_000_000_000),
            "corrupt": rs.Count(records=37, bytes=410_000_000),
            "temporary": rs.Count(records=3, bytes=44_000_000),
            "unverified": rs.Count(records=918, bytes=84_000_000_000),
            "foreign": rs.Count(records=11, bytes=1_200_000),
        }
        reasons = {
            "other_layout": rs.Count(records=1204, bytes=38_000_000_000),
            "short": rs.Count(records=36, bytes=410_000_000),
            "empty": rs.Count(records=1, bytes=0),
            "before_first_seen": rs.Count(records=918, bytes=84_000_000_000),
        }
    total = rs.Count(
        records=sum(n.records for k, n in classes.items() if k != "foreign"),
        bytes=sum(n.bytes for k, n in classes.items() if k != "foreign"),
    )
    return rs.SummaryView(
        store_id="1",
        state="scanned",
        records=total.records,
        bytes=total.bytes,
        by_class=classes,
        by_reason=reasons,
        by_model=[
            rs.ModelSummary(
                model_name="/models/qwen2.5-7b" + odd,
                world_size=1,
                records=total.records,
                bytes=total.bytes,
                by_class=classes,
            )
        ],
        filesystem=rs.FilesystemSummary(
            total_bytes=2_600_000_000_000, free_bytes=612_000_000_000, inodes_free=158_000_000
        ),
        mount=mount,
        growth_bytes_per_hour=7_400_000_000 if not clean else 0.0,
        growth_reason=None,
        full_in_hours=81.6 if not clean else None,
        scanned_at=ago(640),
        scan_id="1",
        classified_at=ago(600),
        allocated_bytes=total.bytes,
        foreign_examples=["notes.txt" + odd] if not clean else [],
        unreadable=[],
        oldest_modified_at=ago(900000),
        newest_modified_at=ago(30),
        eviction=eviction,
        alarms=["Two layouts write into this store: mixed layouts" + odd] if odd else [],
        adapters=[adapter("fs", "/mnt/nvme0/kv", None), adapter("redis" + odd, None, "they cannot be listed" + odd)],
    )


def adapter(name: str, base_path: str | None, reason: str | None) -> rs.AdapterView:
    return rs.AdapterView(
        server_id="1",
        adapter=name,
        base_path=base_path,
        usage_bytes=None if reason else 1_700_000_000_000,
        usage_reason=reason,
        max_capacity_bytes=None,
        evicts=None if reason else False,
        listed=reason is None,
        reason=reason,
    )


def record(ident: str, klass: str, reason: str | None, odd: str, **over: Any) -> rs.RecordView:
    values: dict[str, Any] = {
        "id": ident,
        "store_id": "1",
        "name": f"-SEP-models-SEP-qwen2.5-7b@0x01000100@0@{HASH}.data{odd}",
        "class_": klass,
        "reason": reason,
        "model_name": "/models/qwen2.5-7b" + odd,
        "kv_rank": 0x01000100,
        "world_size": 1,
        "rank": 0,
        "object_group_id": 0,
        "chunk_hash": HASH,
        "cache_salt": "tk-7-p3" + odd if klass == "current" else "",
        "size_bytes": 14_680_064,
        "modified_at": ago(90000),
        "accessed_at": ago(4000),
        "epoch_id": "2",
    }
    return made(rs.RecordView, values | over)


def records(odd: str) -> list[rs.RecordView]:
    return [
        record("1", "current", None, odd),
        record("2", "incompatible", "other_layout", odd, held=True),
        record("3", "corrupt", "empty", odd, size_bytes=0),
        record("4", "unreachable", "legacy_name", odd, object_group_id=None),
        record("5", "temporary", None, odd),
        record("6", "unverified", "before_first_seen", odd),
    ]


def record_detail(odd: str, *, bare: bool = False) -> rs.RecordDetail:
    base = record(
        "2", "unverified" if bare else "incompatible", "layout_unknown" if bare else "other_layout", odd
    ).model_dump()
    return rs.RecordDetail(
        **base,
        rule="C4",
        sentence="Written in bfloat16 between 13:58 and 14:02; the engine now reads float16." + odd,
        window=[] if bare else [ago(90010), ago(89990)],
        candidates=[]
        if bare
        else [
            rs.CandidateView(
                fingerprint="b1d2770cf3e94410aabb",
                layout={"dtype": "bfloat16"},
                live=False,
                verdict="different",
                differences=[
                    {
                        "field": "dtype",
                        "old": "bfloat16" + odd,
                        "new": "float16",
                        "kind": "hard",
                        "meaning": "decides bytes",
                    }
                ],
            ),
            rs.CandidateView(fingerprint=None, layout=None, live=False, verdict="unknown", differences=[]),
        ],
        size_evidence=rs.SizeEvidenceView(
            expected_bytes=None if bare else 14_680_064,
            accepted_bytes=[14_680_064],
            records=1204,
            most_common_bytes=None if bare else 14_680_064,
            most_common_share=None if bare else 0.998,
            sentence="1,204 records of its kind; 99.8 % have 14,680,064 bytes." + odd,
        ),
        sizes_seen=[]
        if bare
        else [
            rs.SizeSeenView(size_bytes=14_680_064, records=1201),
            rs.SizeSeenView(size_bytes=4096, records=3),
        ],
        past=[]
        if bare
        else [
            rs.PastView(at=ago(90000), what="written", detail="by bfloat16, chunk 256", source="its time of writing"),
            rs.PastView(
                at=ago(900),
                what="planned",
                detail="to go to quarantine",
                source="ann" + odd,
                ref_kind="plan",
                ref_id="3",
            ),
            rs.PastView(
                at=ago(800), what="put back", detail="all of it", source="ann", ref_kind="cleanup_run", ref_id="4"
            ),
            rs.PastView(
                at=ago(700), what="another layout began", detail="dtype", source="polls", ref_kind="epoch", ref_id="5"
            ),
            rs.PastView(at=ago(200), what="held", detail="restored" + odd, source="admin" + odd),
        ],
        changed_at=ago(86000),
        inode=4711,
        judged_at=ago(600),
    )


def scan(ident: str = "1", *, state: str = "succeeded", error: str | None = None) -> rs.ScanView:
    return rs.ScanView(
        **(work(ident, state, "files") | {"error": error}),
        store_id="1",
        rescan=True,
        gentle=False,
        files_seen=103_377,
        records=103_366,
        bytes=1_640_000_000_000,
        allocated_bytes=1_640_000_000_000,
        seconds=3.4 if state == "succeeded" else None,
        files_per_second=30_400.0,
        foreign=11,
        foreign_examples=[],
        added=212,
        changed=0,
        vanished=0,
        vanished_bytes=0,
        removed_by_runs=311,
        unreadable=[],
        clock_difference_seconds=0.01,
        clock_measured=True,
    )


def traffic(*, bare: bool = False, busy: bool = True) -> ts.TrafficView:
    """Nothing known; all known; or a quiet window."""
    source = "the servers' own counters"
    if bare:
        return ts.TrafficView(
            store_id="1",
            counted_at=ago(30),
            read_back=ts.ReadBackView(state="unknown", reason="never polled", source=source),
            never_read=ts.NeverReadView(state="unknown", reason="never polled", source=source),
            requests=ts.RequestRecordsView(state="unknown", reason="no engine is registered"),
        )
    return ts.TrafficView(
        store_id="1",
        counted_at=ago(30),
        read_back=ts.ReadBackView(
            state="value",
            window_from=ago(90_000),
            window_until=ago(5),
            covered_seconds=86_000.0,
            written_records=3000 if busy else 0,
            written_bytes=44_040_192_000 if busy else 0,
            read_records=120 if busy else None,
            read_bytes=1_761_607_680 if busy else None,
            reads_per_record=0.04 if busy else None,
            mean_record_bytes=14_680_064,
            written_estimated=busy,
            read_bytes_bounds=[1_761_607_680, 3_523_215_360] if busy else None,
            read_bytes_note="an estimate, since LMCache counts records and not bytes" if busy else None,
            source=source,
        ),
        never_read=ts.NeverReadView(
            state="value",
            counted_since=ago(90_000),
            written_records=3000,
            read_records=120 if busy else 0,
            last_read_at=ago(700) if busy else None,
            at_least_records=2880,
            at_least_bytes=None if busy else 42_278_584_320,
            scanned_at=ago(600),
            source=source,
        ),
        requests=ts.RequestRecordsView(
            state="value" if busy else "no_traffic",
            note="1 of 2 engines told nothing in this window",
            window_from=ago(86_400),
            window_until=ago(5),
            requests=200 if busy else 0,
            prompt_tokens=840_000 if busy else 0,
            generated_tokens=20_000 if busy else 0,
            computed_prompt_tokens=400_000 if busy else 0,
            chunk_tokens=256,
            object_groups=1,
            ranks=2,
            expected_prompt_records=[6164, 6562],
            expected_output_records=[0, 156],
            stored_records=3000 if busy else 0,
            stored_per_request=15.0 if busy else None,
            expected_per_request=[30.8, 33.6] if busy else None,
            sentence="fewer than their lengths say",
            source=source,
        ),
    )


def span(start: float, end: float) -> dict[str, Any]:
    """A time that a server listed a layout, in seconds before now."""
    return {"from": ago(start), "first_listed": None, "last_listed": ago(end), "until": ago(end)}


def epochs(odd: str, *, empty: bool = False) -> rs.EpochsView:
    def epoch(ident: str, kind: str, live: bool, **over: Any) -> rs.EpochView:
        values: dict[str, Any] = {
            "id": ident,
            "kind": kind,
            "model_name": "/models/qwen2.5-7b" + odd,
            "world_size": 1,
            "fingerprint": "3fa91c02d4e85b7790aa",
            "layout": {"dtype": "float16" if live else "bfloat16", "chunk_size": 256},
            "live": live,
            "possible_from": ago(9000),
            "certain_from": ago(8990),
            "ended_at": None if live else ago(180),
            "spans": [] if live else [span(3 * 86400, 180)],
            "changes": [
                {
                    "field": "dtype",
                    "old": "bfloat16" + odd,
                    "new": "float16",
                    "kind": "hard",
                    "meaning": "decides bytes",
                }
            ]
            if live
            else [],
            "records": 311 if kind == "observed" else 0,
            "bytes": 4_500_000_000,
            "mean_record_bytes": 14_469_453 if kind == "observed" else None,
            "layout_record_bytes": [14_680_064] if live else None,
            "first_written_at": ago(9000) if kind == "observed" else None,
            "last_written_at": ago(180) if kind == "observed" else None,
            "effective_at": None,
            "reason": None,
            "actor": None,
            "created_at": ago(9000),
        }
        return made(rs.EpochView, values | over)

    if empty:
        return rs.EpochsView(items=[], alarms=[])
    return rs.EpochsView(
        unwatched=[
            rs.UnwatchedView(server_id="1", server_name="lmc-a", kind="gap", from_at=ago(9000), until=ago(8000)),
            rs.UnwatchedView(server_id="1", server_name="lmc-a", kind="before", from_at=None, until=ago(90_000)),
        ],
        items=[
            epoch("2", "observed", True),
            epoch("1", "observed", False),
            epoch(
                "d1",
                "declare",
                False,
                layout=None,
                fingerprint=None,
                certain_from=None,
                effective_at=ago(50),
                reason="new weights" + odd,
            ),
        ],
        alarms=["mixed layouts" + odd] if odd else [],
        choices=[
            rs.SafeChoicesView(
                model_name="/models/qwen2.5-7b" + odd,
                world_size=1,
                fingerprint="3fa91c02d4e85b77",
                records=311,
                bytes=4_500_000_000,
                new_directory="/srv/qwen2.5-7b-3fa91c02d4e85b77",
                flag='--l2-adapter \'{"type": "fs", "base_path": "/srv/qwen2.5-7b-3fa91c02d4e85b77"}\'',
            )
        ],
    )


def growth() -> list[rs.GrowthPointView]:
    return [
        rs.GrowthPointView(
            at=ago(3600 * (8 - n)),
            scan_id=str(n),
            by_class={
                "current": rs.Count(records=n, bytes=10**11 * (n + 4)),
                "unverified": rs.Count(records=1, bytes=2 * 10**11),
                "incompatible": rs.Count(records=1, bytes=10**11 if n < 5 else 0),
                "foreign": rs.Count(records=1, bytes=5),
                "total": rs.Count(records=n, bytes=10**11 * (n + 7)),
            },
        )
        for n in range(8)
    ]


def distribution(odd: str, *, knows_use: bool) -> rs.DistributionView:
    ends: list[float | None] = [3600.0, 86_400.0, 7 * 86_400.0, None]
    starts = [0.0, 3600.0, 86_400.0, 7 * 86_400.0]
    rows = [
        rs.BucketView(from_seconds=start, to_seconds=end, records=1000 * n, bytes=n * 10**11)
        for n, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]
    return rs.DistributionView(
        store_id="1",
        scanned_at=ago(640),
        age=rows,
        last_use=rows if knows_use else None,
        never_read=rs.Count(records=400, bytes=10**10) if knows_use else None,
        use_reason=None if knows_use else "this mount records no access times",
        unsalted=rs.Count(records=5000, bytes=10**11),
        by_salt=[rs.SaltCount(salt="tenant-a" + odd, records=40, bytes=10**9)],
        more_salts=3,
        by_rank=[
            rs.RankCount(
                model_name="/models/qwen2.5-7b" + odd, world_size=2, rank=rank, kv_rank=0x02000200, records=9, bytes=99
            )
            for rank in (0, 1)
        ],
    )
