"""Engines: links given and guessed, entered facts, forgetting."""

from __future__ import annotations

import pytest

from app.errors import Conflict, InvalidInput
from app.fleet.engines import guess_server
from app.fleet.live import EngineLive
from app.fleet.schemas import EngineCreate, EnginePatch, EnteredFacts, ServerCreate
from tests.unit.fleet.support import Bench


class TestGuess:
    @pytest.mark.parametrize(
        ("models", "servers", "current", "expected"),
        [
            ({"/m"}, {1: {"/m"}, 2: {"/n"}}, None, 1),
            ({"/m", "m"}, {1: {"m"}}, None, 1),
            ({"/m"}, {1: {"/m"}, 2: {"/m"}}, None, None),
            ({"/m"}, {1: {"/m"}, 2: {"/m"}}, 1, None),
            ({"/m"}, {1: set(), 2: set()}, 1, 1),
            ({"/m"}, {}, None, None),
            ({"/m"}, {2: {"/m"}}, 1, 2),
        ],
    )
    def test_only_when_exactly_one_server_registers_the_model(
        self, models: set[str], servers: dict[int, set[str]], current: int | None, expected: int | None
    ) -> None:
        assert guess_server(models, servers, current) == expected


class TestEngines:
    def test_created_with_and_without_a_server(self, bench: Bench) -> None:
        server = bench.fleet.create_server(ServerCreate(url="http://gpu-1:8080"), actor="a")
        given = bench.fleet.create_engine(EngineCreate(url="http://gpu-1:8000", server_id=server.id), actor="a")
        free = bench.fleet.create_engine(EngineCreate(url="http://gpu-1:8001"), actor="a")
        assert (given.server_id, given.server_link, given.name) == (server.id, "given", "gpu-1:8000")
        assert (free.server_id, free.server_link, free.name) == (None, "none", "gpu-1:8001")
        assert (free.health.state, free.running, free.reset_available) == ("unknown", None, None)
        assert [e.id for e in bench.fleet.engine_targets(int(server.id))] == [int(given.id)]
        page = bench.fleet.list_engines(page_size=9, page_token=None, server_id=int(server.id))
        assert [e.id for e in page.items] == [given.id]

    @pytest.mark.parametrize("server_id", ["99", "abc", "", "-1"])
    def test_a_server_that_does_not_exist(self, bench: Bench, server_id: str) -> None:
        with pytest.raises(InvalidInput) as caught:
            bench.fleet.create_engine(EngineCreate(url="http://gpu-1:8000", server_id=server_id), actor="a")
        assert caught.value.errors[0].field == "server_id"

    def test_duplicates(self, bench: Bench) -> None:
        bench.fleet.create_engine(EngineCreate(url="http://gpu-1:8000"), actor="a")
        with pytest.raises(Conflict, match="already registered as the engine"):
            bench.fleet.create_engine(EngineCreate(url="http://gpu-1:8000/"), actor="a")

    def test_a_link_given_by_hand_and_given_back(self, bench: Bench) -> None:
        server = bench.fleet.create_server(ServerCreate(url="http://gpu-1:8080"), actor="a")
        engine = bench.fleet.create_engine(EngineCreate(url="http://gpu-1:8000"), actor="a")
        ident = int(engine.id)
        assert bench.fleet.relink_engines({ident: ["/m"]}, {int(server.id): ["/m"]}) == 1
        assert bench.fleet.get_engine(ident).server_link == "guessed"
        assert bench.fleet.relink_engines({ident: ["/m"]}, {int(server.id): ["/m"]}) == 0
        view = bench.fleet.patch_engine(ident, EnginePatch(server_id=server.id), actor="a")
        assert view.server_link == "given"
        assert bench.fleet.relink_engines({ident: ["/n"]}, {int(server.id): ["/m"]}) == 0
        view = bench.fleet.patch_engine(ident, EnginePatch.model_validate({"server_id": None}), actor="a")
        assert (view.server_id, view.server_link) == (None, "none")

    def test_entered_facts_are_of_the_process_that_runs(self, bench: Bench) -> None:
        engine = bench.fleet.create_engine(EngineCreate(url="http://gpu-1:8000"), actor="a")
        ident = int(engine.id)
        facts = EnginePatch(entered_facts=EnteredFacts(dtype="float16", kv_cache_dtype="auto"))
        with pytest.raises(InvalidInput, match="does not know when it started"):
            bench.fleet.patch_engine(ident, facts, actor="a")
        bench.live.engines[ident] = EngineLive(process_start=100.0)
        view = bench.fleet.patch_engine(ident, facts, actor="a")
        assert view.entered_facts == {"dtype": "float16", "kv_cache_dtype": "auto"}
        assert view.entered_facts_valid is True
        assert bench.fleet.engine_target(ident).entered_for == 100.0
        bench.live.engines[ident] = EngineLive(process_start=200.0)
        assert bench.fleet.get_engine(ident).entered_facts_valid is False
        bench.live.engines[ident] = EngineLive(process_start=None)
        assert bench.fleet.get_engine(ident).entered_facts_valid is None
