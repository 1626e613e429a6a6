"""Runs side by side, and what changed since the last pass. Pure but for reading stored answers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.acceptance.answers import Answer, AnswerSet
from app.acceptance.compare import compare
from app.acceptance.results import comparison_view
from app.acceptance.schemas import AcceptanceRunView, ComparisonView, LatestView, RunComparisonView, RunDifferenceView
from app.acceptance.tables import AcceptanceAnswer, AcceptancePrompt, AcceptanceRun
from app.acceptance.tolerance import Tolerance, fix_tolerance, noise_floor
from app.fleet.schemas import EngineView, ServerView
from app.vllm.facts import UNSET

#: Frozen fields whose change makes a pass stale; nested settings are compared one by one.
STALE_FIELDS = ("model", "model_root", "engine_version", "server_version", "layout_fingerprint", "chunk_size")
#: Where a cache server listens says nothing of what it keeps: a restart on another port leaves a pass as it is.
_NO_MATTER = frozenset(f"server_settings.{name}" for name in ("http_port", "message_port", "prometheus_port"))
_GROUPS = ("settings", "server_settings")
_ADAPTER = re.compile(r"l2_adapter\[(\d+)\]\.(.+)")
_NAMES = {
    "model_root": "model path",
    "engine_version": "vLLM version",
    "server_version": "LMCache version",
    "layout_fingerprint": "KV layout",
    "l2_adapters": "number of L2 adapters",
}
PASSES = ("pass", "pass_with_near_ties")
#: Verdicts that say something of the cache; all others are missing evidence or trouble outside the comparison.
DECIDING = (*PASSES, "fail")


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[RunDifferenceView]:
    """Frozen facts that are known on both sides and differ."""
    pairs = [(name, a.get(name), b.get(name)) for name in STALE_FIELDS]
    for group in _GROUPS:
        one, two = a.get(group) or {}, b.get(group) or {}
        names = sorted((set(one) & set(two)) - {"connector_options", *STALE_FIELDS})
        pairs += [(f"{group}.{name}", one[name], two[name]) for name in names]
        # Options are told all together: one that is missing was not set.
        here, there = one.get("connector_options"), two.get("connector_options")
        if isinstance(here, Mapping) and isinstance(there, Mapping):
            pairs += [
                (f"{group}.connector_options.{name}", here.get(name, UNSET), there.get(name, UNSET))
                for name in sorted(set(here) | set(there))
            ]
    return [
        RunDifferenceView(field=field, name=setting_name(field), a=one, b=two)
        for field, one, two in pairs
        if one is not None and two is not None and one != two
    ]


def setting_name(field: str) -> str:
    """``dtype``, ``L2 adapter 1 base path``, ``connector option lmcache.mp.port``: a frozen field in words."""
    name = field.removeprefix("server_settings.").removeprefix("settings.")
    if (adapter := _ADAPTER.match(name)) is not None:
        return f"L2 adapter {int(adapter[1]) + 1} {adapter[2].replace('_', ' ')}"
    if name.startswith("connector_options."):
        return f"connector option {name.removeprefix('connector_options.')}"
    return _NAMES.get(name, name.replace("_", " "))


def facts_now(engine: EngineView, server: ServerView | None) -> dict[str, Any]:
    """The same fields as a run freezes, from the last polls; None where they do not tell."""
    layout = None
    if server is not None:
        live = {
            v.fingerprint
            for v in server.layouts
            if v.live and (v.model_name in engine.model_roots or not engine.model_roots)
        }
        # Several live layouts of one model: a restart that is not over yet; which one is ours is not known.
        layout = live.pop() if len(live) == 1 else None
    told = engine.facts.settings
    witnessed = {  # also by /metrics or by hand, where /server_info is not open
        "dtype": engine.facts.dtype,
        "kv_cache_dtype": engine.facts.kv_cache_dtype,
        "block_size": engine.facts.block_size,
        "enable_prefix_caching": engine.facts.prefix_caching,
        "revision": engine.facts.revision,
    }
    return {
        "model": engine.model_names[0] if engine.model_names else None,
        "model_root": engine.model_roots[0] if engine.model_roots else None,
        "engine_version": engine.version,
        "server_version": server.version if server is not None else None,
        "layout_fingerprint": layout,
        "chunk_size": server.chunk_size if server is not None else None,
        "settings": {**told, **{name: value for name, value in witnessed.items() if value is not None}},
        "server_settings": {} if server is None else server.settings,
    }


def latest(
    engine: EngineView,
    server: ServerView | None,
    last_run: AcceptanceRunView | None,
    last_pass: AcceptanceRunView | None,
    last_verdict: AcceptanceRunView | None = None,
    without_verdict: int = 0,
) -> LatestView:
    """Whether the last pass still speaks for what runs now. `last_verdict`: the last run that passed or failed."""
    failed = last_verdict is not None and last_verdict.verdict == "fail"
    if last_pass is None:
        state, reason, changed = "never", "no acceptance run of this engine has passed yet", []
    else:
        found = differences(last_pass.frozen, facts_now(engine, server))
        changed = [d for d in found if d.field not in _NO_MATTER]
        if failed and last_verdict is not None:
            state, reason = "stale", f"run {last_verdict.id} after the last pass ended fail"
        elif changed:
            names = ", ".join(d.name for d in changed[:4])
            if len(changed) > 4:
                names += f" and {len(changed) - 4} more"
            state, reason = "stale", f"{names} changed since the last pass"
        elif engine.polled_at is None or engine.health.state in ("unreachable", "unknown"):
            state, reason = "unknown", "the engine has not been read, so nobody knows what changed"
        else:
            state, reason = "fresh", "nothing that is watched changed since the last pass"
    return LatestView(
        engine_id=engine.id,
        state=state,
        reason=reason,
        last_run=last_run,
        last_pass=last_pass,
        last_verdict=last_verdict,
        without_verdict=without_verdict,
        changed=changed,
    )


def compare_runs(session: Session, a: AcceptanceRunView, b: AcceptanceRunView) -> RunComparisonView:
    """Two ended runs; answers are compared where both asked the same prompts."""
    run_a, run_b = int(a.id), int(b.id)
    digests_a, digests_b = _digests(session, run_a), _digests(session, run_b)
    same = {key for key, digest in digests_a.items() if digests_b.get(key) == digest}
    tolerance = _tolerance(b) or _tolerance(a) or fix_tolerance("near_tie", noise_floor([], 0))
    arms = [x.name for x in a.arms if x.name in {y.name for y in b.arms}]
    texts = token_texts(a) | token_texts(b)
    comparisons: list[ComparisonView] = []
    for arm in arms:
        left, right = _answers(session, run_a, arm, same), _answers(session, run_b, arm, same)
        if left.answers and right.answers:
            view = comparison_view(compare(left, right, tolerance), texts)
            comparisons.append(view.model_copy(update={"arm": arm, "reference": f"run {a.id}"}))
    return RunComparisonView(
        a=a,
        b=b,
        same_prompts=bool(same) and digests_a == digests_b,
        differences=differences(a.frozen, b.frozen),
        arms=_arm_pairs(a, b),
        comparisons=comparisons,
    )


def token_texts(run: AcceptanceRunView) -> dict[str, str]:
    """What the run's own comparisons know its tokens to read like, by token: answers are kept by ids."""
    known: dict[str, str | None] = {}
    for pair in (p for c in run.comparisons for p in c.divergences):
        d = pair.first_divergence
        if d is not None:
            known |= {c.token: c.text for c in (*d.top_a, *d.top_b) if c.text is not None}
            known |= {t: text for t, text in ((d.token_a, d.text_a), (d.token_b, d.text_b)) if t and text is not None}
    return {token: text for token, text in known.items() if text is not None}


def _arm_pairs(a: AcceptanceRunView, b: AcceptanceRunView) -> list[dict[str, Any]]:
    by_name_a, by_name_b = {x.name: x for x in a.arms}, {x.name: x for x in b.arms}
    rows: list[dict[str, Any]] = []
    for name in dict.fromkeys([*by_name_a, *by_name_b]):
        one, two = by_name_a.get(name), by_name_b.get(name)
        ttft_one = one.ttft_ms.median if one else None
        ttft_two = two.ttft_ms.median if two else None
        score_one = one.score.value if one and one.score else None
        score_two = two.score.value if two and two.score else None
        rows.append(
            {
                "name": name,
                "a": one.model_dump() if one else None,
                "b": two.model_dump() if two else None,
                "ttft_median_change": ttft_two / ttft_one - 1 if ttft_one and ttft_two is not None else None,
                "score_change": score_two - score_one if score_one is not None and score_two is not None else None,
            }
        )
    return rows


def _digests(session: Session, run_id: int) -> dict[str, str]:
    rows = session.execute(
        select(AcceptancePrompt.key, AcceptancePrompt.digest).where(
            AcceptancePrompt.run_id == run_id, AcceptancePrompt.kind.not_in(("probe", "control"))
        )
    )
    return {row.key: row.digest for row in rows}


def _answers(session: Session, run_id: int, arm: str, keys: set[str]) -> AnswerSet:
    rows: Sequence[dict[str, Any]] = session.scalars(
        select(AcceptanceAnswer.data).where(
            AcceptanceAnswer.run_id == run_id,
            AcceptanceAnswer.arm == arm,
            AcceptanceAnswer.repeat == 0,
            AcceptanceAnswer.probe.is_(False),
        )
    ).all()
    return AnswerSet.of(arm, [a for a in map(Answer.from_json, rows) if a.prompt in keys])


def _tolerance(run: AcceptanceRunView) -> Tolerance | None:
    stored = run.evidence.get("tolerance")
    if not stored:
        return None
    return fix_tolerance(
        stored["mode"],
        noise_floor([stored["floor"]["max_abs_nats"]], 0),
        max_abs_nats=stored["max_abs_nats"],
        near_tie_gap_nats=stored["near_tie_gap_nats"],
    )


def last_row(session: Session, engine_id: int, verdicts: Sequence[str] = ()) -> AcceptanceRun | None:
    """The newest ended run of an engine; with `verdicts` the newest that ended with one of them."""
    query = select(AcceptanceRun).where(AcceptanceRun.engine_id == engine_id, AcceptanceRun.finished_at.is_not(None))
    if verdicts:
        query = query.where(AcceptanceRun.verdict.in_(verdicts))
    return session.scalar(query.order_by(AcceptanceRun.id.desc()).limit(1))


def count_without_verdict(session: Session, engine_id: int, after: AcceptanceRun | None) -> int:
    """How many runs of an engine ended after `after` (None: ever) and proved nothing; cancelled ones had no chance."""
    query = select(func.count()).where(
        AcceptanceRun.engine_id == engine_id,
        AcceptanceRun.finished_at.is_not(None),
        AcceptanceRun.verdict.is_not(None),
        AcceptanceRun.verdict.not_in(DECIDING),
    )
    if after is not None:
        query = query.where(AcceptanceRun.id > after.id)
    return session.scalar(query) or 0
