// The report of AMD SEV-SNP (spec/evidence-snp.md).

import { Refusal, demand, ecdsa, equal, fromBase64, hex, sha256, u32le, utf8 } from "./bytes.js";
import { Malformed, parseJson } from "./json.js";
import * as shape from "./shape.js";
import * as x509 from "./x509.js";

const { either, list, literal, nullable, record } = shape;
const SIGNED = 0x2a0;
const AMD = "1.3.6.1.4.1.3704.1";
const ROOTS = {
  "69d063b45344d26a2e94e1f4210de49ef555308287d4c174445c95639a540bcd": "Milan",
  "4c6598d19c18719c5dfd4a7d335f674e5bfe1d8f800cea2cf270c10d103db2f1": "Genoa",
  "1f084161a44bb6d93778a904877d4819cafa5d05ef4193b2ded9dd9c73dd3f6a": "Turin",
};
const any = literal("any");


/** Fields of evidence that holds a report. */
export const REPORT = {
  report: shape.encoded(1184),
  certificates: list(shape.encoded(8192), { min: 3, max: 3 }),
  crl: nullable(shape.encoded(65536)),
  app_compose: shape.compose,
};

/** Evidence of an SEV-SNP guest. */
export const FORM = record({ tee: literal("snp"), ...REPORT });

/** Evidence of a dstack guest on SEV-SNP. */
export const DSTACK_FORM = record({
  tee: literal("dstack-amd-sev-snp"),
  ...REPORT,
  mr_config: (value) => shape.string(value) && value.length >= 2 && [...value].length <= 65536,
});

const PRODUCTS = ["Genoa", "Turin", "InsecureMilan"];
const FLAGS = {
  smt: 0,
  tsme: 1,
  ecc: 2,
  rapl_disabled: 3,
  ciphertext_hiding: 4,
  alias_check_complete: 5,
  tio: 7,
};
const LEVEL = shape.integer(0, 255);
const LEVELS = { bootloader: LEVEL, tee: LEVEL, snp: LEVEL, microcode: LEVEL };
const UNUSED = { fmc: (value) => value === null };
const FLOOR = {
  Genoa: record(LEVELS, UNUSED),
  InsecureMilan: record(LEVELS, UNUSED),
  Turin: record({ ...LEVELS, fmc: LEVEL }),
};
const filled = (form) => (value) => form(value) && !/^0+$/.test(value);
const RULES_FIELDS = {
  products: list(literal(...PRODUCTS), { min: 1, max: 3 }),
  signing_keys: list(literal("vcek", "vlek"), { min: 1, max: 2 }),
  measurements: either(any, list(shape.hex96, { max: 1024 })),
  minimum_tcb: shape.anyObject,
  mitigations: either(any, shape.anyObject),
  extended_tcb: either(any, list(shape.hex64, { max: 256 })),
  platform_flags: either(any, list(literal(...Object.keys(FLAGS)), { min: 1, max: 7 })),
  chip_ids: either(any, list(filled(shape.match(/^[0-9a-f]{128}$/)), { max: 4096 })),
  vmpl: either(any, shape.integer(0, 3)),
  debug: literal("refuse"),
  migration: literal("refuse"),
  smt: literal("any", "refuse"),
  id_keys: either(any, list(filled(shape.hex96), { max: 1024 })),
  revocation: literal("any", "require"),
};
const namesExactly = (value, names) => Object.keys(value).sort().join() === [...names].sort().join();

/** A policy's rules for guests of another kind that show a report. */
export function rulesOf(tee, further) {
  const form = record({ tee: literal(tee), ...RULES_FIELDS, ...further });
  return (value) => form(value) && consistent(value);
}

/** A policy's rules for SEV-SNP guests. */
export const RULES = rulesOf("snp");

/** A policy's rules for dstack guests on SEV-SNP. */
export const DSTACK_RULES = rulesOf("dstack-amd-sev-snp", {
  key_provider: either(any, shape.match(/^(?:[0-9a-f]{2}){16,1024}$/)),
});

function consistent(value) {
  const { products, minimum_tcb: floors, mitigations } = value;
  return (
    new Set(products).size === products.length &&
    namesExactly(floors, products) &&
    products.every((product) => FLOOR[product](floors[product])) &&
    (mitigations === "any" ||
      Object.keys(mitigations).length === 0 ||
      (namesExactly(mitigations, products) && Object.values(mitigations).every(shape.match(/^[0-9a-f]{16}$/))))
  );
}

const form = (condition, message) => demand(condition, "quote-invalid", message);
const ones = (bytes) => bytes.every((byte) => byte === 0xff);
const zeros = (bytes) => bytes.every((byte) => byte === 0);

/** The fields of a report in its one layout; nothing of it is verified. */
export function parseReport(raw) {
  form(raw.length === 1184, "another length than a report");
  const version = u32le(raw, 0);
  form(version >= 2 && version <= 6, "unknown version");
  form(u32le(raw, 0x34) === 1, "unknown algorithm");
  const keyInfo = u32le(raw, 0x48);
  const signer = (keyInfo >> 2) & 7;
  form(signer <= 1, "unknown signing key");
  const vmpl = u32le(raw, 0x30);
  form(vmpl <= 3, "not a report that the guest asked for");
  const policy = u32le(raw, 8);
  form(Boolean(policy & 0x20000), "policy bit 17 is clear");
  form(zeros(raw.subarray(0x330)), "bytes behind the signature");
  const field = (at, size) => raw.subarray(at, at + size);
  return {
    version,
    policy,
    vmpl,
    signer: signer === 0 ? "vcek" : "vlek",
    authorKey: Boolean(keyInfo & 1),
    flags: raw[0x40],
    reportData: field(0x50, 64),
    measurement: hex(field(0x90, 48)),
    hostData: field(0xc0, 32),
    idKey: hex(field(0xe0, 48)),
    authorKeyDigest: hex(field(0x110, 48)),
    migrationAgent: field(0x160, 32),
    tcb: { reported: field(0x180, 8), committed: field(0x1e0, 8), launch: field(0x1f0, 8) },
    cpu: version >= 3 ? { family: raw[0x188], model: raw[0x189] } : null,
    chipId: field(0x1a0, 64),
    mitigations: version >= 5 ? [field(0x1f8, 8), field(0x200, 8)] : null,
    extended: version >= 6 ? [0x220, 0x240, 0x260].map((at) => hex(field(at, 32))) : null,
    signed: raw.subarray(0, SIGNED),
    signature: rawSignature(field(0x2a0, 72), field(0x2e8, 72)),
  };
}

/** `r ‖ s`, big endian, of two little-endian numbers of 72 bytes; null where one is too large. */
function rawSignature(r, s) {
  if (!zeros(r.subarray(48)) || !zeros(s.subarray(48))) return null;
  const result = new Uint8Array(96);
  result.set(r.slice(0, 48).reverse(), 0);
  result.set(s.slice(0, 48).reverse(), 48);
  return result;
}

function levels(bytes, product) {
  if (product === "Turin") {
    const [fmc, bootloader, tee, snp, , , , microcode] = bytes;
    return { fmc, bootloader, tee, snp, microcode };
  }
  const [bootloader, tee, , , , , snp, microcode] = bytes;
  return { bootloader, tee, snp, microcode };
}

async function trustedRoot(found, simulatorRoot) {
  if (simulatorRoot) {
    demand(equal(found, simulatorRoot), "quote-root-untrusted", "another simulator's root");
  } else if (!Object.hasOwn(ROOTS, hex(await sha256(found)))) {
    demand(!x509.callsItselfSimulated(found), "simulated-evidence", "a simulator where hardware is asked for");
    throw new Refusal("quote-root-untrusted", "not a root of AMD");
  }
}

const chain = (condition, message) => demand(condition, "certificate-chain-invalid", message);
const KNOWN_CRITICAL = ["2.5.29.19", "2.5.29.15"];

async function checkChain(certificates, now, simulated) {
  const [leaf, issuer, root] = certificates;
  for (const one of certificates) {
    for (const [name, { critical }] of one.extensions) {
      chain(!critical || KNOWN_CRITICAL.includes(name), "an unknown critical extension");
    }
    chain(one.start <= now && now <= one.end, "a certificate is not valid at that time");
  }
  for (const authority of [issuer, root]) {
    const { authority: isOne, certifies } = x509.powers(authority);
    chain(isOne && certifies !== false, "an issuer may not sign certificates");
    chain(simulated || authority.rsaBits === 4096, "an issuer's key is not RSA-4096");
  }
  chain(!x509.powers(leaf).authority && leaf.curve === "P-384", "the leaf is an authority, or not on P-384");
  for (const [one, by] of [[root, root], [issuer, root], [leaf, issuer]]) {
    chain(equal(one.issuer, by.subject), "issued by another");
    chain(simulated || one.hash === "PSS", "not signed with RSASSA-PSS");
    chain(await x509.signedBy(by, one.hash, one.signature, one.signed), "a signature does not hold");
  }
}

/** Kind, product, levels and chip of a leaf (VCEK or VLEK). */
function chipKey([leaf, issuer], simulated) {
  const prefix = simulated ? "SIMULATED " : "";
  const named = (one) => {
    const [name, ...more] = one.names;
    chain(more.length === 0 && name?.startsWith(prefix), "another name");
    return name.slice(prefix.length);
  };
  const [, lent, product] = /^SEV-(VLEK-)?(Milan|Genoa|Turin)$/.exec(named(issuer)) ?? [];
  const kind = lent ? "vlek" : "vcek";
  chain(product && named(leaf) === (lent ? "SEV-VLEK" : "SEV-VCEK"), "another kind of key");
  const value = (suffix) => leaf.extensions.get(`${AMD}.${suffix}`)?.value;
  const written = value("2") ? new TextDecoder().decode(x509.der(value("2")).content) : "";
  chain(written.startsWith(product), "a key of another product");
  const names = { bootloader: "3.1", tee: "3.2", snp: "3.3", microcode: "3.8" };
  if (product === "Turin") names.fmc = "3.9";
  const found = {};
  for (const [name, suffix] of Object.entries(names)) {
    chain(value(suffix), `no level of ${name}`);
    found[name] = x509.small(x509.der(value(suffix)));
  }
  return { kind, product, levels: found, chip: kind === "vcek" ? chipOf(value("4"), product) : noChip(value("4")) };
}

function chipOf(bytes, product) {
  const size = product === "Turin" ? 8 : 64;
  const bare = bytes?.length === size + 2 && bytes[0] === 4 && bytes[1] === size ? bytes.subarray(2) : bytes;
  chain(bare?.length === size, "no chip id");
  return bare;
}

function noChip(bytes) {
  chain(bytes === undefined, "a lent key that names a chip");
  return null;
}

function productOf({ family, model }) {
  if (family === 0x19) {
    if (model <= 0x0f) return "Milan";
    return (model >= 0x10 && model <= 0x1f) || (model >= 0xa0 && model <= 0xaf) ? "Genoa" : null;
  }
  return family === 0x1a && model <= 0x1f ? "Turin" : null;
}

function sameMachine(report, key) {
  const same = (condition, message) => demand(condition, "collateral-mismatch", message);
  chain(report.signer === key.kind, "the report names another kind of key");
  same(report.cpu === null || productOf(report.cpu) === key.product, "a key of another product");
  const reported = levels(report.tcb.reported, key.product);
  const equalLevels = Object.keys(reported).every((name) => reported[name] === key.levels[name]);
  same(equalLevels, "the key is of another TCB");
  if (key.chip === null || zeros(report.chipId)) return;
  const own = report.chipId.subarray(0, key.chip.length);
  same(equal(own, key.chip) && zeros(report.chipId.subarray(key.chip.length)), "the key is of another chip");
}

async function notRevoked(crl, certificates, now) {
  const unknown = (condition, message) => demand(condition, "revocation-unknown", message);
  unknown(crl !== null, "no revocation list");
  let list;
  try {
    list = x509.revocationList(fromBase64(crl));
  } catch (error) {
    if (!(error instanceof x509.BadDer || error instanceof TypeError)) throw error;
    unknown(false, "the revocation list cannot be read");
  }
  const root = certificates[2];
  const signed =
    equal(list.issuer, root.subject) && (await x509.signedBy(root, list.hash, list.signature, list.signed));
  unknown(signed && list.start <= now && now <= list.end, "the revocation list is another's, or not of this time");
  const revoked = certificates.some(({ serial }) => !/^0*$/.test(serial) && list.revoked.has(serial));
  demand(!revoked, "certificate-revoked", "the vendor revoked a certificate of the chain");
}

/** A report that a chip of AMD signed. */
export async function signedReport(cpu, root, now) {
  const report = parseReport(fromBase64(cpu.report));
  const raw = cpu.certificates.map(fromBase64);
  chain(raw.every((one) => one.length <= 4096), "a certificate is too large");
  await trustedRoot(raw[2], root);
  let certificates;
  let key;
  try {
    certificates = raw.map(x509.certificate);
    await checkChain(certificates, now, Boolean(root));
    key = chipKey(certificates, Boolean(root));
  } catch (error) {
    if (!(error instanceof x509.BadDer || error instanceof TypeError)) throw error;
    throw new Refusal("certificate-chain-invalid", error.message);
  }
  sameMachine(report, key);
  const { signature } = report;
  const holds =
    signature !== null && (await ecdsa("P-384", "SHA-384", certificates[0].point, signature, report.signed));
  demand(holds, "quote-invalid", "the chip's key did not sign the report");
  return {
    report,
    certificates,
    product: key.product === "Milan" ? "InsecureMilan" : key.product,
    simulated: Boolean(root),
    reportData: report.reportData,
  };
}

/** That no certificate of a report's chain was revoked, where a policy asks for that. */
export async function checkRevocation(cpu, signed, rules, now) {
  if (rules.revocation === "require") await notRevoked(cpu.crl, signed.certificates, now);
}

/** Facts that a chip of AMD signed about a guest. */
export async function verify(cpu, { rules, root, now }) {
  const signed = await signedReport(cpu, root, now);
  const shown = await sha256(utf8(cpu.app_compose));
  demand(equal(shown, signed.report.hostData), "compose-hash-mismatch", "another deployment document");
  await checkRevocation(cpu, signed, rules, now);
  const composeHash = hex(shown);
  return { ...signed, composeHash, appId: composeHash.slice(0, 40), keyProvider: "" };
}

const octets = shape.match(/^(?:[0-9a-f]{2}){0,2048}$/);
const LAUNCH_CONFIG = record(
  { compose_hash: shape.hex64, key_provider: literal("none", "local", "kms", "tpm") },
  {
    version: literal(3),
    app_id: nullable(shape.hex40),
    gpu_policy_hash: nullable(shape.hex64),
    key_provider_id: nullable(octets),
    instance_id: nullable(shape.hex40),
    init_script_hashes: nullable(list(shape.hex64, { max: 256 })),
  },
);

/** The text that HOST_DATA of a dstack guest commits to (spec/evidence-tdx.md). */
async function launchConfig(text, hostData) {
  const bytes = utf8(text);
  const expected = await sha256(utf8("dstack-mr-config-v3:\0"), bytes);
  demand(equal(expected, hostData), "compose-hash-mismatch", "HOST_DATA commits to another launch configuration");
  let config = null;
  try {
    config = parseJson(bytes, { depth: 4, size: 65536 });
  } catch (error) {
    if (!(error instanceof Malformed)) throw error;
  }
  demand(LAUNCH_CONFIG(config), "evidence-malformed", "the launch configuration has another form");
  return config;
}

/** Facts that a chip of AMD signed about a dstack guest. */
export async function verifyDstack(cpu, { rules, root, now }) {
  const signed = await signedReport(cpu, root, now);
  const config = await launchConfig(cpu.mr_config, signed.report.hostData);
  const composeHash = hex(await sha256(utf8(cpu.app_compose)));
  demand(config.compose_hash === composeHash, "compose-hash-mismatch", "another deployment document");
  await checkRevocation(cpu, signed, rules, now);
  const keyProvider = config.key_provider_id || "";
  const provider = keyProvider || config.key_provider;
  return { ...signed, composeHash, appId: config.app_id || composeHash.slice(0, 40), keyProvider, provider };
}

/** The rules of a policy for a dstack guest whose report verified. */
export function appraiseDstack(facts, rules) {
  appraise(facts, rules);
  const known = rules.key_provider === "any" || rules.key_provider === facts.provider;
  demand(known, "key-provider-mismatch", "another key provider");
}

const within = (all, least) => Object.keys(all).every((name) => all[name] >= least[name]);

/** The rules of a policy for a guest whose report verified. */
export function appraise({ report, product }, rules) {
  const platform = (condition, message) => demand(condition, "platform-mismatch", message);
  const level = (condition, message) => demand(condition, "tcb-status-refused", message);
  platform(rules.products.includes(product), `the product is ${product}`);
  platform(rules.signing_keys.includes(report.signer), "another kind of key");
  const image = rules.measurements === "any" || rules.measurements.includes(report.measurement);
  demand(image, "measurement-mismatch", "another launch measurement");
  const tcb = {};
  for (const name of ["reported", "committed", "launch"]) tcb[name] = levels(report.tcb[name], product);
  const floor = rules.minimum_tcb[product];
  level(within(tcb.reported, floor) && within(tcb.launch, floor), "TCB is below the floor");
  level(within(tcb.committed, tcb.reported), "the reported TCB is not committed");
  if (rules.mitigations !== "any") {
    const asked = rules.mitigations[product];
    level(asked !== undefined && report.mitigations, "mitigations are not named, or not reported");
    const needed = BigInt(`0x${asked}`);
    const bits = (bytes) => BigInt(`0x${hex(bytes.slice().reverse())}`);
    const set = report.mitigations.every((bytes) => (bits(bytes) & needed) === needed);
    level(set, "a mitigation is missing");
  }
  if (rules.extended_tcb !== "any") {
    level(report.extended?.every((value) => rules.extended_tcb.includes(value)), "another extended TCB");
  }
  if (rules.platform_flags !== "any") {
    platform(rules.platform_flags.every((name) => report.flags & (1 << FLAGS[name])), "a flag is not set");
  }
  const chip = hex(report.chipId);
  platform(rules.chip_ids === "any" || (!/^0+$/.test(chip) && rules.chip_ids.includes(chip)), "another chip");
  platform(rules.vmpl === "any" || rules.vmpl === report.vmpl, "another VMPL");
  demand(!(report.policy & 0x80000), "debug-guest", "guest runs in debug mode");
  const agent = Boolean(report.policy & 0x40000) || !ones(report.migrationAgent);
  demand(!agent, "migratable-guest", "guest has a migration agent");
  platform(rules.smt === "any" || !(report.policy & 0x10000), "guest allows SMT");
  const keys = report.authorKey ? [report.idKey, report.authorKeyDigest] : [report.idKey];
  const known = rules.id_keys === "any" || keys.some((one) => rules.id_keys.includes(one));
  demand(known, "measurement-mismatch", "another ID key");
}
