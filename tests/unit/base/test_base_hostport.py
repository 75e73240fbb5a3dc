"""Addresses are read as they are written, and nothing else is one."""

from __future__ import annotations

import pytest
from carrying import carries

from sealtrain.base.hostport import host_and_port, write_host_and_port
from sealtrain.errors import UsageError


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:80", "127.0.0.1", 80),
        ("gpu-1.example:65535", "gpu-1.example", 65535),
        ("[::1]:7", "::1", 7),
    ],
)
def test_an_address_is_read_as_it_is_written(text: str, host: str, port: int) -> None:
    assert host_and_port(text) == (host, port)
    assert write_host_and_port(host, port) == text


@pytest.mark.parametrize(
    "text",
    ["", "host", "host:", ":80", "host:65536", "::1:80", "http://host:80", "host:80 ", "h:x"],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError, check=carries(expected="HOST:PORT")):
        host_and_port(text)
