"""Secrets at rest: what a copy of the database tells, and what happens when the key is gone."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.alerts.tables import Notifier
from app.commands.backup import backup
from app.errors import InvalidInput
from app.fleet.schemas import EngineCreate, ServerCreate
from app.settings import load_settings
from app.vault import KEY_FILE, Vault
from tests.support.panel import Panel, running_panel

KEY = bytes(range(32))
SECRETS = ("sk-first-0123456789", "sk-second-0123456789", "header-secret-0123456789", "hook-secret-0123456789")


@given(st.text())
def test_what_is_sealed_opens_again_and_shows_nothing(text: str) -> None:
    vault = Vault(KEY)
    sealed = vault.seal(text)
    assert vault.open(sealed) == text
    assert sealed.isascii()
    assert sealed != vault.seal(text), "a nonce is never used twice"
    if len(text) > 3:
        assert text not in sealed


@given(st.text(min_size=1), st.integers(0, 10_000), st.integers(1, 255))
def test_a_changed_byte_or_another_key_opens_nothing(text: str, place: int, change: int) -> None:
    import base64

    sealed = Vault(KEY).seal(text)
    with pytest.raises(ValueError, match="sealed under another key"):
        Vault(bytes(32)).open(sealed)
    raw = bytearray(base64.b64decode(sealed.partition(":")[2]))
    raw[place % len(raw)] ^= change
    with pytest.raises(ValueError, match="damaged"):
        Vault(KEY).open(sealed.partition(":")[0] + ":" + base64.b64encode(bytes(raw)).decode())


def fill(panel: Panel) -> None:
    services = panel.services
    services.fleet.create_server(
        ServerCreate(url="http://127.0.0.1:9", name="lmc", api_key=SECRETS[0], headers={"X-Key": SECRETS[2]}), actor="t"
    )
    services.fleet.create_engine(EngineCreate(url="http://127.0.0.1:8", name="gpu", api_key=SECRETS[1]), actor="t")
    admin = panel.client()
    hook = {"name": "h", "server": {"webhook": "http://127.0.0.1:7/x", "headers": {"X-Key": SECRETS[3]}}}
    assert admin.post("/api/v1/hooks", json=hook).status_code == 201
    note = {"name": "n", "kind": "webhook", "url": f"http://127.0.0.1:7/{SECRETS[3]}"}
    assert admin.post("/api/v1/notifiers", json=note).status_code == 201


def test_neither_the_database_nor_a_backup_nor_the_api_tells_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "var"
    with running_panel(data, POLL_SECONDS="3600") as panel:
        fill(panel)
        assert [t.api_key for t in panel.services.fleet.server_targets()] == [SECRETS[0]]
        assert panel.services.fleet.server_targets()[0].headers == {"X-Key": SECRETS[2]}
        monkeypatch.setenv("TIERKEEPER_DATA_DIR", str(data))
        backup(tmp_path / "copy.db")
        client = panel.client()
        told = "".join(
            client.get(f"/api/v1/{family}").text for family in ("servers", "engines", "hooks", "notifiers", "audit")
        )
    assert (data / KEY_FILE).stat().st_mode & 0o777 == 0o600
    kept = (tmp_path / "copy.db").read_bytes() + told.encode()
    kept += b"".join(path.read_bytes() for path in data.glob("tierkeeper.db*"))
    assert [secret for secret in SECRETS if secret.encode() in kept] == []


def test_without_the_key_everything_but_the_secrets_is_there(tmp_path: Path) -> None:
    data = tmp_path / "var"
    with running_panel(data, POLL_SECONDS="3600") as panel:
        fill(panel)
    (data / KEY_FILE).unlink()
    with running_panel(data, POLL_SECONDS="3600") as panel:
        assert [(t.name, t.api_key, dict(t.headers)) for t in panel.services.fleet.server_targets()] == [
            ("lmc", "", {})
        ]
        with panel.services.db.read() as session:
            assert [row.url for row in session.query(Notifier)] == [""]


def test_rows_from_before_are_read_and_sealed_when_written(tmp_path: Path) -> None:
    data = tmp_path / "var"
    with running_panel(data, POLL_SECONDS="3600") as panel:
        fill(panel)
        with sqlite3.connect(data / "tierkeeper.db") as raw:
            raw.execute("update server set api_key = 'in-the-clear'")
        raw.close()
        assert panel.services.fleet.server_targets()[0].api_key == "in-the-clear"


def test_a_damaged_key_file_is_told_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / KEY_FILE).write_bytes(b"short")
    with pytest.raises(InvalidInput, match=r"secret\.key is damaged .5 bytes"):
        Vault.of(tmp_path)


class TestFiles:
    def test_a_key_by_reference_is_read_when_it_is_used(self, tmp_path: Path) -> None:
        secrets = tmp_path / "secrets"
        secrets.mkdir()
        (secrets / "lmc").write_text("sk-one\n")
        with running_panel(tmp_path / "var", POLL_SECONDS="3600", SECRETS_DIR=str(secrets)) as panel:
            fleet = panel.services.fleet
            body = ServerCreate(
                url="http://127.0.0.1:9", api_key=f"file:{secrets}/lmc", headers={"X-Gone": f"file:{secrets}/gone"}
            )
            fleet.create_server(body, actor="t")
            assert fleet.server_targets()[0].api_key == "sk-one"
            (secrets / "lmc").write_text("sk-two\n")
            assert fleet.server_targets()[0].api_key == "sk-two"
            assert fleet.server_targets()[0].headers == {}

    @pytest.mark.parametrize("name", ["../outside", "link"])
    def test_nothing_outside_of_the_directory_is_read(self, tmp_path: Path, name: str) -> None:
        secrets = tmp_path / "secrets"
        secrets.mkdir()
        (tmp_path / "outside").write_text("root:x:0:0")
        (secrets / "link").symlink_to(tmp_path / "outside")
        with running_panel(tmp_path / "var", POLL_SECONDS="3600", SECRETS_DIR=str(secrets)) as panel:
            fleet = panel.services.fleet
            fleet.create_server(ServerCreate(url="http://127.0.0.1:9", api_key=f"file:{secrets}/{name}"), actor="t")
            assert fleet.server_targets()[0].api_key is None

    def test_settings_take_them_too(self, tmp_path: Path) -> None:
        (tmp_path / "password").write_text("from a file\n")
        settings = load_settings({"TIERKEEPER_ADMIN_PASSWORD": f"file:{tmp_path}/password"})
        assert settings.admin_password is not None
        assert settings.admin_password.get_secret_value() == "from a file"
        with pytest.raises(InvalidInput, match="cannot be read"):
            load_settings({"TIERKEEPER_METRICS_TOKEN": f"file:{tmp_path}/nothing"})
