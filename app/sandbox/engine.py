"""A vLLM engine without HTTP: its prefix cache, its link to a cache server, its answers and counters.

A request is answered at once (`generate`); the seconds it should have taken are part of the result and are slept by
the HTTP layer. What the answer is made of is the KV bytes that were really used: from L0, from the server, or computed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from app.sandbox import tokenizer
from app.sandbox.config import EngineSpec, Latency
from app.sandbox.exposition import MetricSet, families
from app.sandbox.misbehaviour import Faults
from app.sandbox.model import Block, join_blocks, load_model, log_softmax, split_chunk
from app.sandbox.sampling import Generation, Sampling, Step, best, constant_steps, pick
from app.sandbox.server import CacheServer, Lookup
from app.sandbox.tiers import PrefixCache, block_hashes

_ONLY_WITH_CONNECTOR = {"vllm:lmcache_mp_lookup_duration_seconds", "vllm:num_requests_kv_fetch_by_stage"}


class EngineHangs(Exception):
    """The request will never be answered (`engine_driven` behind a server that forgot this engine)."""


class Engine:
    """One engine process. `server` is its cache server, or None."""

    def __init__(self, spec: EngineSpec, server: CacheServer | None, latency: Latency, rng: random.Random, now: float):
        self.spec = spec
        self.server = server
        self.latency = latency
        self.faults = Faults()
        self.down = False
        self.running = 0
        self.waiting = 0
        self.blocks_in_use = 0
        self.boot = 0
        self._rng = rng
        self._boot(now if spec.started_at is None else spec.started_at, now)

    # --- life -----------------------------------------------------------------------------------------------

    def _boot(self, started_at: float, now: float) -> None:
        layout = self.spec.layout
        if self.server is not None and self.server.spec.chunk_size % layout.block_size:
            chunk = self.server.spec.chunk_size
            raise ValueError(f"LMCache chunk size {chunk} must be a multiple of the block size {layout.block_size}")
        self.boot += 1
        self.started_at = started_at
        self.instance_ids = [self._rng.getrandbits(62) for _ in range(layout.world_size)]
        self.fingerprint = f"{self._rng.getrandbits(32):08x}"
        self.model = load_model(self.spec.model_path)
        self.l0 = PrefixCache(self.spec.l0_blocks)
        self._put_back: tuple[int, PrefixCache | None] = (0, None)
        self.metrics = MetricSet("engine", started_at)
        self._next_heartbeat: float | None = None
        self._linked = False
        self._init_metrics()
        if self.server is not None:
            self._linked = self.server.reachable
            if self._linked:
                self._register(now)
            else:
                self._next_heartbeat = now + self.spec.heartbeat_seconds

    def _register(self, now: float) -> None:
        if self.server is not None:
            for instance_id in self.instance_ids:
                self.server.register(instance_id, self.spec.model_path, self.spec.layout, self.spec.l0_blocks, now)

    def restart(self, now: float, spec: EngineSpec | None = None) -> None:
        """A new process. The old one's registration stays at the server until it is reaped."""
        if spec is not None:
            self.spec = spec
        self.down = False
        self.running = self.waiting = self.blocks_in_use = 0
        self._boot(now, now)

    def kill(self) -> None:
        """Gone without a word; heartbeats stop."""
        self.down = True

    def advance(self, now: float) -> None:
        """Send the heartbeats due up to `now`; a server that came back is registered with again."""
        server, due = self.server, self._next_heartbeat
        if self.down or server is None or due is None or due > now:
            return
        beat = self.spec.heartbeat_seconds
        calm = self._linked and server.reachable and not any(end > due for _, end in server.outages)
        if calm:
            due += beat * int((now - due) // beat)
        while due <= now:
            if not server.was_up(due):
                self._linked = False
            elif self._linked:
                for instance_id in self.instance_ids:
                    server.ping(instance_id, due)
            else:
                self._register(due)
                self._linked = True
            due += beat
        self._next_heartbeat = due

    # --- requests -------------------------------------------------------------------------------------------

    def generate(self, tokens: Sequence[int], sampling: Sampling, now: float) -> Generation:
        """Answer one prompt of at least one token. Raises `EngineHangs`."""
        self.metrics.now = now
        self._answered_since_reset()
        result = Generation(prompt=tokens)
        block_size = self.spec.layout.block_size
        hashes = block_hashes(tokens, block_size, sampling.salt)
        blocks: list[Block] = []
        if not sampling.skip_caches:
            blocks = self.l0.match(hashes[: (len(tokens) - 1) // block_size], now)
        result.local = len(blocks) * block_size
        known = len(blocks)
        lookup, waited = self._ask_server(tokens, sampling, now)
        from_l1, from_l2 = self._take(lookup, blocks, result, sampling, now)
        result.computed = len(tokens) - result.local - result.external
        position = len(blocks) * block_size
        while position < len(tokens):
            part = tokens[position : position + block_size]
            state = self.model.state(blocks, self.spec.layout)
            blocks.append(self.model.compute(part, position, state, self.spec.layout))
            position += len(part)
        for index in range(known, len(tokens) // block_size):
            self._keep(hashes[index], blocks[index], now)
        self._store(lookup, tokens, blocks, sampling.salt, now)
        result.prefill_seconds = waited + self.latency.prefill(result.computed, from_l1, from_l2)
        if sampling.prompt_logprobs is not None:
            result.prompt_logprobs = self._score_prompt(tokens, blocks, sampling.prompt_logprobs)
        self._decode(result, blocks, sampling, now)
        if self.faults.answers_from:
            self._answer_from(self.faults.answers_from, result, sampling, now)
        if self.faults.constant_logprobs:
            result.steps = [Step(s.token, 0.0, tuple((t, 0.0) for t, _ in s.top)) for s in result.steps]
        if self.faults.constant_answers:
            constant_steps(result, self.faults.constant_answers, sampling.max_tokens, self._rng)
        result.decode_seconds = self.latency.decode_per_token * max(0, len(result.steps) - 1)
        self._count(result, sampling)
        return result

    def _ask_server(self, tokens: Sequence[int], sampling: Sampling, now: float) -> tuple[Lookup | None, float]:
        """The server's lookup (None where there is none to ask) and the seconds lost on a server that is gone."""
        server = self.server
        if server is None or sampling.skip_caches:
            return None, 0.0
        if self._next_heartbeat is None:
            self._next_heartbeat = now
            self.advance(now)
        if not self._linked:
            return None, 0.0
        if not server.reachable:
            self._linked = False
            return None, self.latency.server_gone
        lookup = server.lookup(self.spec.model_path, self.spec.layout, tokens, sampling.salt, now)
        self.metrics.observe("vllm:lmcache_mp_lookup_duration_seconds", 0.004, **self._labels)
        if lookup.early_exit == "no_gpu_context" and server.spec.transfer_mode == "engine_driven":
            raise EngineHangs
        return lookup, 0.0

    def _take(
        self, lookup: Lookup | None, blocks: list[Block], result: Generation, sampling: Sampling, now: float
    ) -> tuple[int, int]:
        """Append the blocks that the server supplies; tokens taken from (L1, L2)."""
        if lookup is None or self.server is None:
            return 0, 0
        layout = self.spec.layout
        chunk = self.server.spec.chunk_size
        result.lmcache_cached = lookup.hit * chunk
        result.lmcache_extra = max(0, result.lmcache_cached - result.local)
        if not result.lmcache_extra:
            return 0, 0
        first = result.local // chunk
        for index in range(first, lookup.hit):
            loaded = split_chunk(lookup.data[index], chunk, layout)
            blocks += loaded[len(blocks) - index * (chunk // layout.block_size) :]
        whole = result.lmcache_cached == len(result.prompt)
        result.external = result.lmcache_extra - (1 if whole else 0)
        objects = (lookup.hit - first) * layout.object_groups
        self.server.retrieved(self.instance_ids, self.spec.model_path, sampling.salt, objects)
        from_l2 = sum(chunk for index in range(first, lookup.hit) if lookup.from_l2[index])
        return max(0, result.lmcache_extra - from_l2), from_l2

    def _store(self, lookup: Lookup | None, tokens: Sequence[int], blocks: list[Block], salt: str, now: float) -> None:
        """Hand the prompt's chunks that the server missed to it, wherever their KV came from."""
        if lookup is None or lookup.early_exit or self.server is None:
            return
        per_chunk = self.server.spec.chunk_size // self.spec.layout.block_size
        chunks = [
            (lookup.hashes[i], join_blocks(blocks[i * per_chunk : (i + 1) * per_chunk]))
            for i in range(lookup.hit, len(tokens) // self.server.spec.chunk_size)
        ]
        if chunks:
            self.server.store(self.instance_ids, self.spec.model_path, self.spec.layout, chunks, salt, now)

    def _keep(self, key: bytes, block: Block, now: float) -> None:
        for gone in self.l0.put(key, block, now):
            if self.server is not None:
                self.server.counters.left_l0(self.instance_ids[0], self.spec.model_path, gone)

    def _decode(self, result: Generation, blocks: list[Block], sampling: Sampling, now: float) -> None:
        layout, size = self.spec.layout, self.spec.layout.block_size
        tokens = list(result.prompt)
        full = blocks[: len(tokens) // size]
        state = self.model.state(full, layout)
        tail = blocks[len(full) :]
        rng = random.Random(sampling.seed if sampling.seed is not None else self._rng.getrandbits(32))  # noqa: S311
        for _ in range(sampling.max_tokens):
            logprobs = log_softmax(self.model.logits([*full, *tail], tokens[-1], layout))
            token = pick(logprobs, sampling.temperature, rng)
            result.steps.append(Step(token, logprobs[token], best(logprobs, token, sampling.top_logprobs)))
            if token == tokenizer.EOS and not sampling.ignore_eos and len(result.steps) >= sampling.min_tokens:
                result.finish_reason = "stop"
                return
            tokens.append(token)
            start = len(full) * size
            tail = [self.model.compute(tokens[start:], start, state, layout)]
            if len(tokens) % size == 0:
                full.append(tail.pop())
                self._keep(block_hashes(tokens, size, sampling.salt)[-1], full[-1], now)
                state = self.model.state(full, layout)

    def _answer_from(self, part: str, result: Generation, sampling: Sampling, now: float) -> None:
        """Answer anew from a part of the prompt alone (the fault `answers_from`)."""
        tokens, size = list(result.prompt), self.spec.layout.block_size
        if part == "length":
            seen = [10 + len(tokens) % 400] * 2
        else:
            seen = [*tokens[:size], *tokens[-size:]] if part == "ends" else tokens[-size:]
        own = Generation(prompt=seen)
        blocks: list[Block] = []
        for start in range(0, len(seen), size):
            state = self.model.state(blocks, self.spec.layout)
            blocks.append(self.model.compute(seen[start : start + size], start, state, self.spec.layout))
        self._decode(own, blocks, replace(sampling, salt=f"{sampling.salt} {part}"), now)
        result.steps, result.finish_reason = own.steps, own.finish_reason

    def _score_prompt(
        self, tokens: Sequence[int], blocks: list[Block], count: int
    ) -> list[list[tuple[int, float, int]]]:
        layout, size = self.spec.layout, self.spec.layout.block_size
        rows = []
        for index in range(1, len(tokens)):
            start = index // size * size
            seen = blocks[: index // size]
            if start < index:
                state = self.model.state(seen, layout)
                seen = [*seen, self.model.compute(tokens[start:index], start, state, layout)]
            logprobs = log_softmax(self.model.logits(seen, tokens[index - 1], layout))
            order = sorted(range(len(logprobs)), key=lambda i, p=logprobs: (-p[i], i))  # type: ignore[misc]
            shown = dict.fromkeys([tokens[index], *order[:count]])
            rows.append([(token, logprobs[token], order.index(token) + 1) for token in shown])
        return rows

    # --- operator's calls -----------------------------------------------------------------------------------

    def reset_prefix_cache(self, *, external: bool, now: float) -> bool:
        """Empty L0 (and with `external` the server's L1). False while requests hold blocks."""
        if self.faults.reset_lies:
            return True
        if self.running or self.faults.reset_refuses:
            return False
        if self.faults.reset_lasts is not None:
            self._put_back = (self.faults.reset_lasts + 1, self.l0)
            self.l0 = PrefixCache(self.spec.l0_blocks)
        self.l0.clear()
        if external and self.server is not None and self.server.down_since is None:
            self.server.clear(now)
        return True

    def _answered_since_reset(self) -> None:
        """With `reset_lasts`, a later request meets the old cache again: the reset went to another replica than it."""
        left, old = self._put_back
        if old is not None:
            self._put_back = (left - 1, old if left > 1 else None)
            if left == 1:
                self.l0 = old

    # --- counting -------------------------------------------------------------------------------------------

    @property
    def _labels(self) -> dict[str, str]:
        return {"engine": "0", "model_name": self.spec.served_model_name}

    def _init_metrics(self) -> None:
        for family in families("engine"):
            if not family.name.startswith("vllm:") or family.name == "vllm:cache_config_info":
                continue
            if self.server is None and family.name in _ONLY_WITH_CONNECTOR:
                continue
            labels = self._labels
            if family.name == "vllm:admission_rejections_total":
                del labels["engine"]
            for value in family.values or ("",):
                self.metrics.touch(family.name, **labels, **({family.label: value} if family.label else {}))

    def _count(self, result: Generation, sampling: Sampling) -> None:
        inc, labels = self.metrics.inc, self._labels
        prompt, generated = len(result.prompt), len(result.steps)
        if not sampling.skip_caches:
            inc("vllm:prefix_cache_queries_total", prompt, **labels)
            inc("vllm:prefix_cache_hits_total", result.local, **labels)
        if self.server is not None:
            inc("vllm:external_prefix_cache_queries_total", prompt - result.local, **labels)
            inc("vllm:external_prefix_cache_hits_total", result.external, **labels)
        inc("vllm:prompt_tokens_total", prompt, **labels)
        inc("vllm:prompt_tokens_cached_total", result.cached, **labels)
        for source, value in (
            ("local_compute", result.computed),
            ("local_cache_hit", result.local),
            ("external_kv_transfer", result.external),
        ):
            inc("vllm:prompt_tokens_by_source_total", value, source=source, **labels)
        for source, value in (("device", result.local), ("external_unspecified", result.external)):
            inc("vllm:prompt_tokens_cached_by_source_total", value, source=source, **labels)
        inc("vllm:generation_tokens_total", generated, **labels)
        inc("vllm:request_success_total", finished_reason=result.finish_reason, **labels)
        self._observe(result, sampling, prompt, generated)

    def _observe(self, result: Generation, sampling: Sampling, prompt: int, generated: int) -> None:
        between = result.decode_seconds / max(1, generated - 1)
        seconds = result.prefill_seconds + result.decode_seconds
        for name, value in (
            ("request_prompt_tokens", prompt),
            ("request_generation_tokens", generated),
            ("request_max_num_generation_tokens", generated),
            ("request_params_n", 1),
            ("request_params_max_tokens", sampling.max_tokens),
            ("request_num_preemptions", 0),
            ("request_prefill_kv_computed_tokens", result.computed),
            ("iteration_tokens_total", result.computed + 1),
            ("time_to_first_token_seconds", result.prefill_seconds),
            ("request_time_per_output_token_seconds", between),
            ("e2e_request_latency_seconds", seconds),
            ("request_queue_time_seconds", 0.0),
            ("request_inference_time_seconds", seconds),
            ("request_prefill_time_seconds", result.prefill_seconds),
            ("request_decode_time_seconds", result.decode_seconds),
        ):
            self.metrics.observe(f"vllm:{name}", value, **self._labels)
        if generated > 1:
            self.metrics.observe("vllm:iteration_tokens_total", 1, generated - 1, **self._labels)
            self.metrics.observe("vllm:inter_token_latency_seconds", between, generated - 1, **self._labels)
