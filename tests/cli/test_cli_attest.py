"""``sealtrain attest``: what people type, what they read, how it ends."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nvidia_world as vendor
import pytest
import yaml
from exhibit_world import REFUSED, Real, accepted, gpu_rules
from http_server import Handler, http_served
from pccs import Pccs, serving

from sealtrain.attest.nvidia.collateral import GpuCollateral
from sealtrain.attest.policy import load_policy
from sealtrain.attest.presets import PRESETS, preset
from sealtrain.base.clock import to_rfc3339
from sealtrain.base.digests import sha256_hex
from sealtrain.base.encoding import to_base64
from sealtrain.cli import main
from sealtrain_rehearsal.simulator.machine import Machine
from sealtrain_rehearsal.simulator.server import running
from sealtrain_rehearsal.simulator.state import ensure

NOW = 1_800_000_000
NONCE = "5e" * 32
HEX = re.compile(r"[0-9a-f]{33,}")


@dataclass(frozen=True)
class Ended:
    """One command that ran to its end."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.stdout)
        return found


Run = Callable[..., Ended]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def attest(*words: object, group: str = "attest") -> Ended:
        monkeypatch.setattr(sys, "argv", ["sealtrain", group, *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return Ended(int(ended.value.code or 0), said.out, said.err)

    return attest


def written(folder: Path, policy: dict[str, Any]) -> Path:
    path = folder / "policy.yaml"
    path.write_text(json.dumps(policy))
    return path


def words(shared: Path, one: Real, policy: Path) -> list[str]:
    file = str(shared / "vectors" / one.file)
    return [file, "--policy", str(policy), *one.options(shared)]


# --- verify -------------------------------------------------------------------------------------


def test_every_real_file_is_verified_at_its_time_and_refused_outside(
    run: Run, shared: Path, tmp_path: Path
) -> None:
    for real in accepted(shared):
        typed = words(shared, real, written(tmp_path, real.policy))
        done = run("verify", *typed, "--at", real.time, "--json")
        assert (done.code, real.file) == (0, real.file), done.stderr
        assert done.json["simulated"] == ("mock" in real.file)
        assert done.json["bound"] is False
        assert done.json["verified_at"] == real.time
        assert done.stderr  # a person is told too
        for moment in real.outside:
            late = run("verify", *typed, "--at", to_rfc3339(moment), "--json")
            assert (late.code, list(late.json)) == (3, ["error"])
            assert late.json["error"]["code"] == real.late


def test_a_nonce_binds_and_another_one_is_refused(run: Run, shared: Path, tmp_path: Path) -> None:
    for real in accepted(shared):
        typed = [*words(shared, real, written(tmp_path, real.policy)), "--at", real.time, "--json"]
        if real.nonce is not None:
            done = run("verify", *typed, "--nonce", real.nonce)
            assert done.code == 0
            assert done.json["bound"] is True
        length = 64 if real.nonce is None else len(real.nonce)
        for wrong in ("00" * (length // 2), (real.nonce or "00" * 64)[:-2]):
            refused = run("verify", *typed, "--nonce", wrong)
            expected = "gpu-nonce-mismatch" if "nvidia" in real.file else "report-data-mismatch"
            assert (refused.code, refused.json["error"]["code"]) == (3, expected)


def test_every_negative_file_is_refused_with_its_code_and_no_partial_verdict(
    run: Run, shared: Path, tmp_path: Path
) -> None:
    for real, code in REFUSED:
        typed = words(shared, real, written(tmp_path, real.policy))
        done = run("verify", *typed, "--at", real.time)
        assert (done.code, done.stdout) == (3, ""), real
        assert f"refused [{code}]" in done.stderr
        asked = run("verify", *typed, "--at", real.time, "--json")
        assert list(asked.json) == ["error"]


def test_people_read_each_claim_and_machines_get_it_whole(
    run: Run, shared: Path, tmp_path: Path
) -> None:
    [one] = [real for real in accepted(shared) if real.file == "tdx/tdx_quote"]
    typed = [*words(shared, one, written(tmp_path, one.policy)), "--at", one.time]
    people, machine = run("verify", *typed), run("verify", *typed, "--json")
    assert people.stdout.startswith("VERIFIED")
    assert HEX.search(people.stdout) is None
    claims = machine.json["submods"]["cpu0"]["claims"]
    for claim in claims:
        assert set(claim) == {"name", "got", "expected", "source", "outcome"}
        assert claim["name"] in people.stdout
    outcomes = {claim["name"]: claim["outcome"] for claim in claims}
    assert outcomes["report data"] == outcomes["compose hash"] == "any"
    assert outcomes["TCB status"] == "allowed"
    assert machine.json["submods"]["cpu0"]["dbgstat"] == "disabled"


def test_the_deployment_document_is_compared_where_it_is_named(
    run: Run, shared: Path, tmp_path: Path
) -> None:
    file = "dstack/verifier-fixtures/quote-report.json"
    [one] = [real for real in accepted(shared) if real.file == file]
    typed = [*words(shared, one, written(tmp_path, one.policy)), "--at", one.time, "--json"]
    claims = run("verify", *typed).json["submods"]["cpu0"]["claims"]
    [measured] = [claim["got"] for claim in claims if claim["name"] == "compose hash"]
    held = run("verify", *typed, "--compose-hash", measured)
    assert held.code == 0
    other = tmp_path / "compose.json"
    other.write_text("{}")
    for option in (["--compose-hash", "00" * 32], ["--deployment", str(other)]):
        done = run("verify", *typed, *option)
        assert (done.code, done.json["error"]["code"]) == (3, "compose-hash-mismatch")
    both = run("verify", *typed, "--deployment", other, "--compose-hash", measured)
    assert (both.code, both.json["error"]["code"]) == (2, "usage")


def test_reference_values_are_verified_by_themselves(
    run: Run, shared: Path, tmp_path: Path
) -> None:
    policy = written(tmp_path, gpu_rules())
    rim = shared / "vectors/nvidia/rim/vbios_1010_0200_882_96005E0001.swidtag"
    typed = ["verify", rim, "--policy", policy, "--json", "--at"]
    assert run(*typed, "2025-06-01T00:00:00Z").code == 0
    late = run(*typed, "2025-07-01T00:00:00Z")  # its signer ended on 2025-06-22
    assert (late.code, late.json["error"]["code"]) == (3, "reference-value-invalid")


def test_a_verdict_of_nvidias_service_is_verified_under_archived_keys(
    run: Run, tmp_path: Path
) -> None:
    verdict = vendor.Service().verdict({"GPU-0": vendor.device_claims()})
    (tmp_path / "token.json").write_text(verdict.token)
    collateral = GpuCollateral.build(rims={}, ocsp=(), nras=verdict)
    (tmp_path / "keys.json").write_bytes(collateral.to_bytes())
    keys = f"file:{tmp_path / 'keys.json'}"
    policy = written(tmp_path, gpu_rules())
    typed = ["verify", tmp_path / "token.json", "--policy", policy, "--gpu-collateral", keys]
    typed += ["--json", "--at"]
    at = to_rfc3339(vendor.NOW)
    done = run(*typed, at, "--nonce", vendor.NONCE.hex())
    assert done.code == 0, done.stdout
    assert done.json["bound"] is True
    for other in (
        [at, "--nonce", "00" * 32],
        [at],
        [to_rfc3339(vendor.NOW + vendor.HOUR), "--nonce", vendor.NONCE.hex()],
    ):
        refused = run(*typed, *other)
        assert (refused.code, refused.json["error"]["code"]) == (3, "remote-verdict-refused")


@pytest.mark.parametrize(
    ("typed", "code"),
    [
        pytest.param([], "time", id="no-time"),
        pytest.param(["--at", "yesterday"], "time", id="no-such-time"),
        pytest.param(["--at", "2025-06-20"], "time", id="a-date-is-no-time"),
        pytest.param(["--at", "2025-06-20T00:00:00Z", "--nonce", "xyz"], None, id="nonce"),
        pytest.param(["--at", "2025-06-20T00:00:00Z", "--nonce", ""], None, id="empty-nonce"),
        pytest.param(["--at", "2025-06-20T00:00:00Z", "--compose-hash", "00"], None, id="hash"),
        pytest.param(["--at", "now", "--policy", "preset:best"], None, id="preset"),
        pytest.param(["--at", "now", "--policy", "nowhere.yaml"], None, id="policy"),
        pytest.param(["--at", "now", "--collateral", "https://pccs.example"], None, id="network"),
        pytest.param(["--at", "now", "--collateral", "file:nowhere"], None, id="collateral"),
    ],
)
def test_what_cannot_be_used_ends_with_2_and_nothing_on_stdout(
    run: Run, shared: Path, typed: list[str], code: str | None
) -> None:
    file = shared / "vectors/nitro/prod_2025_pubkey.cose"
    policy = [] if "--policy" in typed else ["--policy", "preset:nitro"]
    done = run("verify", file, *policy, *typed)
    assert (done.code, done.stdout) == (2, "")
    if code is not None:
        assert code in done.stderr


def test_what_is_no_evidence_ends_with_5(run: Run, shared: Path, tmp_path: Path) -> None:
    for name in ("nitro/aws_nitro_root_g1.pem", "nitro/expected.json", "dstack/ccel/ccel.bin"):
        done = run(
            "verify", shared / "vectors" / name, "--policy", "preset:nitro", "--at", "now", "--json"
        )
        assert (done.code, list(done.json)) == (5, ["error"])
    assert run("verify", tmp_path / "none", "--policy", "preset:nitro", "--at", "now").code == 5
    report = shared / "vectors/sev-snp/genoa_azure_v3.report.bin"
    typed = [report, "--policy", "preset:snp-genoa", "--at", "now", "--certificate"]
    assert run("verify", *typed, report).code == 2
    assert run("verify", *typed, __file__).code == 5


# --- explain ------------------------------------------------------------------------------------


def test_an_explanation_ends_with_0_whatever_it_finds(
    run: Run, shared: Path, tmp_path: Path
) -> None:
    [(one, _)] = [row for row in REFUSED if row[0].file == "nitro/bad_signature_2024.cose"]
    typed = words(shared, one, written(tmp_path, one.policy))
    done = run("explain", *typed, "--at", one.time)
    assert done.code == 0
    assert "NOT VERIFIED" in done.stdout.partition("\n")[0]
    assert "quote-invalid" in done.stdout
    assert run("explain", *typed, "--at", one.time, "--json").json["signatures_verified"] is False


def test_an_explanation_without_a_policy_or_time_says_so(run: Run, shared: Path) -> None:
    file = shared / "vectors/sev-snp/genoa_azure_v3.report.bin"
    done = run("explain", file)
    assert done.code == 0
    assert "NOT VERIFIED" in done.stdout
    assert "--at" in done.stdout
    assert "MEASUREMENT" in done.stdout
    assert HEX.search(done.stdout) is None
    whole = run("explain", file, "--json").json
    [measured] = [field for field in whole["fields"] if field["name"] == "MEASUREMENT"]
    assert len(measured["value"]) == 96
    refused = run("explain", file, "--policy", "preset:snp-genoa")
    assert (refused.code, refused.stdout) == (2, "")


# --- collect, verify, bundle ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Evidence of a simulated guest with two accelerators, collected by the command."""
    folder = tmp_path_factory.mktemp("guest")
    machine = Machine(gpus=2)
    (folder / "app-compose.json").write_text('{"name": "collected"}')
    state, socket = folder / "state", folder / "guest.sock"
    trusted = ensure(state, NOW, machine=machine).policy(machine)
    (folder / "policy.yaml").write_text(yaml.safe_dump(trusted.to_dict()))
    compose = folder / "app-compose.json"
    with (
        running(socket, compose, state, clock=lambda: NOW, machine=machine),
        pytest.MonkeyPatch.context() as patch,
    ):
        typed = ["--platform", "simulator", "--guest", str(socket), "--nonce", NONCE]
        typed += ["--collateral", f"file:{state / 'collateral.json'}"]
        typed += ["--gpu-collateral", f"file:{state / 'gpu-collateral.json'}"]
        typed += ["--out", str(folder / "evidence.json")]
        patch.setattr(sys, "argv", ["sealtrain", "attest", "collect", *typed])
        with pytest.raises(SystemExit) as ended:
            main()
    assert not ended.value.code
    return folder


def test_collected_evidence_is_verified_for_its_nonce_and_no_other(
    run: Run, collected: Path
) -> None:
    typed = [collected / "evidence.json", "--policy", collected / "policy.yaml"]
    typed += ["--at", to_rfc3339(NOW + 60), "--json"]
    done = run("verify", *typed, "--nonce", NONCE)
    assert done.code == 0, done.stdout
    assert done.json["label"] == "SIMULATED — NOT ATTESTED"
    assert set(done.json["submods"]) == {"cpu0", "gpus", "gpu0", "gpu1"}
    compose = collected / "app-compose.json"
    assert run("verify", *typed, "--nonce", NONCE, "--deployment", compose).code == 0
    assert run("verify", *typed).json["bound"] is False
    for option, code in (
        (["--nonce", "00" * 32], "gpu-nonce-mismatch"),
        (["--nonce", NONCE, "--compose-hash", "00" * 32], "compose-hash-mismatch"),
        (["--nonce", NONCE, "--deployment", collected / "policy.yaml"], "compose-hash-mismatch"),
        (["--deployment", collected / "policy.yaml"], "compose-hash-mismatch"),
        (["--nonce", NONCE, "--policy", "preset:dstack-h100"], "simulated-evidence"),
        (["--nonce", NONCE, "--at", "2030-01-01T00:00:00Z"], "collateral-expired"),
    ):
        refused = run("verify", *typed, *option)
        assert (refused.code, refused.json["error"]["code"]) == (3, code)
    assert run("verify", *typed, "--nonce", "00" * 15).code == 2


def test_a_bundle_is_verified_at_its_own_time_and_at_no_other_it_did_not_hold(
    run: Run, collected: Path, tmp_path: Path
) -> None:
    policy, at = collected / "policy.yaml", to_rfc3339(NOW + 60)
    typed = [collected / "evidence.json", "--policy", policy, "--nonce", NONCE]
    made = run("bundle", *typed, "--at", at, "--out", tmp_path / "bundle.json", "--json")
    assert made.code == 0, made.stdout
    assert made.json["kind"] == "evidence"
    done = run("verify", tmp_path / "bundle.json", "--policy", policy, "--json")
    assert done.code == 0, done.stdout
    assert (done.json["verified_at"], done.json["bound"]) == (at, True)
    late = run(
        "verify", tmp_path / "bundle.json", "--policy", policy, "--at", "2030-01-01T00:00:00Z"
    )
    assert (late.code, late.stdout) == (3, "")
    shown = run("explain", tmp_path / "bundle.json", "--policy", policy, "--json").json
    assert shown["at"] == at
    assert shown["signatures_verified"] is True
    again = run("bundle", *typed, "--at", at, "--out", tmp_path / "bundle.json")
    assert again.code == 2  # never over another file
    never = tmp_path / "never.json"
    assert run("bundle", *typed, "--at", "2030-01-01T00:00:00Z", "--out", never).code == 3
    assert run("bundle", *typed, "--out", never).code == 2
    assert not never.exists()


# --- policy, fetch --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_written_with_comments_and_is_the_preset(
    run: Run, tmp_path: Path, name: str
) -> None:
    path = tmp_path / "policy.yaml"
    assert run("new", name, "--out", path, group="policy").code == 0
    assert load_policy(path) == preset(name)
    assert yaml.safe_load(path.read_text()) == PRESETS[name]
    printed = run("new", name, group="policy")
    assert printed.stdout == path.read_text()
    assert run("new", name, "--json", group="policy").json == PRESETS[name]
    for field in (*PRESETS[name]["cpu"], *(PRESETS[name]["gpu"] if name[-1] == "0" else ())):
        assert field == "tee" or re.search(rf"#[^\n]*\n +{field}:", path.read_text()), field
    assert max(map(len, path.read_text().splitlines())) <= 110


def test_the_default_preset_accepts_nobody(run: Run) -> None:
    assert run("new", "--json", group="policy").json == PRESETS["deny-all"]


def test_other_presets_are_pointed_out(run: Run) -> None:
    simulator, unknown = (run("new", name, group="policy") for name in ("simulator", "best"))
    assert (simulator.code, unknown.code) == (2, 2)
    assert "--write-policy" in simulator.stderr
    assert "dstack-h100" in unknown.stderr


@pytest.mark.parametrize(
    "typed",
    [
        [],
        ["--quote", "tdx/tdx_quote"],
        ["--pccs", "https://pccs.example"],
        ["--gpu", "nvidia/hopper_single_ppcie.json", "--pccs", "https://pccs.example"],
        ["--quote", "nitro/prod_2025_pubkey.cose", "--pccs", "https://pccs.example"],
        ["--gpu", "nitro/prod_2025_pubkey.cose"],
    ],
    ids=" ".join,
)
def test_collateral_is_fetched_for_one_known_thing(
    run: Run, shared: Path, tmp_path: Path, typed: list[str]
) -> None:
    named = [
        str(shared / "vectors" / word) if "/" in word and ":" not in word else word
        for word in typed
    ]
    done = run("fetch", *named, "--out", tmp_path / "out.json")
    assert (done.code, done.stdout) == (2, "")
    assert not (tmp_path / "out.json").exists()


def test_fetched_collateral_verifies_the_quote_it_was_fetched_for(
    run: Run, shared: Path, tmp_path: Path
) -> None:
    [one] = [real for real in accepted(shared) if real.file == "tdx/tdx_quote"]
    file, out = shared / "vectors" / one.file, tmp_path / "collateral.json"
    published = one.beside(shared).collateral
    assert published is not None
    with serving(Pccs(collateral=published, fmspc="b0c06f000000")) as pccs:
        assert run("fetch", "--quote", file, "--pccs", pccs.url, "--out", out).code == 0
        gone = pccs.url
    policy = written(tmp_path, one.policy)
    typed = [file, "--policy", policy, "--at", one.time, "--collateral", f"file:{out}"]
    assert run("verify", *typed).code == 0
    away = run("fetch", "--quote", file, "--pccs", gone, "--out", tmp_path / "x", "--json")
    assert (away.code, away.json["error"]["code"]) == (4, "collateral-unreachable")


def test_collateral_of_accelerators_is_fetched_from_a_mirror(
    run: Run, shared: Path, tmp_path: Path
) -> None:
    rim = b"<a mirror's file/>"

    class Mirror(Handler):
        def do_GET(self) -> None:  # the name is the library's
            name = self.path.rpartition("/")[2]
            body = {"id": name, "rim": to_base64(rim), "sha256": sha256_hex(rim)}
            self.answer(200, json.dumps(body).encode())

        def do_POST(self) -> None:  # the name is the library's
            self.body()
            self.answer(200, b"an answer")

    out = tmp_path / "gpu.json"
    file = shared / "vectors/nvidia/hopper_multi4_ppcie.json"
    with http_served(Mirror) as url:
        done = run("fetch", "--gpu", file, "--out", out, "--rims", f"{url}/rim", "--ocsp", url)
    assert done.code == 0, done.stderr
    fetched = GpuCollateral.load(out)
    assert len(fetched.rims) == 2
    assert "NV_GPU_DRIVER_GH100_590.12" in fetched.rims
    assert fetched.ocsp_answers[0] == b"an answer"


def test_nvidias_verdict_is_fetched_for_the_nonce_of_the_reports(
    run: Run, shared: Path, tmp_path: Path
) -> None:
    verdict = vendor.Service().verdict({"GPU-0": vendor.device_claims()})
    asked: list[dict[str, Any]] = []

    class Nvidia(Handler):
        def do_GET(self) -> None:  # the name is the library's
            name = self.path.rpartition("/")[2]
            body = {"id": name, "rim": to_base64(b"a file"), "sha256": sha256_hex(b"a file")}
            rim = json.dumps(body).encode()
            self.answer(200, verdict.jwks.encode() if name == "jwks.json" else rim)

        def do_POST(self) -> None:  # the name is the library's
            body = self.body()
            if self.path.endswith("/v4/attest/gpu"):
                asked.append(json.loads(body))
                self.answer(200, verdict.token.encode())
            else:
                self.answer(200, b"an answer")

    file, out = shared / "vectors/nvidia/hopper_multi4_ppcie.json", tmp_path / "gpu.json"
    with http_served(Nvidia) as url:
        typed = ["fetch", "--gpu", file, "--out", out, "--rims", f"{url}/rim", "--ocsp", url]
        done = run(*typed, "--nras", url)
        assert done.code == 0, done.stderr
        assert GpuCollateral.load(out).nras == verdict
        assert run(*typed).code == 0
        assert GpuCollateral.load(out).nras is None
    [question] = asked
    shown = run("explain", file, "--json")
    assert question["nonce"] in shown.stdout


def test_the_policy_and_the_explanation_in_the_guide_are_what_one_writes_and_reads(
    run: Run, shared: Path, repository: Path, tmp_path: Path
) -> None:
    page = (repository / "docs/guides/attestation.md").read_text("utf-8")
    [example] = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "policy.yaml").write_text(example)
    [one] = [real for real in accepted(shared) if real.file == "nitro/prod_2022_pcr8.cose"]
    typed = [shared / "vectors" / one.file, "--at", one.time, "--policy"]
    refused = run("verify", *typed, tmp_path / "policy.yaml", "--json")
    assert refused.json["error"]["code"] == "measurement-mismatch"
    shown = run("explain", *typed, "preset:nitro").stdout
    [block] = re.findall(r"^```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL)

    def without_values(text: str) -> set[str]:
        return set(re.sub(r"[0-9a-f]{16}…[0-9a-f]{8}", "…", text).splitlines())

    assert without_values(block) <= without_values(shown)
