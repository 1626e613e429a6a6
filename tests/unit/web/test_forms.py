"""Forms keep what was typed, put every error beside its field, and never show a secret again."""

from __future__ import annotations

from app.errors import Conflict, FieldError, InvalidInput
from app.web.forms import FormState
from app.web.frame import one, safe_next
from app.web.kept import seal, unseal
from app.web.policy_form import body_of, form_of_preset, values_of


def test_an_error_finds_its_field_by_path_alias_or_head() -> None:
    form = FormState.of({"name": "x", "take": ["a", "b"], "headers": ""})
    errors = (
        FieldError("name", "taken"),
        FieldError("select[0].for", "missing"),
        FieldError("headers.X", "bad"),
        FieldError("elsewhere", "odd"),
    )
    failed = form.failed(InvalidInput("no", errors=errors), {"select[0].for": "take"})
    assert failed.errors_of("name") == ("taken",)
    assert failed.errors_of("take") == ("missing",)
    assert failed.errors_of("headers") == ("bad",)
    assert [e.field for e in failed.stray_errors] == ["elsewhere"]
    assert failed.has("take", "b")
    assert "Nothing was changed" in failed.summary


def test_an_error_without_fields_is_the_summary() -> None:
    failed = FormState.of({"name": "x"}).failed(Conflict("a run is active"))
    assert failed.summary == "Not possible in the present state: a run is active"


def test_secrets_are_not_shown_again() -> None:
    form = FormState(values={"password": ["s3cret"], "api_key": ["k"], "name": ["n"]})
    assert (form.value("password"), form.value("api_key"), form.value("name")) == ("", "", "n")


def test_a_secret_goes_along_sealed_until_another_is_typed() -> None:
    shown = FormState(values={"api_key": [" s3cret "], "password": ["p"]})
    kept = shown.kept("api_key")
    assert kept
    assert "s3cret" not in kept
    assert shown.kept("password") == ""
    assert FormState.of({"api_key": ""}).kept("api_key") == ""
    again = unseal({"api_key": [""], "api_key_kept": [kept], "url": ["u"]})
    assert again == {"api_key": ["s3cret"], "url": ["u"]}
    assert unseal({"api_key": ["other"], "api_key_kept": [kept]}) == {"api_key": ["other"]}
    assert unseal({"api_key": [""]}) == {"api_key": [""]}


def test_what_was_not_sealed_here_for_this_field_is_left_out() -> None:
    for made_up in ("s3cret", "sealed1:AAAA", "", "sealed1:", "\x00", seal("password", "s3cret")):
        assert unseal({"api_key": [""], "api_key_kept": [made_up]}) == {"api_key": [""]}
        assert unseal({"url": ["u"], "api_key_kept": [made_up]}) == {"url": ["u"]}


def test_addresses_to_come_back_to_are_our_own() -> None:
    assert safe_next("/stores?x=1") == "/stores?x=1"
    for odd in ("//evil", "/\\evil", "https://evil", "javascript:1", "", "/a\nb", "/\tb"):
        assert safe_next(odd) == "/"


def test_a_policy_survives_its_form() -> None:
    body = {
        "name": "p",
        "select": [
            {"kind": "incompatible", "reasons": ["other_layout"]},
            {"kind": "unused", "for": "14d", "age_only": True},
            {"kind": "free_space", "floor": "10%"},
        ],
        "protect": {"accessed_within": "24h", "models": ["/m/a", "/m/b"]},
        "limits": {"max_bytes": "500GB", "max_records": 7, "max_fraction": 0.25},
        "removal": "delete",
        "schedule": "@layout-change",
        "timezone": "Europe/Berlin",
        "enabled": False,
        "blackouts": [{"start": "08:00", "end": "20:00", "days": [1, 2]}],
    }
    form = form_of_preset(body, "3")
    sent = {name: list(values) for name, values in form.values.items()}
    again, paths = body_of(sent)
    assert again == body | {"store_id": "3", "quarantine_for": None}
    assert paths["select[1].for"] == "unused_for"
    assert paths["select[2].floor"] == "free_space_floor"
    assert values_of(again)["max_percent"] == "25"


def test_blanks_around_what_was_typed_do_not_count() -> None:
    assert one({"a": ["  x "]}, "a") == "x"
    assert one({"a": ["   "]}, "a") is None
    assert one({}, "a") is None
