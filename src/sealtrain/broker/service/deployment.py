"""The broker's own deployment document: with it, owners pin the code that holds their keys."""

from __future__ import annotations

from sealtrain.base.canonical import canonical_json
from sealtrain.base.digests import sha256_hex
from sealtrain.base.version import VERSION

__all__ = ["broker_deployment"]


def broker_deployment(
    *,
    consortium_id: str,
    policy: bytes,
    image: str | None,
    key_provider_id: str,
    chain: bytes | None = None,
    database: bool = False,
) -> bytes:
    """``app-compose.json`` of a broker, canonical JSON (RFC 8785).

    The same inputs give the same bytes; their SHA-256 is the broker's compose hash.

    Args:
        consortium_id: The one consortium this broker serves.
        policy: Bytes of the appraisal policy file it applies to guests.
        image: Container image with a digest; ``None`` only for the simulator.
        key_provider_id: Pin of the KMS root in hex; empty when there is no KMS.
        chain: Bytes of the chain file of a contract it asks too; ``None`` for none.
        database: It keeps its memory in an outside database, whose administrator can withhold that
            memory, so the document that owners pin says so. The address is a secret.
    """
    command = [
        "sealtrain broker serve --consortium /etc/sealtrain/consortium.json",
        "--policy /etc/sealtrain/policy.yaml",
    ]
    pins = {"consortium_id": consortium_id, "policy_sha256": sha256_hex(policy)}
    if chain is not None:
        command.append("--chain /etc/sealtrain/chain.yaml")
        pins["chain_sha256"] = sha256_hex(chain)
    if database:
        command.append("--database file:/etc/sealtrain/database")
    document: dict[str, object] = {
        "manifest_version": 2,
        "name": "sealtrain-broker",
        "kms_enabled": bool(key_provider_id),
        "key_provider": "kms" if key_provider_id else "none",
        "key_provider_id": key_provider_id,
        "gateway_enabled": False,
        "local_key_provider_enabled": False,
        "public_logs": False,
        "public_sysinfo": False,
        "public_tcbinfo": True,
        "allowed_envs": [],
        "no_instance_id": False,
        "secure_time": True,
    }
    if image is None:
        script = [
            "# SIMULATED: runs nothing; a simulator measures this document.",
            f"# sealtrain {VERSION} {canonical_json(pins).decode()}",
            " ".join(command),
        ]
        document |= {"runner": "bash", "bash_script": "\n".join(script) + "\n"}
    else:
        compose = {
            "services": {
                "broker": {
                    "image": image,
                    "command": " ".join(command).split(),
                    "labels": pins,
                    "volumes": ["/var/run/dstack.sock:/var/run/dstack.sock", "state:/state"],
                }
            },
            "volumes": {"state": {}},
        }
        document |= {
            "runner": "docker-compose",
            "docker_compose_file": canonical_json(compose).decode(),
        }
    return canonical_json(document)
