"""Shapes of the experiments page: published tables, read-only, with what my own runs gave beside them."""

from __future__ import annotations

from typing import Any

from app.benchmark.schemas import Form
from app.shapes import ApiModel


class SourceView(ApiModel):
    """Where a table comes from; null is not known, `note` says why."""

    title: str | None
    date: str | None
    note: str


class SettingView(ApiModel):
    """One published setting."""

    name: str
    value: str


class TableView(ApiModel):
    """One table as printed."""

    title: str
    columns: list[str]
    rows: list[list[str]]


class BesideView(ApiModel):
    """One published number, mine, and mine ÷ published. A ratio is no judgement.

    `published_text` is the number as printed, or the words that stood for it.
    """

    name: str
    unit: str
    published: float | None
    published_text: str
    mine: float | None
    ratio: float | None


class KeptView(ApiModel):
    """One ratio of the published set-up, here; `kept` says whether it is the same."""

    name: str
    published: float | None
    mine: float | None
    kept: bool
    note: str


class SizedView(ApiModel):
    """What "run on my servers" would ask for on one engine, in one mode."""

    mode: str
    fields: dict[str, Any]
    kept: list[KeptView]
    warnings: list[str]


class VariantView(ApiModel):
    """One way to repeat an experiment. `needs`: fields that must be given, with the reason.

    `run_id`: the run of mine whose numbers are shown, with what they hold for (`run_scope`) and when it ended.
    """

    id: str
    title: str
    form: Form
    needs: dict[str, str]
    note: str
    untested: str | None
    run_id: str | None
    run_mode: str | None
    run_scope: str | None
    run_finished_at: str | None
    rows: list[BesideView]
    sized: list[SizedView]


class ExperimentView(ApiModel):
    """One published experiment. `label`: published, not measured here."""

    id: str
    label: str
    title: str
    question: str
    source: SourceView
    versions: str
    hardware: str
    settings: list[SettingView]
    tables: list[TableView]
    open_questions: list[str]
    confounds: list[str]
    variants: list[VariantView]
