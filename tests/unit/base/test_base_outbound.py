"""Private authorities and proxies: what each setting means, and which are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from private_network import Authority

from sealtrain.base.outbound import (
    CA_FILE,
    DIRECT,
    PROXY,
    Outbound,
    ProxyServer,
    blocks_of,
    certificates_in,
    from_variables,
    is_this_machine,
    outbound,
    parse_proxy,
    reach_by,
)
from sealtrain.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "made"),
    [
        ("http://proxy.bank:8080", ProxyServer(host="proxy.bank", port=8080)),
        ("proxy.bank", ProxyServer(host="proxy.bank", port=3128)),
        ("https://proxy.bank/", ProxyServer(host="proxy.bank", port=443, secured=True)),
        ("http://[fd00::1]:3128", ProxyServer(host="fd00::1", port=3128)),
        (
            "http://me:p%40ss@proxy.bank:1",
            ProxyServer(host="proxy.bank", port=1, authorization="Basic bWU6cEBzcw=="),
        ),
    ],
)
def test_a_proxy_is_read_from_its_url(url: str, made: ProxyServer) -> None:
    assert parse_proxy(url, PROXY) == made


@pytest.mark.parametrize(
    "url",
    [
        "socks5://proxy.bank:1080",
        "http://",
        "http://proxy.bank:99999",
        "http://proxy.bank/path",
        "http://proxy.bank?x=1",
        "http://próxy.bank",
        "http://[::1",
        "-1",
        "http://proxy bank",
        "http://proxy.bank\r\nX: y",
        "http://me:hunter2@proxy.bank:port",
    ],
)
def test_another_url_is_no_proxy(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_proxy(url, PROXY)
    assert caught.value.check == "proxy"
    assert "hunter2" not in str(caught.value)


def test_a_project_file_holds_no_password_of_a_proxy() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_proxy("http://me:hunter2@proxy.bank:1", "proxy", secret=False)
    assert caught.value.check == "proxy"
    assert "hunter2" not in str(caught.value.to_dict())
    assert "bWU" not in repr(parse_proxy("http://me:hunter2@proxy.bank:1", PROXY))


@pytest.mark.parametrize(
    ("host", "port", "words", "direct"),
    [
        ("broker.bank", 443, ("bank",), True),
        ("broker.bank", 443, (".bank",), True),
        ("broker.bank", 443, ("*.bank",), True),
        ("otherbank", 443, ("bank",), False),
        ("bank", 443, ("bank",), True),
        ("broker.BANK.", 443, ("Bank",), True),
        ("broker.bank", 443, ("broker.bank:8443",), False),
        ("broker.bank", 8443, ("broker.bank:8443",), True),
        ("10.1.2.3", 443, ("10.0.0.0/8",), True),
        ("11.1.2.3", 443, ("10.0.0.0/8", "bank"), False),
        ("10.1.2.3", 443, ("10.1.2.3",), True),
        ("fd00::5", 443, ("fd00::/8",), True),
        ("fd00::5", 8443, ("[fd00::5]:8443",), True),
        ("example.org", 443, ("*",), True),
        ("example.org", 443, ("", "."), False),
        ("localhost", 443, (), True),
        ("127.0.0.2", 443, (), True),
        ("::1", 443, (), True),
        ("example.org", 443, (), False),
    ],
)
def test_what_is_reached_directly(
    host: str, port: int, words: tuple[str, ...], direct: bool
) -> None:
    proxy = ProxyServer(host="proxy.bank", port=3128)
    assert (Outbound(proxy=proxy, direct=words).proxy_for(host, port) is None) == direct


def test_variables_win_over_the_file_and_ours_over_those_of_tools(tmp_path: Path) -> None:
    file = Outbound(proxy=ProxyServer(host="file", port=1), direct=("a",))
    assert from_variables({}, file) == file
    tools = {"HTTPS_PROXY": "http://tools:2", "no_proxy": "b, c"}
    assert from_variables(tools, file).proxy == file.proxy
    assert from_variables(tools, file).direct == ("a", "b", "c")
    tools_alone = from_variables(tools).proxy
    assert tools_alone == ProxyServer(host="tools", port=2)
    ours = from_variables(tools | {PROXY: "http://ours:3"}, file).proxy
    assert ours == ProxyServer(host="ours", port=3)
    assert from_variables(tools | {PROXY: "none"}, file).proxy is None
    assert from_variables({"HTTP_PROXY": "http://x:1", "ALL_PROXY": "http://x:1"}) == DIRECT
    bank = Authority(tmp_path)
    assert from_variables({CA_FILE: str(bank.file)}).authorities == bank.pem.decode()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "words",
        "-----BEGIN CERTIFICATE-----\nAA\n",
        "-----BEGIN CERTIFICATE-----\nA\N{NO-BREAK SPACE}A\n-----END CERTIFICATE-----\n",
        "\0",
    ],
)
def test_a_file_without_a_certificate_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        from_variables({CA_FILE: str(file)})
    assert caught.value.check == "ca_file"
    with pytest.raises(ConfigError) as caught:
        from_variables({CA_FILE: str(tmp_path / "absent")})
    assert caught.value.check == "ca_file"


def test_a_broken_certificate_is_refused_and_a_key_is_left_out(tmp_path: Path) -> None:
    bank = Authority(tmp_path)
    server = bank.server("localhost").read_text()
    assert "PRIVATE" in server
    assert "PRIVATE" not in certificates_in(server, "ca_file")
    assert len(blocks_of(server + bank.pem.decode())) == 2
    broken = bank.pem.decode().replace("MII", "AAA", 1)
    with pytest.raises(ConfigError):
        certificates_in(bank.pem.decode() + broken, "ca_file")


def test_settings_are_read_once_and_only_when_a_server_is_reached() -> None:
    asked: list[int] = []

    def decide() -> Outbound:
        asked.append(1)
        return DIRECT

    before = reach_by(decide)
    try:
        assert asked == []
        assert outbound() is outbound()
        assert asked == [1]
    finally:
        reach_by(before)


@pytest.mark.parametrize("port", ["9" * 5000, "65536", "\u0663"])
def test_a_port_that_no_server_has_is_refused_where_it_is_read(port: str) -> None:
    with pytest.raises(ConfigError) as refused:
        from_variables({"NO_PROXY": f"a.bank,b.bank:{port}"})
    assert (refused.value.check, len(refused.value.got or "")) == (
        "no_proxy",
        min(80, len(f"b.bank:{port}")),
    )


def test_loopback_is_this_machine_and_a_name_that_only_looks_like_it_is_not() -> None:
    assert all(map(is_this_machine, ("localhost", "127.0.0.1", "127.8.9.1", "::1", "LOCALHOST")))
    others = ("", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1", "evil")
    assert not any(map(is_this_machine, others))
