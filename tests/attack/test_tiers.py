"""A machine is never taken for more than its evidence proves (spec/evidence.md §6.1)."""

from __future__ import annotations

import copy
import html
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from machines_world import BARE, COMPOSE, MACHINES, MachinePark
from manifest_world import FINISHED, NOW, World, limits_of, make_world, with_receipts
from node_judges import node
from policies import intel
from second_evidence import EvidenceQuestion, own_code, second_codes
from second_verifier import Question, compare, own_answer, second_answers
from world import RECIPE

from sealtrain.attest.evidence import Evidence
from sealtrain.attest.guest import open_guest
from sealtrain.attest.open_values import open_values
from sealtrain.attest.policy import policy_from_dict
from sealtrain.attest.report_data import Binding
from sealtrain.base.tiers import TIER_OF_KIND, TIERS, WORDS, Tier
from sealtrain.errors import TrustInvalid
from sealtrain.manifest import form
from sealtrain.manifest.errors import ClaimContradicted
from sealtrain.manifest.limits import TEXTS, list_skipped, list_uncompared
from sealtrain.manifest.predicate import PREDICATE_TYPE, Predicate
from sealtrain.manifest.report import render
from sealtrain.manifest.trust import parse_trust
from sealtrain.owner.reviewing import describe_open as shown_open
from sealtrain.owner.reviewing import describe_tier, facts
from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.recipe.schema import parse_recipe
from sealtrain.signing import dsse, statement
from sealtrain_rehearsal.simulator.machine import Machine
from sealtrain_rehearsal.simulator.server import running
from sealtrain_rehearsal.simulator.state import ensure

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
NITRO = Machine(tee="nitro")
UNKNOWN = ("any", "hardware", "Processor", "", None, 1, ["processor"])
ABSENT = object()


def _named(tier: object) -> str:
    return "absent" if tier is ABSENT else repr(tier)


@pytest.fixture(scope="module")
def park(tmp_path_factory: pytest.TempPathFactory) -> MachinePark:
    return MachinePark(tmp_path_factory.mktemp("park"))


def with_tier(policy: dict[str, Any], tier: object) -> dict[str, Any]:
    kept = {name: value for name, value in policy.items() if name != "tier"}
    return kept if tier is ABSENT else {**kept, "tier": tier}


# --- Policies and recipes -----------------------------------------------------------------------


@pytest.mark.claim("C430")
@pytest.mark.parametrize("tier", [ABSENT, *UNKNOWN], ids=_named)
def test_a_policy_without_a_tier_or_with_an_unknown_one_is_refused(tier: object) -> None:
    with pytest.raises(TrustInvalid, check=carries(field="tier")):
        policy_from_dict(with_tier(intel(), tier))


@pytest.mark.claim("C430")
def test_the_second_verifier_refuses_the_same_trust_files(tmp_path: Path) -> None:
    trust = make_world(tmp_path / "world").trust_document()
    asked: list[object] = [*TIERS, ABSENT, *UNKNOWN]
    files = [trust | {"appraisal": with_tier(trust["appraisal"], tier)} for tier in asked]
    script = tmp_path / "trust.mjs"
    script.write_text(
        f'import {{ readTrust }} from "{(ROOT / "verify").as_uri()}/trust.js";\n'
        f"for (const file of {json.dumps(files)}) {{\n"
        "  let code = 'ok';\n"
        "  try { await readTrust(new TextEncoder().encode(JSON.stringify(file))); }\n"
        "  catch (error) { code = error.code ?? String(error); }\n"
        "  console.log(code);\n"
        "}\n"
    )
    done = subprocess.run(
        [node(), "--no-warnings", str(script)], check=True, capture_output=True, text=True
    )
    refused = len(asked) - len(TIERS)
    assert done.stdout.split() == ["ok"] * len(TIERS) + ["trust-invalid"] * refused


@pytest.mark.claim("C430")
@pytest.mark.parametrize("tier", [ABSENT, *UNKNOWN], ids=_named)
def test_a_recipe_without_a_tier_or_with_an_unknown_one_is_refused(tier: object) -> None:
    recipe = copy.deepcopy(RECIPE)
    recipe["hardware"] = with_tier(recipe["hardware"], tier)
    with pytest.raises(RecipeInvalid, check=carries(field="hardware.tier")):
        parse_recipe(recipe)


@pytest.mark.claim("C433")
@pytest.mark.parametrize("tier", TIERS)
def test_the_approval_page_says_in_plain_words_what_the_owner_accepts(
    tmp_path: Path, tier: Tier
) -> None:
    rehearsed = {**RECIPE["hardware"], "tier": tier}
    lock = make_world(tmp_path, {**RECIPE, "hardware": rehearsed}).locked.lock
    shown = dict(facts(lock, (), ()))
    assert tier in shown["you accept"]
    assert WORDS[tier] not in shown["you accept"]  # nothing is vouched for by a simulator
    both = {**rehearsed, "platforms": ["dstack", "simulator"], "key_provider": "local"}
    recipe = parse_recipe({**RECIPE, "hardware": {**both, "image": f"x@sha256:{'5a' * 32}"}})
    real = lock.model_copy(update={"recipe": recipe})
    assert f"tier {tier}: {WORDS[tier]}" in describe_tier(real)
    assert [label for label, _text in shown_open(real)] == ["LEFT OPEN"]


# --- Evidence -----------------------------------------------------------------------------------


@pytest.mark.claim("C431")
@pytest.mark.negative(77)
@pytest.mark.parametrize("name", BARE)
def test_both_verifiers_refuse_a_machine_below_the_lowest_tier(
    park: MachinePark, name: str
) -> None:
    document: Any = park.evidence(MACHINES[name]).to_dict()
    policy: Any = park.trust(MACHINES[name]).to_dict()
    asked = [
        EvidenceQuestion(label=tier, document=document, policy=with_tier(policy, tier))
        for tier in TIERS
    ]
    place = TIERS.index(TIER_OF_KIND[document["cpu"]["tee"]])
    expected = ["tier-refused"] * place + ["accepted"] * (len(TIERS) - place)
    assert [own_code(question) for question in asked] == expected
    assert second_codes(asked) == expected


@pytest.mark.claim("C431")
@pytest.mark.negative(77)
def test_evidence_of_a_weaker_kind_is_not_taken_as_a_stronger_kind(park: MachinePark) -> None:
    """A Nitro document in each place where a stronger kind has what its processor signed."""
    weak: Any = park.evidence(NITRO).to_dict()
    asked = []
    for name in BARE:
        if TIER_OF_KIND[MACHINES[name].tee] == TIER_OF_KIND["nitro"]:
            continue
        strong: Any = park.evidence(MACHINES[name]).to_dict()
        policy: Any = park.trust(MACHINES[name]).to_dict()
        field = "report" if name == "snp" else "quote"
        other = {**strong["cpu"], field: weak["cpu"]["document"]}
        documents = {
            "another name": {**weak, "cpu": {**weak["cpu"], "tee": name}},
            "as it is": weak,
            "its signature in another form": {**strong, "cpu": other},
            "a field more": {**weak, "cpu": {**weak["cpu"], "tier": "processor"}},
            "a tier of its own": {**weak, "tier": "processor"},
        }
        asked += [
            EvidenceQuestion(label=f"{name}: {label}", document=document, policy=policy)
            for label, document in documents.items()
        ]
    codes = [own_code(question) for question in asked]
    assert "accepted" not in codes
    assert second_codes(asked) == codes


# --- Open values --------------------------------------------------------------------------------


@pytest.mark.claim("C433")
def test_both_verifiers_name_the_same_open_values(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    appraisal = world.trust_document()["appraisal"]
    image = dict.fromkeys(("mrtd", "rtmr1", "rtmr2"), "ab" * 48)
    strict = {"platform_ids": ["cd" * 16], "max_collateral_age_s": 60, "key_provider": "30" * 16}
    logged = {"measurements": [{**image, "rtmr0": "log"}], "os_image_hash": "measured"}
    trusts = [
        world.trust(),
        world.trust(compose_hash="any", app_id="any"),
        world.trust(appraisal={**appraisal, "gpu": "any"}),
        world.trust(appraisal={**appraisal, "cpu": {**appraisal["cpu"], **strict, **logged}}),
    ]
    manifest = world.manifest()
    asked = [
        Question(label="open", manifest=manifest, trust=trust, artefacts=None, now=NOW)
        for trust in trusts
    ]
    for trust, answer in zip(trusts, second_answers(asked), strict=True):
        ours = list_skipped(trust, artefacts_checked=True)
        named = [f"Your trust file accepts any {pin['words']}." for pin in answer["open"]]
        assert tuple(named) == ours
        fields = [value.field for value in open_values(trust.appraisal)]
        pins = [name for name in ("compose_hash", "app_id") if getattr(trust, name) == "any"]
        assert [pin["field"] for pin in answer["open"]] == pins + fields


def claim(name: object, outcome: object = "any") -> dict[str, object]:
    return {"name": name, "got": "", "expected": "", "source": "", "outcome": outcome}


@pytest.mark.claim("C433")
def test_both_verifiers_name_what_brokers_did_not_compare(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    honest = [claim("guest image"), claim("machine"), claim("debug", "equal")]
    strange = [claim(name) for name in ("", "a" * 65, "<b>", "a\n", "\u202e", 7, None, [])]
    claims = [*honest, *strange, claim("tier", ["any"]), "any", None, {}]
    verdicts: list[dict[str, Any]] = [
        {"submods": {"cpu0": {"claims": claims}, "gpu0": {"claims": [claim("a device")]}}},
        {"submods": {"cpu0": {"claims": {"name": "any"}}, "gpu0": [honest], "gpus": None}},
        {"submods": [honest]},
        {"claims": honest},
        {},
    ]
    asked = []
    for verdict in verdicts:
        receipts = with_receipts(world, [world.receipt(verdict=verdict)])
        manifest, trust = world.manifest(receipts), world.trust()
        asked.append(
            Question(label="open", manifest=manifest, trust=trust, artefacts=None, now=NOW)
        )
    first, *others = second_answers(asked)
    assert first["released"] == ["a device", "guest image", "machine"]
    assert [other["released"] for other in others] == [[]] * len(others)
    assert [verdict["verdict"] for verdict in (first, *others)] == ["verified"] * len(asked)
    ours = [own_answer(question) for question in asked]
    found = [list_uncompared(report.facts.receipts or ()) for report in ours]
    assert found == [tuple(answer["released"]) for answer in (first, *others)]
    told = [any("guest image, machine" in limit for limit in report.limits) for report in ours]
    assert told == [True] + [False] * len(others)


@pytest.mark.claim("C432")
@pytest.mark.parametrize("name", BARE)
def test_a_guest_asks_its_platform_for_its_tier(tmp_path: Path, name: str) -> None:
    socket, compose, state = (
        tmp_path / name for name in ("guest.sock", "app-compose.json", "state")
    )
    compose.write_bytes(COMPOSE)
    with running(socket, compose, state, clock=lambda: FINISHED, machine=MACHINES[name]):
        uri = f"file:{state / 'collateral.json'}"
        guest = open_guest("simulator", str(socket), collateral=uri)
        assert guest.tier() == TIER_OF_KIND[MACHINES[name].tee]


# --- Manifests ----------------------------------------------------------------------------------


class NitroRun:
    """A run on a simulated Nitro enclave, whose tier is ``cloud``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        hardware = {**RECIPE["hardware"], "tier": "cloud"}
        self.world: World = make_world(folder / "world", {**RECIPE, "hardware": hardware})
        (folder / "app-compose.json").write_bytes(self.world.locked.compose_bytes)
        policy = ensure(folder / "state", FINISHED).policy(NITRO)
        self.trust = self.world.trust_document(appraisal=policy.to_dict())

    def evidence(self, binding: Binding) -> Evidence:
        socket, compose = self.folder / "guest.sock", self.folder / "app-compose.json"
        clocked = {"clock": lambda: FINISHED, "machine": NITRO}
        with running(socket, compose, self.folder / "state", **clocked):
            return open_guest("simulator", str(socket), collateral=None).evidence(binding)

    def predicate(self, change: Callable[[dict[str, Any]], object]) -> Predicate:
        facts = copy.deepcopy(self.world.facts)
        facts["deployment"]["tier"] = "cloud"
        facts["limits"] = limits_of(facts)
        change(facts)
        return Predicate.model_validate_json(json.dumps(facts))

    def manifest(self, change: Callable[[dict[str, Any]], object] = lambda facts: None) -> bytes:
        """The manifest as its own guest would sign and quote it, whatever it claims."""
        predicate, key = self.predicate(change), self.world.guest_key
        payload = statement.build(self.world.subjects, PREDICATE_TYPE, predicate.to_dict())
        promised = form.commitment(payload, key.public, predicate.run_log.head)
        evidence = self.evidence(Binding("manifest", promised))
        return form.write(
            dsse.sign(payload, statement.PAYLOAD_TYPE, key),
            dsse.sign(evidence.to_bytes(), form.EVIDENCE_PAYLOAD_TYPE, key),
            key.public,
        )

    def question(self, manifest: bytes, **trust: Any) -> Question:
        return Question(
            label="tier",
            manifest=manifest,
            trust=parse_trust(self.trust | trust),
            artefacts=self.world.artefacts,
            now=NOW,
        )

    def verdict(self, manifest: bytes, **trust: Any) -> str:
        """What both verifiers say of it."""
        comparison = compare([self.question(manifest, **trust)])
        assert comparison.disagreements == ()
        assert comparison.undecided.total() == 0
        ((verdict, _),) = comparison.verdicts.items()
        return verdict


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> NitroRun:
    return NitroRun(tmp_path_factory.mktemp("nitro"))


@pytest.fixture(scope="module")
def honest(run: NitroRun) -> bytes:
    return run.manifest()


def raising(tier: str) -> Callable[[dict[str, Any]], object]:
    def change(facts: dict[str, Any]) -> None:
        facts["deployment"]["tier"] = tier

    return change


@pytest.mark.claim("C432")
@pytest.mark.negative(77)
def test_the_honest_manifest_of_a_weak_machine_is_verified_and_says_so(
    run: NitroRun, honest: bytes
) -> None:
    assert run.verdict(honest) == "verified"
    stated = form.read(honest).predicate
    assert stated.deployment.tier == "cloud"
    assert "cloud-word" in {limit.id for limit in stated.limits}
    report = own_answer(run.question(honest))
    assert report.facts.verdict is not None
    assert report.facts.verdict.to_dict()["tier"] == "cloud"
    page = render(report)
    assert page.count(html.escape(f"cloud: {WORDS['cloud']}")) == 2  # in plain words, as evidence
    assert html.escape(TEXTS["cloud-word"]) in page


@pytest.mark.claim("C432")
@pytest.mark.negative(77)
@pytest.mark.parametrize("tier", [tier for tier in TIERS if tier != "cloud"])
def test_a_manifest_whose_tier_was_raised_is_refused(run: NitroRun, tier: str) -> None:
    assert run.verdict(run.manifest(raising(tier))) == "appraisal claim-contradicted"


@pytest.mark.claim("C432")
@pytest.mark.negative(77)
@pytest.mark.parametrize("tier", [tier for tier in TIERS if tier != "cloud"])
def test_a_manifest_of_a_machine_below_the_trust_files_tier_is_refused(
    run: NitroRun, honest: bytes, tier: str
) -> None:
    appraisal = run.trust["appraisal"] | {"tier": tier}
    assert run.verdict(honest, appraisal=appraisal) == "appraisal tier-refused"


@pytest.mark.claim("C432")
@pytest.mark.negative(77)
def test_a_manifest_that_conceals_what_its_tier_does_not_prove_is_refused(run: NitroRun) -> None:
    def conceal(facts: dict[str, Any]) -> None:
        facts["limits"] = [limit for limit in facts["limits"] if limit["id"] != "cloud-word"]

    assert run.verdict(run.manifest(conceal)) == "limits claim-contradicted"


@pytest.mark.claim("C432")
@pytest.mark.negative(77)
def test_a_run_on_a_machine_below_its_recipes_tier_is_refused(
    tmp_path: Path, run: NitroRun
) -> None:
    asking = NitroRun(tmp_path)
    asking.world = make_world(tmp_path / "processor")
    (tmp_path / "app-compose.json").write_bytes(asking.world.locked.compose_bytes)
    asking.trust = asking.world.trust_document(appraisal=asking.trust["appraisal"])
    assert asking.verdict(asking.manifest()) == "recipe claim-contradicted"


@pytest.mark.claim("C432")
@pytest.mark.negative(77)
def test_a_guest_writes_no_manifest_of_another_tier_than_its_evidence(run: NitroRun) -> None:
    with pytest.raises(ClaimContradicted, check=carries(check="tier")):
        run.world.manifest(raising("processor"), quote=run.evidence)
