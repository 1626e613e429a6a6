"""Servers: saved whether they answer or not; views, paging, revisions, secrets, forgetting."""

from __future__ import annotations

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.clock import iso
from app.errors import BadToken, Conflict, InvalidInput, NotFound
from app.fleet.live import ServerLive
from app.fleet.schemas import EngineCreate, L2View, LightView, ServerCreate, ServerPatch
from app.fleet.tables import HealthChange, Server
from tests.unit.fleet.support import Bench


class TestCreate:
    def test_an_unreachable_server_is_saved_and_shown_as_unknown(self, bench: Bench) -> None:
        view = bench.fleet.create_server(ServerCreate(url="http://gpu-1:8080/"), actor="user:admin")
        assert (view.name, view.url) == ("gpu-1", "http://gpu-1:8080")
        assert view.health.state == "unknown"
        assert view.health.reason == "not polled yet"
        assert view.l1.used_bytes is None
        assert view.hit_rate.state == "unknown"
        assert view.scrape_age_seconds is None
        assert bench.fleet.get_server(int(view.id)) == view

    def test_names_default_to_the_host_then_host_and_port_then_a_number(self, bench: Bench) -> None:
        urls = ["http://gpu-1:8080", "http://gpu-1:8081", "http://gpu-1:8081/b"]
        names = [bench.fleet.create_server(ServerCreate(url=u), actor="a").name for u in urls]
        assert names == ["gpu-1", "gpu-1:8081", "gpu-1-2"]

    def test_a_number_alone_names_no_server(self, bench: Bench) -> None:
        """Several programs of one machine share its address: the port tells them apart, dead or alive."""
        urls = ["http://127.0.0.1:8080", "http://localhost:8081", "http://[::1]:8082", "http://127.0.0.1:8080/b"]
        names = [bench.fleet.create_server(ServerCreate(url=u), actor="a").name for u in urls]
        assert names == ["127.0.0.1:8080", "localhost:8081", "::1:8082", "127.0.0.1:8080-2"]

    def test_a_server_and_an_engine_of_one_host_have_different_default_names(self, bench: Bench) -> None:
        server = bench.fleet.create_server(ServerCreate(url="http://gpu-1:8080"), actor="a")
        engine = bench.fleet.create_engine(EngineCreate(url="http://gpu-1:8000"), actor="a")
        assert (server.name, engine.name) == ("gpu-1", "gpu-1:8000")

    def test_a_name_that_nothing_has_is_answered_with_those_there_are(self, bench: Bench) -> None:
        with pytest.raises(NotFound, match="no server has the name or id 'atlas'; no server is registered yet"):
            bench.fleet.find("server", "atlas")
        made = bench.fleet.create_server(ServerCreate(url="http://127.0.0.1:8080", name="One"), actor="a")
        assert bench.fleet.find("server", "one") == bench.fleet.find("server", made.id) == int(made.id)
        with pytest.raises(NotFound, match="registered are: One"):
            bench.fleet.find("server", "77")

    def test_the_api_key_goes_in_and_never_out(self, bench: Bench) -> None:
        body = ServerCreate(url="http://gpu-1:8080", api_key="s3cret", headers={"X-Tenant": "t-secret"})
        view = bench.fleet.create_server(body, actor="user:admin")
        assert view.has_api_key
        assert view.header_names == ["X-Tenant"]
        assert "s3cret" not in view.model_dump_json() + str(bench.audited())
        assert "t-secret" not in view.model_dump_json() + str(bench.audited())
        target = bench.fleet.server_target(int(view.id))
        assert (target.api_key, target.headers) == ("s3cret", {"X-Tenant": "t-secret"})
        assert "s3cret" not in repr(target)

    def test_duplicates_name_their_field(self, bench: Bench) -> None:
        bench.fleet.create_server(ServerCreate(url="http://localhost:8080", name="One"), actor="a")
        with pytest.raises(Conflict) as same_url:
            bench.fleet.create_server(ServerCreate(url="http://127.0.0.1:8080/"), actor="a")
        assert same_url.value.errors[0].field == "url"
        assert "'One'" in same_url.value.detail
        with pytest.raises(Conflict) as same_name:
            bench.fleet.create_server(ServerCreate(url="http://gpu-1:8080", name="one"), actor="a")
        assert same_name.value.errors[0].field == "name"
        assert bench.fleet.list_servers(page_size=10, page_token=None).items[0].name == "One"
        assert len(bench.audited()) == 1

    @pytest.mark.parametrize(
        ("change", "field"),
        [
            ({"url": "http://evil.example"}, "url"),
            ({"name": " \t "}, "name"),
            ({"name": "a\u202eb"}, "name"),
            ({"api_key": "two words"}, "api_key"),
            ({"headers": {"Host": "other"}}, "headers.Host"),
            ({"headers": {"X": "a\r\nY: b"}}, "headers.X"),
            ({"labels": {"1bad": "x"}}, "labels"),
            ({"labels": {"zone": "a\nb"}}, "labels.zone"),
        ],
    )
    def test_bad_input_names_the_field_and_changes_nothing(
        self, bench: Bench, change: dict[str, object], field: str
    ) -> None:
        with pytest.raises(InvalidInput) as caught:
            bench.fleet.create_server(ServerCreate.model_validate({"url": "http://gpu-1", **change}), actor="a")
        assert caught.value.errors[0].field == field
        assert bench.fleet.list_servers(page_size=10, page_token=None).items == []
        assert bench.audited() == []

    def test_hooks_hear_of_it_after_the_commit(self, bench: Bench) -> None:
        heard: list[tuple[str, str]] = []
        bench.fleet.on_change(lambda kind, ident: heard.append((kind, bench.fleet.get_server(ident).name)))
        bench.fleet.create_server(ServerCreate(url="http://gpu-1:8080"), actor="a")
        assert heard == [("server", "gpu-1")]


class TestPatch:
    def test_changes_only_what_is_sent(self, bench: Bench) -> None:
        made = bench.fleet.create_server(ServerCreate(url="http://gpu-1:8080", api_key="k", name="A"), actor="a")
        view = bench.fleet.patch_server(int(made.id), ServerPatch(labels={"zone": "b"}), actor="a")
        assert (view.name, view.labels, view.has_api_key, view.revision) == ("A", {"zone": "b"}, True, 2)
        cleared = bench.fleet.patch_server(int(made.id), ServerPatch.model_validate({"api_key": None}), actor="a")
        assert not cleared.has_api_key
        with pytest.raises(InvalidInput, match="cannot be null"):
            bench.fleet.patch_server(int(made.id), ServerPatch.model_validate({"name": None}), actor="a")

    def test_if_match_refuses_what_somebody_else_changed(self, bench: Bench) -> None:
        made = bench.fleet.create_server(ServerCreate(url="http://gpu-1:8080"), actor="a")
        bench.fleet.patch_server(int(made.id), ServerPatch(name="B"), actor="a", if_match='"1"')
        with pytest.raises(Conflict, match="revision 2"):
            bench.fleet.patch_server(int(made.id), ServerPatch(name="C"), actor="a", if_match='"1"')
        assert bench.fleet.patch_server(int(made.id), ServerPatch(name="D"), actor="a", if_match="*").name == "D"

    def test_a_new_address_makes_the_state_unknown(self, bench: Bench) -> None:
        made = bench.fleet.create_server(ServerCreate(url="http://gpu-1:8080"), actor="a")
        moved: list[int] = []
        bench.fleet.on_moved(lambda session, kind, ident: moved.append(ident))
        with bench.db.write() as session:
            row = session.get_one(Server, int(made.id))
            row.health_state, row.health_reason, row.candidate_state = "healthy", "fine", "degraded"
        bench.clock.now += 50
        view = bench.fleet.patch_server(int(made.id), ServerPatch(url="http://gpu-1:9090"), actor="user:root")
        assert (view.health.state, view.url) == ("unknown", "http://gpu-1:9090")
        assert moved == [int(made.id)]
        with bench.db.read() as session:
            change = session.scalars(select(HealthChange)).one()
            assert (change.old_state, change.new_state, change.by) == ("healthy", "unknown", "user:root")
            assert session.get_one(Server, int(made.id)).candidate_state is None

    def test_taken_names_and_addresses(self, bench: Bench) -> None:
        bench.fleet.create_server(ServerCreate(url="http://gpu-1:8080", name="A"), actor="a")
        other = bench.fleet.create_server(ServerCreate(url="http://gpu-1:8081", name="B"), actor="a")
        with pytest.raises(Conflict):
            bench.fleet.patch_server(int(other.id), ServerPatch(name="a"), actor="a")
        with pytest.raises(Conflict):
            bench.fleet.patch_server(int(other.id), ServerPatch(url="http://gpu-1:8080/"), actor="a")
        assert bench.fleet.get_server(int(other.id)).name == "B"


class TestForget:
    def test_engines_stay_without_a_server_and_the_id_is_never_used_again(self, bench: Bench) -> None:
        server = bench.fleet.create_server(ServerCreate(url="http://gpu-1:8080"), actor="a")
        engine = bench.fleet.create_engine(EngineCreate(url="http://gpu-1:8000", server_id=server.id), actor="a")
        assert bench.fleet.get_server(int(server.id)).engine_ids == [engine.id]
        bench.fleet.delete_server(int(server.id), actor="a")
        with pytest.raises(NotFound):
            bench.fleet.get_server(int(server.id))
        left = bench.fleet.get_engine(int(engine.id))
        assert (left.server_id, left.server_link) == (None, "none")
        again = bench.fleet.create_server(ServerCreate(url="http://gpu-1:8080"), actor="a")
        assert again.id != server.id

    def test_a_hook_can_refuse(self, bench: Bench) -> None:
        server = bench.fleet.create_server(ServerCreate(url="http://gpu-1:8080"), actor="a")

        def refuse(session: Session, kind: str, ident: int) -> None:
            raise Conflict("an acceptance run is active on it")

        bench.fleet.on_forget(refuse)
        with pytest.raises(Conflict, match="acceptance"):
            bench.fleet.delete_server(int(server.id), actor="a")
        assert bench.fleet.get_server(int(server.id)).id == server.id


class TestViews:
    def test_join_the_last_reading_with_its_age(self, bench: Bench) -> None:
        made = bench.fleet.create_server(ServerCreate(url="http://gpu-1:8080"), actor="a")
        bench.fleet.mark_data_path(int(made.id), bench.clock.now - 100, right=True, by="acceptance run 1")
        bench.fleet.mark_data_path(int(made.id), bench.clock.now - 200, right=True, by="acceptance run 2")
        l2 = L2View(
            adapter="fs", base_path="/srv/kv", usage_bytes=None, max_capacity_bytes=None, evicts=False, store_id=None
        )
        bench.live.servers[int(made.id)] = ServerLive(
            polled_at=bench.clock.now - 1, scraped_at=bench.clock.now - 12.5, http_up=True, version="0.5.6", l2=(l2,)
        )
        view = bench.fleet.get_server(int(made.id))
        assert view.scrape_age_seconds == 12.5
        assert view.version == "0.5.6"
        assert view.health.http_up is True
        assert view.health.data_path_proven_at == "2026-11-30T00:51:40.000Z"
        assert view.l2[0].store_id is None

    def test_four_lights_each_with_its_reason_and_since(self, bench: Bench) -> None:
        ident = int(bench.fleet.create_server(ServerCreate(url="http://gpu-1:8080"), actor="a").id)
        lights = bench.fleet.get_server(ident).health.lights
        assert [(light.name, light.value) for light in lights] == [
            ("http_up", None),
            ("engine_up", None),
            ("engines_registered", None),
            ("data_path", None),
        ]
        assert [light.reason for light in lights[:3]] == ["not polled yet"] * 3
        seen = LightView(
            name="http_up", value=True, reason="the server answers over HTTP", since="2026-11-30T00:00:00Z"
        )
        bench.live.servers[ident] = ServerLive(http_up=True, lights=(seen,))
        assert bench.fleet.get_server(ident).health.lights[0] == seen

    def test_the_data_path_is_what_the_last_test_of_it_found(self, bench: Bench) -> None:
        ident = int(bench.fleet.create_server(ServerCreate(url="http://gpu-1:8080"), actor="a").id)

        def light() -> tuple[bool | None, str, str | None]:
            found = bench.fleet.get_server(ident).health.lights[3]
            return found.value, found.reason, found.since

        assert light() == (None, "no acceptance run and no canary has read records back yet", None)
        now = bench.clock.now
        bench.fleet.mark_data_path(ident, now - 300, right=True, by="acceptance run 7")
        assert light() == (True, "acceptance run 7 read records back right", iso(now - 300))
        bench.fleet.mark_data_path(ident, now - 100, right=False, by="canary run 2")
        assert light() == (False, "canary run 2 read back something else than the engine computes", iso(now - 100))
        assert bench.fleet.get_server(ident).health.data_path_proven_at == iso(now - 300)
        # one that ends later, but of an older time, changes nothing
        bench.fleet.mark_data_path(ident, now - 200, right=True, by="acceptance run 8")
        assert light()[0] is False
        bench.fleet.mark_data_path(ident, now, right=True, by="acceptance run 9")
        assert light() == (True, "acceptance run 9 read records back right", iso(now))

    def test_pages_by_name_with_filters(self, bench: Bench) -> None:
        for n in range(5):
            bench.fleet.create_server(ServerCreate(url=f"http://gpu-{n}:8080", name=f"n{n}_%"), actor="a")
        first = bench.fleet.list_servers(page_size=2, page_token=None)
        second = bench.fleet.list_servers(page_size=2, page_token=first.next_page_token)
        third = bench.fleet.list_servers(page_size=2, page_token=second.next_page_token)
        assert [s.name for p in (first, second, third) for s in p.items] == [f"n{n}_%" for n in range(5)]
        assert third.next_page_token is None
        assert [s.name for s in bench.fleet.list_servers(page_size=9, page_token=None, q="3_%").items] == ["n3_%"]
        assert bench.fleet.list_servers(page_size=9, page_token=None, q="%%").items == []
        assert bench.fleet.list_servers(page_size=9, page_token=None, health="healthy").items == []
        with pytest.raises(BadToken):
            bench.fleet.list_servers(page_size=2, page_token=first.next_page_token, q="n")

    def test_found_by_name_or_id(self, bench: Bench) -> None:
        made = bench.fleet.create_server(ServerCreate(url="http://gpu-1:8080", name="front"), actor="a")
        assert bench.fleet.find("server", "front") == bench.fleet.find("server", made.id) == int(made.id)
        for missing in ("back", "99", "-1", "../etc"):
            with pytest.raises(NotFound):
                bench.fleet.find("server", missing)


def test_labels_group_servers_and_filter_their_list(bench: Bench) -> None:
    for number, labels in enumerate([{"zone": "b", "rack.kubernetes.io/row": "7"}, {"zone": "b"}, {"zone": "bb"}, {}]):
        bench.fleet.create_server(
            ServerCreate(url=f"http://10.0.0.{number}:8080", name=f"s{number}", labels=labels), actor="a"
        )
    assert bench.fleet.labels("server") == [("rack.kubernetes.io/row=7", 1), ("zone=b", 2), ("zone=bb", 1)]

    def named(label: str) -> list[str]:
        return [s.name for s in bench.fleet.list_servers(page_size=10, page_token=None, label=label).items]

    assert named("zone=b") == ["s0", "s1"]
    assert named("rack.kubernetes.io/row=7") == ["s0"]
    assert named("zone=c") == []
    first = bench.fleet.list_servers(page_size=1, page_token=None, label="zone=b")
    assert first.next_page_token is not None
    with pytest.raises(BadToken):
        bench.fleet.list_servers(page_size=1, page_token=first.next_page_token, label="zone=bb")
    with pytest.raises(InvalidInput, match="KEY=VALUE"):
        bench.fleet.list_servers(page_size=1, page_token=None, label="zone")
