// One NVIDIA accelerator: its certificate chain and its signed report (spec/evidence-nvidia.md).

import { Refusal, demand, digest, ecdsa, equal, fromBase64 } from "./bytes.js";
import { parseReport } from "./spdm.js";
import * as x509 from "./x509.js";

const ROOT = "102bf659d5419614c9d8e6aecebc80454eb26b1df6a769ac720b9a690b167b48";
const ARCHITECTURES = { GH: "HOPPER", GB: "BLACKWELL", LS: "LS10" };
const DICE = "2.23.133.5.4";
const COMPOSITE = `${DICE}.1`;
const TCB_INFO = `${DICE}.1.1`;
const SHA384 = "2.16.840.1.101.3.4.2.2";

const chain = (condition, message) => demand(condition, "certificate-chain-invalid", message);
const report = (condition, message) => demand(condition, "gpu-report-invalid", message);

/** Run what reads certificates; what it cannot read is refused as a chain. */
async function reading(judge) {
  try {
    return await judge();
  } catch (error) {
    if (!(error instanceof x509.BadDer || error instanceof TypeError)) throw error;
    throw new Refusal("certificate-chain-invalid", error.message);
  }
}

/**
 * Facts of a device whose report is signed by a key that the trusted root certifies for it.
 *
 * @param {object} shown One of the evidence's devices.
 * @param {Uint8Array|null} root DER of a simulator's root, null for NVIDIA's.
 * @param {number} now Seconds since the epoch.
 */
export async function verifyDevice(shown, root, now) {
  const parsed = await parseReport(fromBase64(shown.report));
  const found = await reading(() => verifyChain(shown.certificate_chain, root, now));
  const same = shown.architecture === found.architecture && shown.kind === parsed.kind;
  report(same, "evidence calls the device something else than its certificate and report do");
  const [leaf] = found.certificates;
  const holds = await ecdsa("P-384", "SHA-384", leaf.point, parsed.signature, parsed.signed);
  report(holds, "the report's signature does not hold under its certificate");
  const firmware = parsed.firmware === null || (found.firmware && equal(parsed.firmware, found.firmware));
  chain(firmware, "the report comes from other firmware than its certificate was made for");
  return { ...found, kind: parsed.kind, report: parsed };
}

async function verifyChain(pem, root, now) {
  const raw = x509.pemBytes(pem);
  chain(raw.length <= 5, "the chain has more than five certificates");
  await trustedRoot(raw[raw.length - 1], root);
  chain(raw.length === 5, `the chain has ${raw.length} certificates`);
  const certificates = raw.map(x509.certificate);
  const extensions = certificates.flatMap((one) => [...one.extensions.keys()]);
  const critical = extensions.filter((name) => name === DICE || name.startsWith(`${DICE}.`));
  await x509.checkPath([...certificates].reverse(), { now, critical });
  const [leaf, device] = certificates;
  chain(x509.powers(leaf).certifies === false, "the leaf may sign certificates");
  const [chip, named] = [chipOf(device), chipOf(leaf)];
  const architecture = ARCHITECTURES[chip.slice(0, 2)];
  chain(architecture && named === chip, "the certificates name no accelerator that is known");
  const serial = serialOf(device);
  const [, identity = ""] = /^(?:41|50)([0-9a-f]{16})$/.exec(serial) ?? [];
  return { certificates, architecture, ueid: serialOf(leaf), serial, identity, firmware: firmwareOf(leaf) };
}

async function trustedRoot(found, simulatorRoot) {
  if (simulatorRoot !== null) {
    demand(equal(found, simulatorRoot), "quote-root-untrusted", "another simulator's root");
  } else if ((await digest(found)) !== ROOT) {
    const { names } = x509.certificate(found);
    const simulated = names.some((name) => name.startsWith("SIMULATED"));
    demand(!simulated, "simulated-evidence", "a simulator where hardware is asked for");
    throw new Refusal("quote-root-untrusted", "not NVIDIA's root");
  }
}

function chipOf({ names }) {
  chain(names.length === 1, "a certificate does not name its device once");
  return names[0].replace(/^SIMULATED /, "").split(" ")[0];
}

function serialOf({ serialNumbers }) {
  const [written, ...more] = serialNumbers;
  const serial = written?.toLowerCase() ?? "";
  chain(more.length === 0 && /^[0-9a-f]{8,64}$/.test(serial), "a device's serial number is not hexadecimal");
  return serial;
}

/** Digest of the firmware that a leaf's key was made for, null where it names none. */
function firmwareOf(leaf) {
  const [composite, info] = [COMPOSITE, TCB_INFO].map((name) => leaf.extensions.get(name)?.value);
  chain(!(composite && info), "the leaf names two firmware ids");
  if (composite) {
    const tail = composite.subarray(-50);
    chain(tail.length === 50 && tail[0] === 4 && tail[1] === 48, "the firmware id is no SHA-384 digest");
    return tail.subarray(2);
  }
  if (!info) return null;
  const lists = x509.items(x509.der(info)).filter(({ tag }) => tag === 0xa6);
  chain(lists.length === 1, "the firmware id holds no list of digests");
  const [name, value, ...more] = x509.items(x509.items(lists[0], 0xa6)[0]);
  const known = more.length === 0 && x509.oid(name) === SHA384 && value?.tag === 4 && value.content.length === 48;
  chain(known, "the firmware id is no SHA-384 digest");
  return value.content;
}
