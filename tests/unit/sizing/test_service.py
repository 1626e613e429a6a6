"""The service and the command over real HTTP (the sandbox), and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from app.commands.size import SizeOptions, size_command
from app.errors import InvalidInput, TargetError
from app.lmcache.kv_layout import KVLayout, ObjectGroup
from app.sandbox import SandboxThread
from app.sizing import advice
from app.sizing.measured import Measured
from app.sizing.schemas import ModelInput, ModelView, PrefixInput, SizingInput, TierView
from app.sizing.service import SizingService, layout_view, model_view
from tests.unit.fleet.support import Bench
from tests.unit.sizing.test_kv_bytes import GEMMA3_27B, QWEN3_NEXT, QWEN25_7B

GIB = 2**30


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxThread]:
    with SandboxThread(tmp_path_factory.mktemp("sandbox")) as running:
        running.sandbox.prime(10)
        yield running


class World:
    def __init__(self, tmp_path: Path, sandbox: SandboxThread) -> None:
        from app.fleet.schemas import EngineCreate, ServerCreate

        self.bench = Bench(tmp_path)
        fleet = self.bench.fleet
        self.server_id = fleet.create_server(ServerCreate(url=sandbox.server_url, name="s"), actor="t").id
        self.engine_id = fleet.create_engine(
            EngineCreate(url=sandbox.engine_url, name="e", server_id=self.server_id), actor="t"
        ).id
        self.service = SizingService(clock=self.bench.clock, fleet=fleet)


@pytest.fixture
def world(tmp_path: Path, sandbox: SandboxThread) -> Iterator[World]:
    made = World(tmp_path, sandbox)
    yield made
    made.bench.db.dispose()


def size(**body: Any) -> Any:
    return SizingService(clock=lambda: 0.0).size(SizingInput.model_validate(body))


class TestSizing:
    def test_a_pasted_configuration(self) -> None:
        view = size(
            model={"config": QWEN25_7B},
            tiers={"l0_bytes": 40 * GIB, "l1_bytes": 80 * GIB, "l2_bytes": 1000 * GIB},
            working_set={"contexts": 50, "tokens": 20_000, "shared_tokens": 18_000},
            retention={"seconds": 86400.0, "tokens_per_second": 100.0},
            speed={"prefill_tokens_per_second": 8000.0, "l2_bytes_per_second": 2e9},
            chunk_size=250,
        )
        assert view.model.bytes_per_token == 57_344
        assert [tier.tier for tier in view.tiers] == ["L0", "L1", "L2"]
        assert [tier.state for tier in view.tiers] == ["overflows", "tight", "fits"]
        assert (view.chunk.given, view.chunk.given_fits) == (250, False)
        assert view.disk is not None
        assert view.disk.bytes == int(100 * 57_344 * 86400 * 1.2)
        assert [item.path for item in view.break_even] == ["L2", "10 GbE", "100 GbE"]
        assert "throughput of L1" in view.missing[0]

    def test_a_hybrid_model_names_its_block(self) -> None:
        view = size(model={"config": QWEN3_NEXT}, chunk_size=256)
        assert view.model.block_tokens == 544
        assert view.chunk.given_fits is False
        assert view.chunk.suggested % 544 == 0
        assert any("544" in note for note in view.model.notes)

    def test_a_registered_layout(self, world: World, sandbox: SandboxThread) -> None:
        body = SizingInput.model_validate(
            {
                "model": {"server_id": world.server_id},
                "engine_id": world.engine_id,
                "working_set": {"contexts": 2, "tokens": 500},
            }
        )
        view = world.service.size(body)
        layout = sandbox.sandbox.world.engines[0].spec.layout
        assert view.model.rank_bytes_per_token == layout.token_bytes
        assert view.model.block_tokens == layout.block_size
        assert [tier.tier for tier in view.tiers] == ["L0", "L1"]
        assert view.chunk.given is not None
        assert view.chunk.given_fits is True

    def test_reuse_gaps_decide_l1(self) -> None:
        body = SizingInput.model_validate({"model": {"config": QWEN25_7B}})
        model = model_view(body.model)
        gaps = ((10.0, 50.0), (100.0, 100.0), (float("inf"), 100.0))
        found = advice.view(body, model, Measured(reuse_gaps=gaps, written_bytes_per_second=1e9)).l1
        assert found is not None
        assert found.suggested_bytes == int(82e9 / (0.8 * 0.8))
        far = ((10.0, 1.0), (float("inf"), 100.0))
        beyond = advice.view(body, model, Measured(reuse_gaps=far, written_bytes_per_second=1e9)).l1
        assert beyond is not None
        assert beyond.suggested_bytes is None
        assert "L2" in beyond.why

    @pytest.mark.parametrize(
        ("model", "field"),
        [
            ({}, "model"),
            ({"config": QWEN25_7B, "bytes_per_token": 1}, "model"),
            ({"config": {}}, "model.config"),
            ({"config": QWEN25_7B, "tensor_parallel": 3}, "model.tensor_parallel"),
            ({"config": QWEN25_7B, "kv_cache_dtype": "int3"}, "model.kv_cache_dtype"),
        ],
    )
    def test_what_is_refused_names_the_field(self, model: dict[str, Any], field: str) -> None:
        with pytest.raises(InvalidInput) as caught:
            size(model=model)
        assert caught.value.errors[0].field == field

    def test_a_model_that_is_not_registered(self, world: World) -> None:
        body = SizingInput.model_validate({"model": {"server_id": world.server_id, "model_name": "/models/none"}})
        with pytest.raises(InvalidInput, match="registered:"):
            world.service.size(body)

    def test_a_server_that_does_not_answer(self, world: World) -> None:
        from app.fleet.schemas import ServerCreate

        gone = world.bench.fleet.create_server(ServerCreate(url="http://127.0.0.1:9", name="gone"), actor="t").id
        with pytest.raises(TargetError):
            world.service.size(SizingInput.model_validate({"model": {"server_id": gone}}))


class TestPrefixes:
    def test_texts_are_tokenized_by_the_engine(self, world: World) -> None:
        body = PrefixInput.model_validate(
            {
                "first": {"text": "Today is Monday. " + "The rules are as follows. " * 60},
                "second": {"text": "Today is Friday. " + "The rules are as follows. " * 60},
                "engine_id": world.engine_id,
            }
        )
        found = world.service.compare_prompts(body)
        assert found.differs_at is not None
        assert "of the cache server s" in found.chunk_size_origin
        assert found.segments[0].first_text is not None
        assert found.gain_tokens > 0

    def test_token_ids_need_no_engine(self) -> None:
        body = PrefixInput.model_validate(
            {"first": {"token_ids": [1, 2, 3]}, "second": {"token_ids": [1, 2, 4]}, "chunk_size": 1}
        )
        found = SizingService(clock=lambda: 0.0).compare_prompts(body)
        assert (found.common_tokens, found.reusable_tokens) == (2, 2)

    @pytest.mark.parametrize(
        "body",
        [
            {"first": {"text": "a"}, "second": {"text": "b"}},
            {"first": {}, "second": {"token_ids": [1]}},
            {"first": {"token_ids": [1], "text": "a"}, "second": {"token_ids": [1]}},
            {"first": {"token_ids": [-1]}, "second": {"token_ids": [1]}},
        ],
    )
    def test_what_is_refused(self, body: dict[str, Any]) -> None:
        with pytest.raises(InvalidInput):
            SizingService(clock=lambda: 0.0).compare_prompts(PrefixInput.model_validate(body))


class TestCommand:
    def test_json_and_sentences(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "config.json"
        path.write_text(json.dumps(QWEN25_7B))
        assert size_command(SizeOptions(config=str(path), as_json=True)) == 0
        assert json.loads(capsys.readouterr().out)["model"]["bytes_per_token"] == 57_344
        options = SizeOptions(
            config=str(path), l1_gib=100, contexts=50, tokens=20_000, retention_seconds=86400, prefill=8000
        )
        assert size_command(options) == 0
        printed = capsys.readouterr().out
        assert "57,344 bytes a token" in printed
        assert "100 GbE" in printed

    def test_a_server_by_its_address(self, sandbox: SandboxThread, capsys: pytest.CaptureFixture[str]) -> None:
        assert size_command(SizeOptions(server=sandbox.server_url, as_json=True)) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["model"]["source"].startswith("layout registered")
        assert found["tiers"][0]["tier"] == "L1"

    @pytest.mark.parametrize(
        "options",
        [SizeOptions(), SizeOptions(config="/gone"), SizeOptions(bytes_per_token=1, contexts=2)],
        ids=["nothing", "file", "half"],
    )
    def test_usage(self, options: SizeOptions) -> None:
        with pytest.raises(InvalidInput):
            size_command(options)


class TestLayouts:
    """A registered layout as a model: what of it is stored once, and of what a chunk must be a multiple."""

    def view(self, *groups: ObjectGroup, world_size: int = 4) -> ModelView:
        layout = KVLayout("/m", world_size, 256, "bfloat16", None, 1000, 16, groups)
        reading = SimpleNamespace(layouts=lambda: {"1": layout}, http_up=True)
        return layout_view(ModelInput(server_id="1"), reading)  # type: ignore[arg-type]

    def test_latent_layouts_are_stored_once(self) -> None:
        latent = self.view(ObjectGroup(0, 61, 64, 64, "bfloat16", True))
        assert (latent.bytes_per_token, latent.rank_bytes_per_token, latent.records_per_chunk) == (1000, 1000, 1)
        plain = self.view(ObjectGroup(0, 61, 16, 16, "bfloat16", False))
        assert (plain.bytes_per_token, plain.records_per_chunk) == (4000, 4)

    def test_groups_with_different_blocks_share_their_least_common_multiple(self) -> None:
        group = ObjectGroup(0, 1, 784, 784, "bfloat16", False)
        assert self.view(group, replace(group, index=1, tokens_per_block=32)).block_tokens == 1568


class TestL0:
    BODY: ClassVar[dict[str, Any]] = {
        "working_set": {"contexts": 2, "tokens": 100_000},
        "model": {"config": GEMMA3_27B},
    }

    def l0(self, **tiers: int) -> TierView:
        body = SizingInput.model_validate({**self.BODY, "tiers": tiers})
        return SizingService(clock=lambda: 0.0).size(body).tiers[0]

    def test_a_window_is_all_that_the_engine_keeps(self) -> None:
        full, sliding = 10 * 2 * 16 * 128 * 2, 52 * 2 * 16 * 128 * 2
        assert self.l0(l0_bytes=2**36).needed_bytes == 2 * (100_000 * full + 1024 * sliding)

    def test_the_engine_s_own_count_of_tokens_is_taken_as_it_is(self) -> None:
        assert self.l0(l0_tokens=250_000).contexts == 2
        assert self.l0(l0_tokens=199_999).state == "overflows"
