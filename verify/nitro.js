// The document of AWS Nitro Enclaves (spec/evidence-nitro.md).

import { Refusal, concat, demand, ecdsa, equal, fromBase64, fromHex, hex, sha256, sha384, utf8 } from "./bytes.js";
import { BadCbor, byteString, parseCbor } from "./cbor.js";
import * as shape from "./shape.js";
import * as x509 from "./x509.js";

const { literal, record } = shape;
const AWS_ROOT = "641a0321a3e244efe456463195d606317ed7cdcc3c1756e09893f3c68f79bb5b";
const ENCLAVE = { registers: "pcrs", module: /^(i-(?:[0-9a-f]{8,32}))-enc([0-9a-f]{16})$/, required: [0, 1, 2] };
/** What the documents of a NitroTPM have in place of those of enclaves. */
export const NITRO_TPM = {
  registers: "nitrotpm_pcrs",
  module: /^(i-(?:[0-9a-f]{8,32}))-tpm([0-9a-f]{16})$/,
  required: [],
};
const YEAR_10000 = 253_402_300_800_000;
const ZEROS = new Uint8Array(48);
const MAX_DOCUMENT = 16384;

const any = literal("any");
const register = (value) => shape.hex96(value) && !/^0+$/.test(value);
const anyOf = (item, max) => shape.either(any, shape.list(item, { max }));

const formOf = (tee) =>
  record({
    tee: literal(tee),
    document: (value) => value !== "" && (fromBase64(value)?.length ?? Infinity) <= MAX_DOCUMENT,
    app_compose: shape.compose,
  });
/** Evidence of a Nitro enclave. */
export const FORM = formOf("nitro");
/** Evidence of an enclave under a test root. */
export const TEST_FORM = formOf("test-nitro");

const image = record({ pcr0: register, pcr1: register, pcr2: register });

/** A policy's rules for Nitro enclaves. */
export const RULES = record({
  tee: literal("nitro"),
  images: anyOf(image, 1024),
  signers: anyOf(register, 256),
  parents: anyOf(shape.match(/^i-[0-9a-f]{8,32}$/), 4096),
  iam_roles: anyOf(register, 256),
  max_age_s: shape.integer(1, 10800),
  debug: literal("refuse"),
});

/** A policy's rules for an enclave under a test root; images are named. */
export const TEST_RULES = record({
  tee: literal("test-nitro"),
  images: shape.list(image, { max: 1024 }),
  max_age_s: shape.integer(1, 10800),
});

const isBytes = (value, min, max) => value instanceof Uint8Array && value.length >= min && value.length <= max;
const form = (condition, message) => demand(condition, "evidence-malformed", message);

function read(bytes) {
  try {
    return parseCbor(bytes);
  } catch (error) {
    if (error instanceof BadCbor) throw new Refusal("evidence-malformed", `document: ${error.message}`);
    throw error;
  }
}

/** The parts of a document in COSE_Sign1, before anything of it is verified. */
export function parseDocument(raw, kind = ENCLAVE) {
  const outer = read(raw[0] === 0xd2 ? raw.subarray(1) : raw);
  form(Array.isArray(outer) && outer.length === 4, "not an array of four");
  const [header, unprotected, payload, signature] = outer;
  form(isBytes(header, 1, 64), "no protected header");
  const algorithm = read(header);
  form(algorithm instanceof Map && algorithm.size === 1 && algorithm.get(1) === -35, "not signed by ES384");
  form(unprotected instanceof Map && unprotected.size === 0, "an unprotected header");
  form(payload instanceof Uint8Array, "no payload");
  form(isBytes(signature, 96, 96), "not a signature of 96 bytes");
  const halves = [signature.subarray(0, 48), signature.subarray(48)];
  form(halves.every((half) => !equal(half, ZEROS)), "a signature of zeros");
  const fields = read(payload);
  form(fields instanceof Map, "the payload is no map");
  form([...fields.keys()].every((key) => typeof key === "string"), "a key of the payload is no text");
  const identity = concat(new Uint8Array([0x84, 0x6a]), utf8("Signature1"), byteString(header), new Uint8Array([0x40]), byteString(payload));
  return { ...parsePayload(fields, kind), signature, signed: identity };
}

function parsePayload(fields, { registers, module, required }) {
  const moduleId = fields.get("module_id");
  const named = typeof moduleId === "string" ? module.exec(moduleId) : null;
  form(named, "module_id is malformed");
  const timestamp = fields.get("timestamp");
  form(Number.isSafeInteger(timestamp) && timestamp > 0 && timestamp < YEAR_10000, "timestamp is no time");
  form(fields.get("digest") === "SHA384", "another digest than SHA384");
  const pcrs = fields.get(registers);
  form(pcrs instanceof Map, "no registers");
  for (const [index, value] of pcrs) {
    form(Number.isSafeInteger(index) && index >= 0 && index <= 31 && isBytes(value, 48, 48), "a register is malformed");
  }
  form(required.every((index) => pcrs.has(index)), "PCR0, PCR1 or PCR2 is missing");
  const leaf = fields.get("certificate");
  const bundle = fields.get("cabundle");
  form(isBytes(leaf, 1, 1024), "certificate is malformed");
  form(Array.isArray(bundle) && bundle.length >= 1 && bundle.length <= 8, "cabundle is malformed");
  form(bundle.every((one) => isBytes(one, 1, 1024)), "cabundle is malformed");
  for (const name of ["public_key", "user_data", "nonce"]) {
    const value = fields.get(name) ?? null;
    form(value === null || isBytes(value, 0, 1024), `${name} is malformed`);
  }
  const userData = fields.get("user_data") ?? null;
  return { parent: named[1], timestamp, pcrs, leaf, bundle, userData };
}

async function trustedRoot(found, simulatorRoot) {
  if (simulatorRoot) {
    demand(equal(found, simulatorRoot), "quote-root-untrusted", "another simulator's root");
  } else if (hex(await sha256(found)) !== AWS_ROOT) {
    demand(!x509.callsItselfSimulated(found), "simulated-evidence", "a simulator where hardware is asked for");
    throw new Refusal("quote-root-untrusted", "not the root of AWS");
  }
}

async function chain({ bundle, leaf }, now) {
  try {
    const path = [...bundle, leaf].map(x509.certificate);
    await x509.checkPath(path, { now, constrained: true });
    return path.at(-1);
  } catch (error) {
    if (!(error instanceof x509.BadDer || error instanceof TypeError)) throw error;
    throw new Refusal("certificate-chain-invalid", error.message);
  }
}

/** A document whose chain and signature hold. */
export async function verifyDocument(raw, root, now, kind = ENCLAVE) {
  const document = parseDocument(raw, kind);
  await trustedRoot(document.bundle[0], root);
  const leaf = await chain(document, now);
  const holds = await ecdsa("P-384", "SHA-384", leaf.point, document.signature, document.signed);
  demand(holds, "quote-invalid", "the leaf did not sign the document");
  return document;
}

/** Facts that AWS signed about an enclave. */
export async function verify(cpu, { rules, root, now }) {
  const document = await verifyDocument(fromBase64(cpu.document), root, now);
  const at = document.timestamp / 1000;
  const fresh = now - rules.max_age_s <= at && at <= now + 60;
  demand(fresh, "evidence-stale", "the document was made at another time");
  const { pcrs, parent } = document;
  const measured = [0, 1, 2].every((index) => !equal(pcrs.get(index), ZEROS));
  demand(measured, "debug-guest", "the enclave runs in debug mode");
  const instance = pcrs.get(4) ?? ZEROS;
  const expected = await sha384(ZEROS, utf8(parent));
  demand(equal(instance, ZEROS) || equal(instance, expected), "measurement-mismatch", "PCR4 is not of the module's instance");
  const shown = await sha256(utf8(cpu.app_compose));
  const named = pcrs.has(16) && equal(pcrs.get(16), await sha384(ZEROS, shown));
  demand(named, "compose-hash-mismatch", "PCR16 is of another deployment document");
  demand(document.userData?.length === 64, "report-data-mismatch", "user data is not report data");
  const composeHash = hex(shown);
  return {
    document,
    simulated: Boolean(root),
    reportData: document.userData,
    composeHash,
    appId: composeHash.slice(0, 40),
    keyProvider: "",
  };
}

/** Facts that a test root signed about an enclave; never under a root of hardware. */
export async function verifyTest(cpu, given) {
  demand(given.root !== null, "simulated-evidence", "evidence under a test root");
  return verify(cpu, given);
}

/** The rules of a policy for an enclave under a test root. */
export const appraiseTest = ({ document }, rules) => appraiseImage(document, rules);

function appraiseImage({ pcrs }, rules) {
  const measured = (image) => [0, 1, 2].every((index) => image[`pcr${index}`] === hex(pcrs.get(index)));
  demand(rules.images === "any" || rules.images.some(measured), "measurement-mismatch", "another image");
}

/** The rules of a policy for an enclave whose document verified. */
export function appraise({ document }, rules) {
  const { pcrs, parent } = document;
  const value = (index) => (pcrs.has(index) ? hex(pcrs.get(index)) : null);
  appraiseImage(document, rules);
  const signer = rules.signers === "any" || rules.signers.includes(value(8));
  demand(signer, "measurement-mismatch", "an image of another signer");
  const instance = pcrs.has(4) && !equal(pcrs.get(4), ZEROS) && rules.parents.includes(parent);
  demand(rules.parents === "any" || instance, "platform-mismatch", "another parent instance");
  const role = rules.iam_roles === "any" || rules.iam_roles.includes(value(3));
  demand(role, "platform-mismatch", "another role of the parent");
}

