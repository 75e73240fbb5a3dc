"""Verifications of evidence per second on one core; a machine of eight GPUs in milliseconds.

    python benchmarks/attest.py [--json] [--rounds 60] [--shared DIR]

Each figure is from what was received to a verdict (``verify`` and ``appraise``), unless it says
otherwise. What a verifier remembers between evidence makes most of the difference, so each says
what it has seen before:

===================  ===============================================================================
``tdx_dstack``       dstack guest: quote, event log, document. New quote, machine known
``tdx_quote``        the quote alone (``verify_quote``). New quote, machine known
``tdx_library``      what dcap_qvl alone takes of it, the rest of us left out
``tdx_dstack_cold``  as ``tdx_dstack``, nothing seen before
``gcp``              dstack guest on Google Cloud: a TDX quote, a vTPM's, a log of 200 events
``nitro``            new document of an enclave whose certificates are known
``nitro_new_leaf``   the first document of an enclave, its parent's certificates known
``nitro_cold``       nothing seen before
``snp``              new report of a chip whose certificate is known
``snp_new_leaf``     the first report of a chip, AMD's own certificates known
``snp_cold``         nothing seen before
``gpu``              one GPU's report and chain (``verify_device``). New report, device known
``gpu_new_device``   the first report of a GPU, NVIDIA's own certificates known
``gpu_cold``         nothing seen before
``set``              8 GPUs, 4 switches, reference values, OCSP answers and a dstack guest, from the
                     bytes of the document. New conversation, machine known
``set_new_machine``  the same, none of its devices seen before; firmware and vendor known
``set_cold``         nothing seen before
===================  ===============================================================================

Simulated evidence goes through the verifiers of hardware; where third-party vectors are at hand
(``SEALTRAIN_SHARED``), evidence of real machines is timed, too, over and over (``real_…``), and
``real_…_cold`` with nothing seen before; ``real_snp_new_leaf`` with AMD's own certificates known.

Times are processor time of this process, one thread, median of the rounds; ``floor`` is the fastest
round, what a machine gives that does nothing else; ``wall`` is by the clock.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import dcap_qvl

from attest_real import evidence_of_machines
from measured_on import machine
from sealtrain.attest.appraise import appraise
from sealtrain.attest.evidence import Evidence
from sealtrain.attest.nvidia.device import verify_device
from sealtrain.attest.nvidia.parse import GpuDevice
from sealtrain.attest.policy import AppraisalPolicy
from sealtrain.attest.presets import insecure_simulator_policy
from sealtrain.attest.report_data import Binding
from sealtrain.attest.snp.chain import _endorsement
from sealtrain.attest.tdx.verify import verify_quote
from sealtrain.attest.verify import verify
from sealtrain.base.encoding import to_base64
from sealtrain.base.secret import Secret
from sealtrain_rehearsal.simulator.cloud_guests import cloud_driver
from sealtrain_rehearsal.simulator.gpu import SimulatedGpus
from sealtrain_rehearsal.simulator.gpu_collateral import simulate_collateral
from sealtrain_rehearsal.simulator.guest import SimulatedGuest
from sealtrain_rehearsal.simulator.machine import Machine
from sealtrain_rehearsal.simulator.nitro import SimulatedNitroPki, SimulatedNsm
from sealtrain_rehearsal.simulator.pki import SimulatedPki
from sealtrain_rehearsal.simulator.snp import SimulatedSnp
from sealtrain_rehearsal.simulator.state import SimulatorState

REPOSITORY = Path(__file__).resolve().parents[1]
NOW = 1_800_000_000
SEED = hashlib.sha256(b"benchmarks/attest").digest()
COMPOSE = b'{"name": "benchmark"}\n'
COMPOSE_HASH = hashlib.sha256(COMPOSE).hexdigest()
RATES = {
    "tdx_dstack": 1000,
    "tdx_quote": 1000,
    "gcp": 250,
    "nitro": 250,
    "nitro_new_leaf": 250,
    "snp": 800,
    "snp_new_leaf": 400,
    "gpu": 300,
    "gpu_new_device": 300,
    "real_snp_new_leaf": 800,
}
"""At least so many a second; those of real evidence where it is at hand.

A simulated chip's first report costs two verifications with P-384 where a later one costs one: its
rate is at most half. AMD's authorities sign with RSA-4096, whose verification takes a seventh.
"""
MILLISECONDS = {"set": 60.0, "set_new_machine": 60.0}
"""At most so long."""
SET_ROUNDS = 12
LOG_EVENTS = 200
"""Of a dstack guest on Google Cloud: dstack's own and its app's."""

Work = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """Something to time: different evidence each time, prepared before the clock runs."""

    works: list[Work]
    cold: Callable[[], None] | None = None
    """Called before each, untimed: what makes a verifier forget."""


def forget() -> None:
    """Empty every cache of the verifiers."""
    for name, module in list(sys.modules.items()):
        if name.startswith("sealtrain.attest"):
            for value in vars(module).values():
                clear = None if isinstance(value, type) else getattr(value, "cache_clear", None)
                if callable(clear):
                    clear()


def timed(case: Case, warm: Iterable[Work] = ()) -> dict[str, float]:
    """Median milliseconds of a case after ``warm``."""
    forget()
    for work in warm:
        work()
    spent, passed = [], []
    for work in case.works:
        if case.cold is not None:
            case.cold()
        begin, wall = time.process_time_ns(), time.perf_counter_ns()
        work()
        spent.append(time.process_time_ns() - begin)
        passed.append(time.perf_counter_ns() - wall)
    cpu = statistics.median(spent) / 1e6
    return {
        "ms": round(cpu, 3),
        "per_second": round(1000 / cpu, 1),
        "wall_ms": round(statistics.median(passed) / 1e6, 3),
        "floor_ms": round(min(spent) / 1e6, 3),
    }


def half(rounds: int) -> int:
    """Rounds of a case that remembers nothing, and so takes longer; at least one."""
    return max(1, rounds // 2)


def judge(evidence: Evidence, policy: AppraisalPolicy, binding: Binding) -> object:
    """Verify and appraise."""
    facts = verify(evidence, policy, NOW, binding=binding)
    return appraise(facts, policy, binding=binding, compose_hash=COMPOSE_HASH, app_id=None)


def conversations(count: int, label: str = "release") -> Iterator[Binding]:
    """Bindings of as many challenges."""
    return (Binding("release", {"challenge": f"{label} {number}"}) for number in range(count))


def simulated(rounds: int) -> dict[str, dict[str, float]]:
    """Every case on the simulator's evidence."""
    timers = (_tdx, _gcp, _nitro, _snp, _gpu)
    return {name: found for timer in timers for name, found in timer(rounds).items()} | _set()


def _tdx(rounds: int) -> dict[str, dict[str, float]]:
    pki = SimulatedPki(SEED)
    guest = SimulatedGuest(pki, Secret(SEED), COMPOSE)
    collateral = pki.collateral(NOW)
    policy = insecure_simulator_policy(pki.root_der)

    def whole(binding: Binding) -> Work:
        return partial(judge, guest.evidence(binding, collateral=collateral), policy, binding)

    def alone(binding: Binding) -> partial[object]:
        evidence = guest.evidence(binding, collateral=None)
        quote = evidence.cpu.quote_bytes  # type: ignore[union-attr]  # of a dstack guest
        return partial(
            verify_quote,
            quote,
            collateral,
            policy.cpu,  # type: ignore[arg-type]  # of a dstack guest
            simulator_root=pki.root_der,
            now=NOW,
        )

    def library(binding: Binding) -> Work:
        quote = alone(binding).args[0]
        document = dcap_qvl.QuoteCollateralV3.from_json(json.dumps(collateral.to_dict()))
        rules = dcap_qvl.QuotePolicy.strict(NOW).allow_dynamic_platform(True)
        rules = rules.allow_cached_keys(True).allow_smt(True)
        return partial(
            dcap_qvl.QuoteVerifier(pki.root_der).verify_with_policy, quote, document, NOW, rules
        )

    first = [whole(binding) for binding in conversations(3, "warm")]
    works = [whole(binding) for binding in conversations(rounds)]
    return {
        "tdx_dstack": timed(Case(works), first),
        "tdx_quote": timed(
            Case([alone(conversation) for conversation in conversations(rounds)]), first
        ),
        "tdx_library": timed(
            Case([library(conversation) for conversation in conversations(rounds)]), first
        ),
        "tdx_dstack_cold": timed(Case(works[: half(rounds)], cold=forget)),
    }


def _gcp(rounds: int) -> dict[str, dict[str, float]]:
    pki = SimulatedPki(SEED)
    guest = SimulatedGuest(pki, Secret(SEED), COMPOSE, emit_events=True)
    while len(guest.event_log()) < LOG_EVENTS:
        guest.emit("benchmark", len(guest.event_log()).to_bytes(2, "big"))
    collateral = pki.collateral(NOW)
    policy = insecure_simulator_policy(pki.root_der, tee="dstack-gcp-tdx")
    played = SimulatorState(folder=Path(), seed=Secret(SEED), pki=pki)
    shown = cloud_driver(Machine(tee="dstack-gcp-tdx"), played, guest, clock=lambda: NOW)
    if shown is None:
        raise RuntimeError("the simulator plays no such machine")

    def quotes(binding: Binding) -> Work:
        evidence = Evidence.build(
            "simulator",
            app_compose=COMPOSE,
            collateral=collateral,
            **shown(binding.report_data()),
        )
        return partial(judge, evidence, policy, binding)

    first = [quotes(binding) for binding in conversations(3, "warm")]
    return {"gcp": timed(Case([quotes(binding) for binding in conversations(rounds)]), first)}


def _nitro(rounds: int) -> dict[str, dict[str, float]]:
    pki = SimulatedNitroPki(SEED)
    policy = insecure_simulator_policy(pki.root_der, tee="nitro")

    def document(binding: Binding, enclave: int) -> Work:
        from sealtrain.attest.nitro.collect import attestation, measure_compose

        nsm = SimulatedNsm(pki, clock=lambda: NOW, enclave=f"{enclave:016x}")
        measure_compose(nsm, COMPOSE)
        signed = attestation(nsm, user_data=binding.report_data())
        evidence = Evidence.build(
            "simulator", app_compose=COMPOSE, tee="nitro", document=to_base64(signed)
        )
        return partial(judge, evidence, policy, binding)

    first = [document(binding, 0) for binding in conversations(3, "warm")]
    known = [document(binding, 0) for binding in conversations(rounds)]
    new = [document(binding, at + 1) for at, binding in enumerate(conversations(rounds))]
    return {
        "nitro": timed(Case(known), first),
        "nitro_new_leaf": timed(Case(new), first),
        "nitro_cold": timed(Case(known[: half(rounds)], cold=forget)),
    }


def _snp(rounds: int) -> dict[str, dict[str, float]]:
    guest = SimulatedSnp(SEED)
    policy = insecure_simulator_policy(guest.root_der, tee="snp")

    def report(binding: Binding, chip: int) -> Work:
        identity = hashlib.sha512(chip.to_bytes(8, "big")).digest()
        guest._sound = replace(guest._sound, certified_chip=identity, shown_chip=identity)
        shown = guest.show(binding.report_data(), COMPOSE, now=NOW)
        evidence = Evidence.build("simulator", app_compose=COMPOSE, **shown)
        return partial(judge, evidence, policy, binding)

    first = [report(binding, 0) for binding in conversations(3, "warm")]
    known = [report(binding, 0) for binding in conversations(rounds)]
    new = [report(binding, at + 1) for at, binding in enumerate(conversations(rounds))]
    return {
        "snp": timed(Case(known), first),
        "snp_new_leaf": timed(Case(new), first),
        "snp_cold": timed(Case(known[: half(rounds)], cold=forget)),
    }


def _gpu(rounds: int) -> dict[str, dict[str, float]]:
    many = min(rounds, 31)
    gpus = SimulatedGpus(SEED, count=many + 1, mode="mpt")
    root = gpus.root_der

    def device(shown: GpuDevice) -> Work:
        return partial(verify_device, shown, simulator_root=root, now=NOW)

    one = SimulatedGpus(SEED, count=1)
    asked = [binding.gpu_nonce() for binding in conversations(rounds)]
    known = [device(one.evidence(nonce).devices[0]) for nonce in asked]
    shown = gpus.evidence(asked[0]).devices
    return {
        "gpu": timed(Case(known), known[:1]),
        "gpu_new_device": timed(Case([device(each) for each in shown[1:]]), [device(shown[0])]),
        "gpu_cold": timed(Case(known[: half(rounds)], cold=forget)),
    }


def _set() -> dict[str, dict[str, float]]:
    pki = SimulatedPki(SEED)
    guest = SimulatedGuest(pki, Secret(SEED), COMPOSE)
    collateral = pki.collateral(NOW)
    first = _machine(0)
    published = simulate_collateral(first, NOW)
    gpu_policy = first.policy(revocation="require")
    policy = insecure_simulator_policy(pki.root_der, gpu=gpu_policy)

    def received(binding: Binding, number: int) -> Work:
        machine = first if number == 0 else _machine(number)
        accelerators = machine.evidence(binding.gpu_nonce())
        asked = binding.report_data(accelerators.digest)
        # Answers about a machine's own certificates are new, the vendor's files are the same.
        answers = published if number == 0 else simulate_collateral(machine, NOW)
        parts = {
            "gpu": accelerators,
            "gpu_collateral": published.model_copy(update={"ocsp": answers.ocsp}),
        }
        evidence = guest.evidence(asked, collateral=collateral).model_copy(update=parts)
        data = evidence.to_bytes()
        return lambda: judge(Evidence.from_bytes(data), policy, binding)

    warm = [received(binding, 0) for binding in conversations(2, "warm")]
    known = [received(binding, 0) for binding in conversations(SET_ROUNDS)]
    new = [
        received(conversation, at + 1)
        for at, conversation in enumerate(conversations(SET_ROUNDS, "new"))
    ]
    return {
        "set": timed(Case(known), warm),
        "set_new_machine": timed(Case(new), warm),
        "set_cold": timed(Case(known, cold=forget)),
    }


def _machine(number: int) -> SimulatedGpus:
    """Eight GPUs and four switches of one vendor, others for each number."""
    gpus = SimulatedGpus(SEED, count=8, switches=4, mode="protected_pcie")
    gpus.gpu_devices = tuple(gpus.pki.device("GH100", 8 * number + at) for at in range(8))
    gpus.switch_devices = tuple(gpus.pki.device("LS_10", 4 * number + at) for at in range(4))
    return gpus


def real(vectors: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Evidence of real machines: again and again, and with nothing seen before."""
    found: dict[str, dict[str, float]] = {}
    for name, work in evidence_of_machines(vectors).items():
        found[f"real_{name}"] = timed(Case([work] * rounds), [work])
        if name == "snp":
            leaf = Case([work] * rounds, cold=_endorsement.cache_clear)
            found["real_snp_new_leaf"] = timed(leaf, [work])
        found[f"real_{name}_cold"] = timed(Case([work] * (rounds // 4 + 1), cold=forget))
    return found


def missed(measured: dict[str, dict[str, float]]) -> list[str]:
    """Names of the figures that miss their target."""
    slow = [
        name
        for name, least in RATES.items()
        if name in measured and measured[name]["per_second"] < least
    ]
    return slow + [name for name, most in MILLISECONDS.items() if measured[name]["ms"] > most]


def main() -> None:
    """Measure everything and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument(
        "--shared",
        type=Path,
        default=Path(os.environ.get("SEALTRAIN_SHARED", REPOSITORY.parent / "shared")),
        help="folder of third-party vectors",
    )
    given = parser.parse_args()
    began = time.monotonic()
    measured = simulated(given.rounds)
    vectors = given.shared / "vectors"
    if vectors.is_dir():
        measured |= real(vectors, given.rounds)
    results = {
        "machine": machine("cryptography", "dcap-qvl", "signxml", "lxml"),
        "rounds": given.rounds,
        "seconds": round(time.monotonic() - began, 1),
        "figures": measured,
        "targets": {"per_second": RATES, "ms": MILLISECONDS},
        "missed": missed(measured),
    }
    if given.json:
        print(json.dumps(results, indent=2))
        return
    print(f"{results['machine']}\n")
    for name, figure in measured.items():
        target = f"at least {RATES[name]}/s" if name in RATES else ""
        target = f"at most {MILLISECONDS[name]:.0f} ms" if name in MILLISECONDS else target
        words = (
            f"{name:22}{figure['per_second']:9.1f}/s{figure['ms']:10.3f} ms",
            f"floor {figure['floor_ms']:8.3f}",
            f"wall {figure['wall_ms']:8.3f}",
            target,
        )
        print("   ".join(words).rstrip())
    if not vectors.is_dir():
        print(f"no third-party vectors at {given.shared}: only simulated evidence was timed")


if __name__ == "__main__":
    main()
