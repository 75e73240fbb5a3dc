"""Whatever bytes arrive, SEV-SNP code answers with a value or an error of its own tree."""

from __future__ import annotations

import struct

import pytest
from fuzzing import mutated
from hypothesis import given, settings
from hypothesis import strategies as st
from variants import examples

from sealtrain.attest.errors import EvidenceMalformed, QuoteInvalid
from sealtrain.attest.snp.collect import CERTIFICATE_GUIDS, distribution_addresses, parse_table
from sealtrain.attest.snp.parse import REPORT_BYTES, SIGNED_BYTES, parse_report, tcb_of
from sealtrain.attest.snp.policy import SnpPolicy
from sealtrain.attest.snp.verify import verify_report
from sealtrain.base.models import load_model
from sealtrain.errors import EvidenceRefused, TrustInvalid
from sealtrain_rehearsal.simulator.snp import SimulatedSnp

NOW = 1_800_000_000
GUEST = SimulatedSnp(b"property tests of snp")
REPORT = GUEST.report(bytes(range(64)), b'{"name":"fuzz"}')
CHAIN = GUEST.certificates()
bounded = settings(max_examples=examples(120), deadline=None)


@bounded
@given(raw=st.binary(max_size=1300) | mutated(REPORT) | mutated(REPORT, keep_length=True))
def test_a_report_parses_into_itself_or_is_refused(raw: bytes) -> None:
    try:
        report = parse_report(raw)
    except QuoteInvalid:
        return
    assert len(raw) == REPORT_BYTES
    assert report.raw == raw
    signature = report.r.to_bytes(72, "little") + report.s.to_bytes(72, "little")
    assert report.signed + signature + bytes(368) == raw
    assert len(report.signed) == SIGNED_BYTES
    for product in ("Milan", "Genoa", "Turin"):
        tcb = tcb_of(report.reported_tcb, product)
        assert tcb.below(tcb) == ()
        assert all(0 <= level <= 255 for level in tcb.parts().values())
    distribution_addresses(report)


@bounded
@given(raw=mutated(REPORT, keep_length=True))
def test_only_the_signed_bytes_verify(raw: bytes) -> None:
    try:
        found = verify_report(raw, CHAIN, simulator_root=GUEST.root_der, now=NOW)
    except EvidenceRefused:
        assert raw != REPORT
        return
    assert found.report.signed == REPORT[:SIGNED_BYTES]


@bounded
@given(index=st.integers(0, 1), data=st.data())
def test_no_mutated_chain_verifies(index: int, data: st.DataObject) -> None:
    chain = [*CHAIN]
    chain[index] = data.draw(mutated(CHAIN[index]) | st.binary(max_size=200))
    if chain[index] == CHAIN[index]:
        return
    with pytest.raises(EvidenceRefused):
        verify_report(REPORT, tuple(chain), simulator_root=GUEST.root_der, now=NOW)


ENTRY = st.builds(
    lambda guid, offset, length: guid.bytes + struct.pack("<II", offset, length),
    st.sampled_from([*CERTIFICATE_GUIDS.values()]) | st.uuids(),
    st.integers(0, 400) | st.integers(0, 0xFFFFFFFF),
    st.integers(0, 100) | st.integers(0, 0xFFFFFFFF),
)


@bounded
@given(
    raw=st.binary(max_size=400)
    | st.builds(
        lambda entries, body: b"".join(entries) + bytes(24) + body,
        st.lists(ENTRY, max_size=5),
        st.binary(max_size=300),
    )
)
def test_a_table_names_bytes_inside_itself_or_is_refused(raw: bytes) -> None:
    try:
        found = parse_table(raw)
    except EvidenceMalformed:
        return
    assert set(found) <= set(CERTIFICATE_GUIDS)
    for blob in found.values():
        assert blob
        assert blob in raw


@settings(max_examples=examples(50), deadline=None)
@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers(-5, 300) | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from([*SnpPolicy.model_fields, "Genoa", "snp"]) | st.text(max_size=4),
                inner,
                max_size=12,
            )
        ),
        max_leaves=20,
    )
)
def test_a_policy_is_whole_or_refused(value: object) -> None:
    try:
        policy = load_model(SnpPolicy, value, TrustInvalid, "appraisal policy")
    except TrustInvalid:
        return
    assert load_model(SnpPolicy, policy.to_dict(), TrustInvalid, "appraisal policy") == policy
