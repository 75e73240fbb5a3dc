"""What processors' statements say, field by field, and what each field means."""

from __future__ import annotations

from collections.abc import Iterator

from sealtrain.attest.evidence import LogEntry
from sealtrain.attest.explain.field import Field, certificate_fields, time_of
from sealtrain.attest.nitro.parse import NitroDocument
from sealtrain.attest.snp.parse import SnpReport, tcb_of
from sealtrain.attest.tdx.parse import TdxQuote

__all__ = ["log_fields", "nitro_fields", "quote_fields", "snp_fields"]

_CPU = "cpu0"

_TD_REPORT = (
    # name, first byte, last byte, meaning
    ("TEE TCB SVN", 0, 16, "Security versions of the TDX module and its loader."),
    ("MRSEAM", 16, 64, "Measurement of the TDX module that runs below the guest."),
    ("MRSIGNERSEAM", 64, 112, "Who signed the TDX module; zeros are Intel."),
    ("SEAM attributes", 112, 120, "Properties of the TDX module; zeros in production."),
    ("TD attributes", 120, 128, "Properties of the guest; the lowest bit would be debug mode."),
    ("XFAM", 128, 136, "Processor features that the guest may use."),
    ("MRTD", 136, 184, "Measurement of the guest's firmware as it was loaded."),
    ("MRCONFIGID", 184, 232, "What the host configured: may name the deployment document."),
    ("MROWNER", 232, 280, "An owner's identity set by the host; nobody vouches for it."),
    ("MROWNERCONFIG", 280, 328, "An owner's configuration set by the host."),
    ("RTMR0", 328, 376, "Hash of what the firmware measured: machine shape and configuration."),
    ("RTMR1", 376, 424, "Hash of the measured kernel."),
    ("RTMR2", 424, 472, "Hash of the measured command line and initial file system."),
    ("RTMR3", 472, 520, "Hash of what the running system measured; dstack's event log."),
    ("REPORTDATA", 520, 584, "What the guest wanted quoted: its side of the conversation."),
    ("TEE TCB SVN 2", 584, 600, "Security versions of a TDX module updated while running."),
    ("MRSERVICETD", 600, 648, "Service guest that could migrate this one; zeros are none."),
)


def quote_fields(quote: TdxQuote) -> list[Field]:
    """Every field of a TDX quote but its signature."""
    version = int.from_bytes(quote.raw[:2], "little")
    start = 48 if version == 4 else 54
    size = 584 if version == 4 else int.from_bytes(quote.raw[50:54], "little")
    report = quote.raw[start : start + size]
    rows = [
        ("version", str(version), "Format of the quote."),
        ("attestation key", "ECDSA P-256", "Kind of key that signed the quote."),
        ("QE vendor", quote.raw[12:28].hex(), "Who made the quoting enclave; 939a… is Intel."),
        ("QE user data", quote.raw[28:48].hex(), "Data of the quoting enclave."),
        ("debug", _on(quote.debug), "On means that the host can read the guest's memory."),
    ]
    rows += [
        (name, report[first:last].hex(), meaning)
        for name, first, last, meaning in _TD_REPORT
        if last <= size
    ]
    rows.append(("identity", quote.identity, "SHA-256 of what the signature covers."))
    return [*_fields(rows), *certificate_fields(_CPU, quote.certificates)]


def log_fields(log: tuple[LogEntry, ...], part: str = _CPU) -> list[Field]:
    """Every event: firmware's counted, the running system's one by one."""
    found: list[Field] = []
    for register in range(3):
        count = sum(entry.imr == register for entry in log)
        if count:
            found.append(
                Field(
                    part=part,
                    name=f"events of RTMR{register}",
                    value=f"{count} digests",
                    meaning="What the firmware measured; only its digests are covered.",
                )
            )
    for entry in log:
        if entry.imr == 3:
            meaning = _EVENTS.get(entry.event, "An event of the app; counts for nothing here.")
            value = entry.event_payload or "(empty)"
            name = f"event {entry.event!r}"
            found.append(Field(part=part, name=name, value=value, meaning=meaning))
    return found


_EVENTS = {
    "system-preparing": "The system begins to measure itself.",
    "app-id": "Names the app; its keys hang on it.",
    "compose-hash": "SHA-256 of the deployment document.",
    "instance-id": "Names this one guest.",
    "boot-mr-done": "Measurements of the boot are complete.",
    "mr-kms": "Measurement of the key service that gave the keys.",
    "os-image-hash": "The OS image, as the key provider told the guest.",
    "key-provider": "Who gave the guest its keys: JSON with a name and an id.",
    "gpu-policy-hash": "SHA-256 of the rules for accelerators.",
    "storage-fs": "File system of the guest's disk.",
    "system-ready": "From here on the app measures; later events count for nothing.",
}

_PCRS = {
    0: "Measurement of the whole enclave image.",
    1: "Measurement of kernel and boot ramdisk.",
    2: "Measurement of the application.",
    3: "Hash of the parent's IAM role.",
    4: "Hash of the parent instance's id.",
    8: "Hash of the certificate that signed the image.",
    16: "sealtrain's enclaves: hash of the deployment document.",
}


def nitro_fields(document: NitroDocument) -> list[Field]:
    """Every field of a Nitro document but its signature."""
    rows = [
        ("module id", document.module_id, "Parent instance and enclave, as the module names them."),
        ("parent instance", document.parent_id, "The EC2 instance that the enclave runs beside."),
        ("enclave", document.enclave_id, "Which enclave of its parent."),
        ("made", time_of(document.timestamp_ms // 1000), "When the security module signed."),
        ("digest", "SHA384", "How registers are extended."),
    ]
    for index, value in document.pcrs.items():
        zero = not any(value)
        if zero and index not in (0, 1, 2):
            continue
        meaning = _PCRS.get(index, "A register that the enclave extended itself.")
        if zero:
            meaning = "Zeros: the enclave runs in debug mode and its parent reads its memory."
        rows.append((f"PCR{index}", value.hex(), meaning))
    unset = [str(index) for index, value in document.pcrs.items() if not any(value)]
    if unset:
        rows.append(("PCRs of zeros", ", ".join(unset), "Locked and never extended."))
    for name, data, meaning in (
        ("public key", document.public_key, "A key that the enclave wants answers encrypted to."),
        ("user data", document.user_data, "What the enclave wanted signed; report data in ours."),
        ("nonce", document.nonce, "What whoever asked wanted to find again."),
    ):
        rows.append((name, "none" if data is None else data.hex() or "(empty)", meaning))
    if document.unknown_fields:
        names = ", ".join(document.unknown_fields)
        rows.append(("unknown fields", names, "Signed, and not understood by this release."))
    rows.append(("identity", document.identity, "SHA-256 of what the signature covers."))
    chain = (document.certificate, *document.cabundle[::-1])
    return [*_fields(rows), *certificate_fields(_CPU, chain)]


def snp_fields(report: SnpReport, certificates: tuple[bytes, ...]) -> list[Field]:
    """Every field of a SEV-SNP report but its signature."""
    product = report.product or "Genoa"
    unsure = "" if report.product else " (read as before Turin: the report does not say)"
    rows = [
        ("version", str(report.version), "Format of the report."),
        ("guest SVN", str(report.guest_svn), "Security version that the guest's owner gave it."),
        ("policy", f"{report.policy:#x}", "What the guest lets its host do."),
        ("debug", _on(report.debug), "On means that the host may read the guest's memory."),
        ("migration", _on(report.migratable), "On means that an agent may move the guest."),
        ("SMT", _on(report.smt_allowed), "On means that a core's other thread may be anybody's."),
        ("family id", report.family_id, "Set by whoever launched the guest."),
        ("image id", report.image_id, "Set by whoever launched the guest."),
        ("VMPL", str(report.vmpl), "Privilege level that asked for the report; 0 is the highest."),
        ("platform info", f"{report.platform_info:#x}", "How the platform is set up, as bits."),
        ("platform flags", ", ".join(report.platform_flags) or "none", "The same in words."),
        ("author key", _on(report.author_key_enabled), "Whether an author key vouches for the id."),
        ("chip key masked", _on(report.chip_key_masked), "On means that no chip key signs."),
        ("signing key", report.signing_key, "vcek: one chip's; vlek: lent to a cloud."),
        ("REPORT_DATA", report.report_data.hex(), "The guest's side of the conversation."),
        ("MEASUREMENT", report.measurement, "Measurement of the launched image."),
        ("HOST_DATA", report.host_data.hex(), "Set at launch; ours: the deployment document."),
        ("ID key", report.id_key_digest, "Digest of the key that authorised the launch."),
        ("author key digest", report.author_key_digest, "Digest of the key above the ID key."),
        ("report id", report.report_id, "The firmware's number for this guest."),
        ("migration agent", report.report_id_ma, "Report id of the agent; all f is none."),
        ("current TCB", f"{tcb_of(report.current_tcb, product)}{unsure}", "What runs now."),
        ("reported TCB", f"{tcb_of(report.reported_tcb, product)}", "What the key stands for."),
        ("committed TCB", f"{tcb_of(report.committed_tcb, product)}", "What cannot be undone."),
        ("launch TCB", f"{tcb_of(report.launch_tcb, product)}", "What ran at the launch."),
        ("chip id", report.chip_id, "Which chip; zeros where its owner hides it."),
        ("firmware", report.current_firmware, "Version of the SEV firmware that runs."),
        ("committed firmware", report.committed_firmware, "Version that cannot be undone."),
    ]
    if report.cpuid is not None:
        family, model, stepping = report.cpuid
        number = f"family {family:#x} model {model:#x} stepping {stepping}"
        rows.append(("processor", f"{number}: {report.product or 'unknown'}", "Its generation."))
    if report.launch_mitigations is not None and report.current_mitigations is not None:
        launched, current = report.launch_mitigations, report.current_mitigations
        rows.append(("mitigations", f"{current:#x}", "Mitigations that are on now."))
        rows.append(("launch mitigations", f"{launched:#x}", "Mitigations on at the launch."))
    for when, value in zip(
        ("current", "launch", "committed"), report.extended_tcb or (), strict=False
    ):
        told = "Security versions of further firmware; their parts are the product's."
        rows.append((f"{when} extended TCB", value, told))
    rows.append(("identity", report.identity, "SHA-256 of what the signature covers."))
    return [*_fields(rows), *certificate_fields(_CPU, certificates)]


def _fields(rows: list[tuple[str, str, str]]) -> Iterator[Field]:
    for name, value, meaning in rows:
        yield Field(part=_CPU, name=name, value=value, meaning=meaning)


def _on(state: bool) -> str:
    return "on" if state else "off"
