"""How many tokens one scheduler step of a hybrid model may take."""

from __future__ import annotations

from collections.abc import Iterable

from app.checks import effective
from app.checks.base import Check, Finding
from app.checks.facts import Facts


class BatchedTokens(Check):
    id = "max_num_batched_tokens"
    title = "max-num-batched-tokens fits the block size of the hybrid model"
    looks_at = "--max-num-batched-tokens of the engine against its block size N (hybrid models only)"
    why = (
        "A hybrid model's state is kept only at the end of a scheduler step. A step below one block never advances; "
        "one of exactly N serves one request at a time (a published cold run was about 7 times slower); 2N and more "
        "leaves out states between, so less can be reused, and some LMCache releases refuse it at start."
    )
    source = "LMCache recipes for hybrid models; validate_mamba_step_alignment of LMCache 0.5.6"

    def check(self, facts: Facts) -> Iterable[Finding]:
        is_hybrid = effective.hybrid(facts)
        if is_hybrid is None or not is_hybrid.value:
            return
        subject = facts.engine_name
        block, tokens = effective.block_tokens(facts), effective.batched_tokens(facts)
        if block is None or tokens is None:
            missing = "the block size N" if block is None else "max-num-batched-tokens"
            yield self.unknown(
                subject,
                f"this is a hybrid model ({is_hybrid.origin}), but {missing} is not known",
                fix=effective.how_to_see(facts.engine),
            )
            return
        n, x = block.value, tokens.value
        values = {"configured": x, "effective": f"N = {n}", "origin": f"{tokens.origin}; N from {block.origin}"}
        best = f"vllm serve --max-num-batched-tokens {2 * n - 1}"
        if x < n:
            yield self.fail(
                subject,
                f"{x} < N = {n}: no step reaches the end of a block, the connector refuses to start",
                title="A scheduler step is smaller than one block",
                fix=best,
                **values,
            )
        elif x == n:
            yield self.warn(
                subject,
                f"{x} = N: a step holds one block of one request, so requests are prefilled one after the other "
                "(about 7 times slower cold in a published run)",
                title="Prefill works on one request at a time",
                fix=best,
                **values,
            )
        elif x >= 2 * n:
            yield self.warn(
                subject,
                f"{x} ≥ 2N = {2 * n}: states inside a step are not kept, so prefixes are reused in steps of up to "
                f"{x // n} blocks; LMCache 0.5.6 accepts it with --separate-object-groups, other releases refuse it",
                title="Steps are so large that less can be reused",
                fix=best,
                **values,
            )
        else:
            rest = "" if x == 2 * n - 1 else f"; {2 * n - 1} (2N − 1) would be best"
            yield self.ok(subject, f"N = {n} < {x} < 2N{rest}", fix="" if not rest else best, **values)
