"""Where nobody here has measured anything."""

from __future__ import annotations

from collections.abc import Iterable

from app.checks.base import Check, Finding
from app.checks.facts import Facts


class Territory(Check):
    id = "unverified_territory"
    title = "The engine is of a kind that was measured"
    looks_at = "kind of engine, image and video inputs, LoRA adapters"
    why = (
        "Records are named by token ids and model path. Two images may stand behind equal placeholder tokens, and "
        "adapters share their base model's path; SGLang has another connector. What is said here was measured with "
        "text and vLLM."
    )
    source = "LMCache documentation; not measured here"

    def check(self, facts: Facts) -> Iterable[Finding]:
        engine = facts.engine
        if engine is None:
            return
        reasons: list[str] = []
        if engine.facts is not None and engine.facts.multimodal:
            reasons.append("it takes images or video")
        elif engine.notes is not None and engine.notes.image_inputs:
            reasons.append("it takes images or video (limit_mm_per_prompt)")
        adapters = [card.id for card in engine.models or () if card.parent is not None]
        if adapters:
            reasons.append(f"it serves LoRA adapters ({', '.join(adapters[:3])})")
        if any("sglang" in (layout or "").lower() for layout in _labels(facts)):
            reasons.append("an SGLang engine is registered at the server")
        values = {
            "configured": "; ".join(reasons) or "vLLM, text",
            "effective": "not measured here" if reasons else "measured here",
            "origin": "/server_info and /v1/models of the engine",
        }
        if reasons:
            yield self.warn(
                engine.name,
                f"unverified territory: {'; '.join(reasons)}",
                title="Unverified territory",
                fix="run acceptance tests with prompts of that kind (two different images, two adapters) before "
                "relying on it",
                **values,
            )
        elif engine.facts is not None and engine.facts.multimodal is False:
            yield self.ok(engine.name, "vLLM, text only", **values)


def _labels(facts: Facts) -> Iterable[str | None]:
    if facts.server is None or facts.server.status is None:
        return ()
    return [layout.attention_backend for layout in facts.server.status.contexts.values()]
