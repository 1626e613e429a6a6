from __future__ import annotations

from pathlib import Path

import pytest

from app.errors import InvalidInput
from app.settings import load_settings


def test_defaults_are_the_contracts() -> None:
    settings = load_settings({})
    assert (settings.host, settings.port, settings.poll_seconds) == ("127.0.0.1", 8090, 10.0)
    assert settings.data_dir == Path("var")
    assert settings.sqlalchemy_url.endswith("/var/tierkeeper.db")


def test_an_unknown_name_names_the_nearest() -> None:
    with pytest.raises(InvalidInput) as caught:
        load_settings({"TIERKEEPER_POL_SECONDS": "5"})
    assert "TIERKEEPER_POLL_SECONDS" in caught.value.detail
    assert caught.value.errors[0].field == "TIERKEEPER_POL_SECONDS"


def test_an_unknown_name_in_dotenv_is_refused_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".env").write_text("# a comment\nTIERKEEPER_DATADIR=/srv\nOTHER=1\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match="TIERKEEPER_DATADIR is not a setting; the nearest is TIERKEEPER_DATA_DIR"):
        load_settings({})


def test_dotenv_is_read_and_the_environment_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".env").write_text("TIERKEEPER_PORT=9001\nTIERKEEPER_POLL_SECONDS=3\n")
    monkeypatch.chdir(tmp_path)
    settings = load_settings({"TIERKEEPER_PORT": "9002"})
    assert (settings.port, settings.poll_seconds) == (9002, 3.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TIERKEEPER_POLL_SECONDS", "0.5"),
        ("TIERKEEPER_POLL_SECONDS", "soon"),
        ("TIERKEEPER_PORT", "70000"),
        ("TIERKEEPER_LOG_LEVEL", "LOUD"),
        ("TIERKEEPER_ROOT_PATH", "panel/"),
    ],
)
def test_a_value_that_makes_no_sense_names_variable_and_value(name: str, value: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        load_settings({name: value})
    assert caught.value.errors[0].field == name
    assert value in caught.value.detail


def test_names_that_kubernetes_injects_are_ignored() -> None:
    injected = {
        "TIERKEEPER_SERVICE_HOST": "10.0.0.1",
        "TIERKEEPER_SERVICE_PORT": "8090",
        "TIERKEEPER_SERVICE_PORT_HTTP": "8090",
        "TIERKEEPER_PORT": "tcp://10.0.0.1:8090",
        "TIERKEEPER_PORT_8090_TCP": "tcp://10.0.0.1:8090",
        "TIERKEEPER_PORT_8090_TCP_PROTO": "tcp",
    }
    assert load_settings(injected).port == 8090


def test_the_password_never_shows_in_an_error_or_a_repr() -> None:
    settings = load_settings({"TIERKEEPER_ADMIN_PASSWORD": "hunter2-hunter2"})
    assert "hunter2" not in repr(settings)
