"""Addresses: one normal form, and what may not be entered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import InvalidInput
from app.fleet.addresses import address_key, parse_address


class TestNormalForm:
    @pytest.mark.parametrize(
        ("entered", "url"),
        [
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("  HTTP://GPU-1.Example.COM:8080/  ", "http://gpu-1.example.com:8080"),
            ("http://gpu-1", "http://gpu-1:80"),
            ("https://gpu-1/lmcache/", "https://gpu-1:443/lmcache"),
            ("http://[::1]:8080", "http://[::1]:8080"),
            ("http://[2001:DB8:0:0::1]/", "http://[2001:db8::1]:80"),
            ("http://gpu_1.internal.:8000", "http://gpu_1.internal:8000"),
            ("http://bücher.example:8000", "http://xn--bcher-kva.example:8000"),
        ],
    )
    def test_is_one_for_each_way_of_writing(self, entered: str, url: str) -> None:
        assert parse_address(entered).url == url

    def test_localhost_counts_as_the_same_address(self) -> None:
        a, b = parse_address("http://localhost:8080/"), parse_address("http://127.0.0.1:8080")
        assert a.key == b.key == address_key(a.url)
        assert a.url != b.url

    def test_parsing_the_normal_form_changes_nothing(self) -> None:
        once = parse_address("HTTPS://Host.Example/x/y/").url
        assert parse_address(once).url == once


class TestRefused:
    @pytest.mark.parametrize(
        ("entered", "words"),
        [
            ("127.0.0.1:8080", "write http://127.0.0.1:8080"),
            ("htp:/x", "is no address; write it like http://host:8080"),
            ("http:/host", "is no address"),
            ("host:port:8080", "is no address"),
            ("//host:8080/x", "write http://host:8080/x"),
            ("[::1]:8080", "write http://[::1]:8080"),
            ("ftp://host", "http:// or https://"),
            ("file:///etc/passwd", "http:// or https://"),
            ("http://", "no host"),
            ("http://host:0", "port 0"),
            ("http://host:70000", "cannot be read"),
            ("http://host:abc", "cannot be read"),
            ("http://user:secret@host:8080", "api_key or headers"),
            ("http://host:8080?x=1", "query or fragment"),
            ("http://host:8080/?", "query or fragment"),
            ("http://host:8080#top", "query or fragment"),
            ("http://ho st:8080", "blanks"),
            ("http://host\r\nX: y", "blanks"),
            ("http://host\\@evil", "backslashes"),
            ("http://-host", "DNS does not allow"),
            ("http://ho$t", "DNS does not allow"),
            ("http://[::1", "cannot be read"),
            ("http://[fe80::1%25eth0]", "IPv6"),
            ("http://2852039166/", "four numbers"),
            ("http://0x7f000001:80", "four numbers"),
            ("http://0177.0.0.1", "four numbers"),
            ("http://127.1:8080", "four numbers"),
            ("http://0.0.0.0:8080", "no address a target can have"),
            ("http://[::]:8080", "no address a target can have"),
            ("http://224.0.0.1", "no address a target can have"),
            ("http://host:8080/metrics", "base address http://host:8080"),
            ("http://host:8000/v1/models", "base address http://host:8000"),
            ("http://host/a/../b", "path that cannot be used"),
        ],
    )
    def test_names_the_field_and_the_way_out(self, entered: str, words: str) -> None:
        with pytest.raises(InvalidInput) as caught:
            parse_address(entered)
        assert words in caught.value.detail
        assert [e.field for e in caught.value.errors] == ["url"]

    def test_a_password_is_not_repeated(self) -> None:
        with pytest.raises(InvalidInput) as caught:
            parse_address("http://user:hunter2@host")
        assert "hunter2" not in caught.value.detail

    @pytest.mark.parametrize(
        "entered",
        [
            "http://169.254.169.254/latest",
            "http://169.254.1.1:8080",
            "http://100.100.100.200",
            "http://168.63.129.16",
            "http://[fe80::1]:8080",
            "http://[fd00:ec2::254]",
            "http://[::ffff:169.254.169.254]",
            "http://[64:ff9b::a9fe:a9fe]",
            "http://[64:ff9b:1::a9fe:a9fe]",
            "http://[::ffff:0:a9fe:a9fe]",
            "http://[::a9fe:a9fe]",
            "http://[2002:a9fe:a9fe::1]",
            "http://metadata.google.internal",
            "http://Metadata.Google.Internal.",
        ],
    )
    def test_link_local_and_metadata_however_written(self, entered: str) -> None:
        with pytest.raises(InvalidInput, match="ALLOW_LINK_LOCAL"):
            parse_address(entered)
        assert parse_address(entered, allow_link_local=True).url.startswith("http://")

    def test_a_name_that_resolves_there(self) -> None:
        with pytest.raises(InvalidInput, match=r"resolves to 169\.254\.169\.254"):
            parse_address("http://innocent:80", resolve=lambda host: ["10.0.0.1", "169.254.169.254"])
        with pytest.raises(InvalidInput, match="link-local"):
            parse_address("http://innocent:80", resolve=lambda host: ["fe80::1%eth0"])

    def test_a_name_that_does_not_resolve_is_kept(self) -> None:
        assert parse_address("http://down-just-now:8080", resolve=lambda host: []).host == "down-just-now"


@given(st.text(max_size=60))
def test_anything_else_is_an_address_or_invalid_input(text: str) -> None:
    try:
        address = parse_address(text)
    except InvalidInput:
        return
    assert parse_address(address.url) == parse_address(address.url)
    assert parse_address(address.url).url == address.url


@given(st.integers(min_value=0, max_value=2**32 - 1))
def test_numbers_never_reach_a_forbidden_address(number: int) -> None:
    for form in (str(number), hex(number)):
        with pytest.raises(InvalidInput):
            parse_address(f"http://{form}:80")
