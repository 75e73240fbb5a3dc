"""The simulator behind its socket, spoken to by the real client; state, signals, restarts."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from carrying import carries

from sealtrain.attest.appraise import appraise
from sealtrain.attest.dstack import keys
from sealtrain.attest.dstack.client import DstackClient
from sealtrain.attest.errors import EvidenceMalformed, GuestApiUnreachable
from sealtrain.attest.evidence import Collateral, Evidence
from sealtrain.attest.guest import open_guest
from sealtrain.attest.presets import insecure_simulator_policy
from sealtrain.attest.report_data import Binding
from sealtrain.attest.tdx.collect import load_collateral
from sealtrain.attest.verifier import verifier_of
from sealtrain.attest.verify import verify
from sealtrain.base.secret import Secret
from sealtrain.errors import AlreadyExists, KeyFileInvalid, TrustInvalid, UsageError
from sealtrain.recipe.errors import LockInvalid
from sealtrain_rehearsal.simulator.guest import SimulatedGuest
from sealtrain_rehearsal.simulator.pki import SimulatedPki
from sealtrain_rehearsal.simulator.server import running
from sealtrain_rehearsal.simulator.state import ensure

pytestmark = pytest.mark.long

NOW = 1_800_000_000
ASKED = Binding("unit", {})
COMPOSE = b'{"name": "breast-cancer",\n "key_provider": "kms"}\n'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sim")
    (folder / "app-compose.json").write_bytes(COMPOSE)
    return folder


@pytest.fixture(scope="module")
def socket(folder: Path) -> Iterator[Path]:
    with running(
        folder / "guest.sock", folder / "app-compose.json", folder / "state", clock=lambda: NOW
    ) as path:
        yield path


def post(socket: Path, path: str, **options: Any) -> httpx2.Response:
    transport = httpx2.HTTPTransport(uds=str(socket), trust_env=False)
    with httpx2.Client(transport=transport, trust_env=False) as client:
        return client.post(f"http://guest{path}", **options)


@pytest.mark.parametrize("api", ["v0", "v1"])
def test_evidence_of_both_generations_verifies(folder: Path, socket: Path, api: Any) -> None:
    assert DstackClient(str(socket)).api == "v1"
    client = DstackClient(str(socket), api=api)
    asked = Binding("unit", {"api": api})
    evidence = Evidence.build(
        "simulator",
        app_compose=client.info().app_compose,
        collateral=load_collateral(f"file:{folder}/state/collateral.json"),
        **verifier_of("dstack").ask_agent(client, asked.report_data()),
    )
    policy = insecure_simulator_policy((folder / "state/root.der").read_bytes())
    facts = verify(evidence, policy, NOW, binding=asked)
    expected = hashlib.sha256(COMPOSE).hexdigest()
    appraise(facts, policy, binding=asked, compose_hash=expected, app_id=expected[:40])
    assert facts.app_compose == COMPOSE
    # v1 strips firmware events; both replay the run-time register.
    assert len(evidence.cpu.event_log) == (9 if api == "v1" else 17)


def test_both_generations_describe_the_same_guest(socket: Path) -> None:
    old, new = DstackClient(str(socket), api="v0"), DstackClient(str(socket))
    assert old.info().app_compose == new.info().app_compose == COMPOSE
    assert old.info().instance_id == new.info().instance_id
    assert old.info().app_name == "breast-cancer"


def test_keys_come_with_a_chain_to_the_simulators_root(folder: Path, socket: Path) -> None:
    state = ensure(folder / "state", NOW)
    guest = SimulatedGuest(state.pki, state.seed, COMPOSE)
    client = DstackClient(str(socket))
    v0 = client.get_key("run/1", purpose="checkpoint")
    v1 = client.get_key("run/1", purpose="", api="v1")
    assert v0 != v1
    for key, claim in (
        (v0, keys.claim_v0("checkpoint", keys.public_half(v0, "secp256k1"))),
        (v1, keys.claim_v1("run/1", "secp256k1", keys.public_half(v1, "secp256k1"))),
    ):
        keys.verify_chain(
            key.signature_chain, claim=claim, app_id=guest.app_id, root_key=guest.root_public_key
        )
    assert "secret" in repr(v0)


def test_the_socket_is_private_and_the_seed_too(folder: Path, socket: Path) -> None:
    assert stat.S_IMODE(socket.stat().st_mode) == 0o600
    assert stat.S_IMODE((folder / "state/seed").stat().st_mode) == 0o600


def test_a_second_guest_shares_the_state_but_not_the_socket(folder: Path, socket: Path) -> None:
    compose = folder / "other.json"
    compose.write_bytes(b'{"name":"other"}')
    with pytest.raises(AlreadyExists), running(socket, compose, folder / "state"):
        pass
    with running(folder / "b.sock", compose, folder / "state", clock=lambda: NOW) as second:
        one, two = DstackClient(str(socket)), DstackClient(str(second))
        assert one.info().app_id != two.info().app_id
        assert one.get_key("x", purpose="") != two.get_key("x", purpose="")
        state = ensure(folder / "state", NOW)
        guest = open_guest("simulator", str(second), collateral=f"file:{state.collateral_path}")
        policy = insecure_simulator_policy(state.root_path.read_bytes())
        verify(guest.evidence(ASKED), policy, NOW, binding=ASKED)
    assert not (folder / "b.sock").exists()


def test_keys_and_root_survive_a_restart(tmp_path: Path) -> None:
    compose = tmp_path / "c.json"
    compose.write_bytes(b"{}")
    seen = []
    for _ in range(2):
        with running(tmp_path / "g.sock", compose, tmp_path / "state") as path:
            client = DstackClient(str(path))
            key = client.get_key("p", purpose="").reveal()
            seen.append((key, (tmp_path / "state/root.der").read_bytes()))
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/Nothing", {}, 404),
        ("/Tappd.TdxQuote", {}, 404),
        ("/GetQuote", {}, 400),
        ("/GetQuote", {"report_data": "zz"}, 400),
        ("/GetQuote", {"report_data": "00" * 65}, 400),
        ("/v1/GetKey", {"domain": "d"}, 400),
        ("/v1/GetKey", {"domain": "d", "algorithm": "rsa"}, 400),
        ("/EmitEvent", {"event": "e", "payload": ""}, 400),
        ("/GetKey", [], 400),
    ],
)
def test_errors_look_like_the_agents(socket: Path, path: str, body: Any, status: int) -> None:
    answer = post(socket, path, json=body)
    assert answer.status_code == status
    assert isinstance(answer.json()["error"], str)


def test_v0_answers_under_its_prefix_and_pads_report_data(socket: Path) -> None:
    answer = post(socket, "/v0/GetQuote", json={"report_data": "0xabcd"}).json()
    assert answer["report_data"] == "abcd" + "00" * 62
    assert bytes.fromhex(answer["quote"])[568:632].hex() == answer["report_data"]
    assert post(socket, "/v0/GetKey", content=b"").status_code == 200


def test_a_request_over_the_limit_is_refused(socket: Path) -> None:
    answer = post(socket, "/GetKey", content=b'{"path":"' + b"a" * (1 << 20) + b'"}')
    assert answer.status_code == 400


def test_an_absent_guest_is_unreachable_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(GuestApiUnreachable) as caught:
        DstackClient(str(tmp_path / "nobody.sock"), timeout=1.0).info()
    assert caught.value.exit_code == 4
    assert "simulator" in str(caught.value.hint)


def test_the_client_ignores_the_environment(socket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "DSTACK_SIMULATOR_ENDPOINT"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
        monkeypatch.setenv(name.lower(), "http://127.0.0.1:9")
    assert DstackClient(str(socket)).info().app_name == "breast-cancer"


def test_a_refusing_guest_and_malformed_arguments_are_typed(socket: Path) -> None:
    client = DstackClient(str(socket))
    with pytest.raises(EvidenceMalformed):
        client.get_quote(b"short")
    with pytest.raises(GuestApiUnreachable, check=carries(check="guest API")):
        client.get_key("x" * 2000, purpose="")


def test_collateral_of_a_guest_comes_from_a_readable_source(tmp_path: Path, socket: Path) -> None:
    (tmp_path / "bad.json").write_text("{}")
    for uri, error in (
        ("ftp://collateral.example", TrustInvalid),
        (f"file:{tmp_path}/none.json", TrustInvalid),
        (f"file:{tmp_path}/bad.json", EvidenceMalformed),
    ):
        with pytest.raises(error):
            open_guest("simulator", str(socket), collateral=uri).evidence(ASKED)


def test_a_guest_on_tdx_without_collateral_is_refused_before_anything_is_made(socket: Path) -> None:
    with pytest.raises(UsageError, check=carries(check="collateral", got="none")):
        open_guest("simulator", str(socket), collateral=None)


def test_a_readable_or_broken_seed_is_refused(tmp_path: Path) -> None:
    state = ensure(tmp_path / "state", NOW)
    (state.folder / "seed").chmod(0o644)
    with pytest.raises(KeyFileInvalid):
        ensure(tmp_path / "state", NOW)
    (state.folder / "seed").chmod(0o600)
    (state.folder / "seed").write_text("short")
    with pytest.raises(KeyFileInvalid):
        ensure(tmp_path / "state", NOW)


def test_guests_that_start_together_agree_on_one_seed(tmp_path: Path) -> None:
    roots: list[bytes] = []

    def start() -> None:
        roots.append(ensure(tmp_path / "state", NOW).pki.root_der)

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(roots) == 4
    assert len(set(roots)) == 1


def test_collateral_is_fresh_at_every_start(tmp_path: Path) -> None:
    first = ensure(tmp_path / "state", NOW)
    policy = insecure_simulator_policy(first.pki.root_der)
    later = NOW + 40 * 24 * 3600
    second = ensure(tmp_path / "state", later)
    stored = json.loads(second.collateral_path.read_text())
    guest = SimulatedGuest(second.pki, second.seed, b"{}")
    evidence = guest.evidence(ASKED, collateral=Collateral.from_dict(stored))
    verify(evidence, policy, later, binding=ASKED)


@pytest.mark.parametrize("compose", [b"", b"[]", b"\xff", b'{"a":1,"a":2}'])
def test_a_document_that_is_no_json_object_does_not_boot(tmp_path: Path, compose: bytes) -> None:
    path = tmp_path / "c.json"
    path.write_bytes(compose)
    with pytest.raises(LockInvalid), running(tmp_path / "g.sock", path, tmp_path / "s"):
        pass
    with pytest.raises(LockInvalid), running(tmp_path / "g.sock", tmp_path / "no", tmp_path / "s"):
        pass


def test_a_stale_socket_is_replaced_and_a_long_path_explained(tmp_path: Path) -> None:
    import socket as sockets

    path = tmp_path / "g.sock"
    stale = sockets.socket(sockets.AF_UNIX)
    stale.bind(str(path))
    stale.close()
    compose = tmp_path / "c.json"
    compose.write_bytes(b"{}")
    with running(path, compose, tmp_path / "s") as served:
        DstackClient(str(served)).info()
    long = tmp_path / ("x" * 120)
    with pytest.raises(UsageError), running(long, compose, tmp_path / "s"):
        pass


def test_sigterm_ends_the_program_gracefully(tmp_path: Path) -> None:
    compose = tmp_path / "c.json"
    compose.write_bytes(b"{}")
    program = (
        "import sys; from pathlib import Path; from sealtrain_rehearsal.simulator import serve\n"
        "a = [Path(x) for x in sys.argv[1:]]\n"
        "serve(a[0], a[1], a[2], ready=lambda: print('ready', flush=True))\n"
        "print('ended', flush=True)"
    )
    path = tmp_path / "g.sock"
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(path), str(compose), str(tmp_path / "s")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "error"},
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        DstackClient(str(path)).info()
        child.send_signal(signal.SIGTERM)
        out, err = child.communicate(timeout=20)
    finally:
        child.kill()
        child.wait()
    assert (out, err, child.returncode) == ("ended\n", "", 0)
    assert not path.exists()


def test_the_pki_is_a_function_of_its_seed_and_names_itself() -> None:
    from cryptography import x509

    one, two = SimulatedPki(b"s" * 32), SimulatedPki(b"s" * 32)
    assert one.root_der == two.root_der
    assert one.collateral(NOW) == two.collateral(NOW)
    assert one.quote(bytes(64)) == two.quote(bytes(64))
    assert one.root_der != SimulatedPki(b"t" * 32).root_der
    collateral = one.collateral(NOW)
    chains = collateral.pck_crl_issuer_chain + collateral.tcb_info_issuer_chain
    for certificate in x509.load_pem_x509_certificates(chains.encode()):
        assert certificate.subject.rfc4514_string().startswith("CN=SIMULATED")


def test_a_guest_without_instance_id_and_with_a_kms_measures_so(pki: SimulatedPki) -> None:
    policy = insecure_simulator_policy(pki.root_der)
    guest = SimulatedGuest(pki, Secret(bytes(32)), b'{"no_instance_id":true,"kms_enabled":true}')
    evidence = guest.evidence(ASKED, collateral=pki.collateral(NOW))
    facts = verify(evidence, policy, NOW, binding=ASKED)
    assert facts.instance_id == ""
    assert facts.signed.measured.key_provider_name == "kms"
    assert facts.key_provider.startswith("3059301306072a8648ce3d0201")
