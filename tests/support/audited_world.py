"""A release world whose leases are renewed and whose ledger is audited, by its entries alone."""

from __future__ import annotations

from release_world import ReleaseWorld

from sealtrain.base.canonical import canonical_json
from sealtrain.client.grant import Grant, renew
from sealtrain.ledger.audit import Auditor, AuditReport
from sealtrain.release.messages import ledger_origin


def renewed(world: ReleaseWorld, grant: Grant) -> Grant:
    return renew(world.wire, world.attest(), world.collect(world.guest()), grant)


def audited(world: ReleaseWorld) -> AuditReport:
    auditor = Auditor(
        world.consortium,
        world.keyring.signer.public,
        origin=ledger_origin(world.consortium.consortium_id),
    )
    for entry in world.ledger.entries():
        auditor.entry(canonical_json(entry))
    return auditor.finish()
