"""Shapes of what counters say of a store. A value that is not known is null with a sibling that says why."""

from __future__ import annotations

from typing import Literal

from app.shapes import ApiModel


class ReadBackView(ApiModel):
    """What was written to the store against what was ever read back, in `covered_seconds` of polls since `window_from`.

    `read_bytes` is an estimate: LMCache counts records read from L2, not their bytes. It is `read_records` times
    `mean_record_bytes` (of the records on the disk at the last scan); `read_bytes_bounds` is the same with the smallest
    and the largest of them, and `read_bytes_note` says it in words. `written_estimated`: so is `written_bytes`.
    """

    state: Literal["value", "unknown"]
    reason: str | None = None
    window_from: str | None = None
    window_until: str | None = None
    covered_seconds: float | None = None
    written_records: int | None = None
    written_bytes: int | None = None
    written_estimated: bool = False
    read_records: int | None = None
    read_bytes: int | None = None
    read_bytes_bounds: list[int] | None = None
    read_bytes_note: str | None = None
    reads_per_record: float | None = None
    mean_record_bytes: int | None = None
    source: str


class NeverReadView(ApiModel):
    """Records on the disk that were never read back, by LMCache's counters: for mounts whose access times cannot tell.

    Of `written_records` on the disk that were written since `counted_since`, reads can have met `read_records` at most;
    what was written after the last read was not read at all. `at_least_bytes` null: which ones is not known.
    """

    state: Literal["value", "unknown"]
    reason: str | None = None
    counted_since: str | None = None
    written_records: int | None = None
    read_records: int | None = None
    last_read_at: str | None = None
    at_least_records: int | None = None
    at_least_bytes: int | None = None
    scanned_at: str | None = None
    source: str


class RequestRecordsView(ApiModel):
    """Records per request beside ⌊tokens / chunk⌋ × object groups × ranks; [at least, at most] where a sum over many
    requests does not tell how many whole chunks each had."""

    state: Literal["value", "no_traffic", "unknown"]
    reason: str | None = None
    note: str | None = None
    window_from: str | None = None
    window_until: str | None = None
    requests: int | None = None
    prompt_tokens: int | None = None
    generated_tokens: int | None = None
    computed_prompt_tokens: int | None = None
    chunk_tokens: int | None = None
    object_groups: int | None = None
    ranks: int | None = None
    expected_prompt_records: list[int] | None = None
    expected_output_records: list[int] | None = None
    stored_records: int | None = None
    stored_per_request: float | None = None
    expected_per_request: list[float] | None = None
    sentence: str | None = None
    source: str | None = None


class TrafficView(ApiModel):
    """What went into a store and what came back, by counters of its servers and engines."""

    store_id: str
    counted_at: str
    read_back: ReadBackView
    never_read: NeverReadView
    requests: RequestRecordsView
