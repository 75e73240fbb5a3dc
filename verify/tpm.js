// Quotes of a TPM 2.0 under Google's chain (spec/evidence-tpm.md).

import {
  Refusal,
  concat,
  demand,
  ecdsa,
  equal,
  fromBase64,
  fromHex,
  hex,
  rsaPkcs1,
  sha256,
  sha384,
  text,
  u16be,
  u32be,
} from "./bytes.js";
import * as shape from "./shape.js";
import * as x509 from "./x509.js";

const { either, encoded, integer, list, record } = shape;
const GOOGLE_ROOT = "594759594b9b61524f6c8ef668f7177f7b9066bc0674f2f49fe9e052be78beb2";
const MACHINE = "1.3.6.1.4.1.11129.2.1.21";
const [RSA_SHA256, ECDSA_SHA256] = ["1.2.840.113549.1.1.11", "1.2.840.10045.4.3.2"];
const REGISTERS = 24;
const NAMES = { 11: 32, 12: 48, 13: 64 };
const BANKS = { 11: { name: "sha256", size: 32 }, 12: { name: "sha384", size: 48 } };
const HASHES = { sha256, sha384 };

const digest = either(shape.hex64, shape.hex96);
const index = integer(0, REGISTERS - 1);
const ascending = (registers) => registers.every((one, i) => i === 0 || registers[i - 1].index < one.index);
const QUOTED = {
  message: encoded(1024),
  signature: encoded(518),
  registers: list(record({ index, value: digest }), { min: 1, max: REGISTERS }),
  events: list(record({ index, digest }), { max: 1024 }),
};
const CHAIN = { certificates: list(encoded(4096), { min: 1, max: 4 }) };
const SHOWN = record({ ...QUOTED, ...CHAIN });
const whole = ({ registers }) =>
  ascending(registers) && registers.length === REGISTERS && registers.every(({ value }) => value.length === 64);

/** What a guest shows of its vTPM. */
export const FORM = (value) => SHOWN(value) && ascending(value.registers);

/** The same with all registers of the SHA-256 bank. */
export const WHOLE_SHOWN_FORM = (value) => SHOWN(value) && whole(value);

const ALONE = record(QUOTED);

/** The same where something else vouches for the key. */
export const WHOLE_FORM = (value) => ALONE(value) && whole(value);

const form = (condition, message) => demand(condition, "evidence-malformed", `TPM quote: ${message}`);
const chained = (condition, message) => demand(condition, "certificate-chain-invalid", message);

class Octets {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }

  take(size) {
    form(this.at + size <= this.bytes.length, "truncated");
    this.at += size;
    return this.bytes.subarray(this.at - size, this.at);
  }

  u8() {
    return this.take(1)[0];
  }

  u16() {
    return u16be(this.take(2), 0);
  }

  u32() {
    return u32be(this.take(4), 0);
  }

  sized(most) {
    const size = this.u16();
    form(size <= most, "a field is too long");
    return this.take(size);
  }

  finish() {
    form(this.at === this.bytes.length, "bytes follow it");
  }
}

/** The fields of a `TPMS_ATTEST`, before anything of it is verified. */
export function parseQuote(raw) {
  form(raw.length <= 1024, "too long");
  const reader = new Octets(raw);
  form(reader.u32() === 0xff544347 && reader.u16() === 0x8018, "no quote that a TPM made");
  const signer = reader.sized(66);
  form(signer.length === 0 || NAMES[u16be(signer, 0)] === signer.length - 2, "the name of its key");
  const qualifying = reader.sized(64);
  reader.take(16);
  form(reader.u8() <= 1, "the state of its clock");
  reader.take(8);
  form(reader.u32() === 1, "registers of more or fewer banks than one");
  const bank = BANKS[reader.u16()];
  form(bank, "another bank");
  form(reader.u8() === 3, "a selection of another length");
  const [low, middle, high] = reader.take(3);
  const bits = low | (middle << 8) | (high << 16);
  const value = reader.sized(64);
  form(bits !== 0 && value.length === 32, "nothing is selected, or another digest");
  reader.finish();
  const selection = [...Array(REGISTERS).keys()].filter((one) => (bits >> one) & 1);
  return { raw, qualifying, bank, selection, digest: value };
}

function natural(element) {
  const { tag, content } = element ?? {};
  const sound = tag === 2 && content.length >= 1 && content.length <= 9 && !(content[0] & 0x80);
  chained(sound && !(content.length > 1 && content[0] === 0 && content[1] < 0x80), "no number");
  return BigInt(`0x${hex(content)}`).toString();
}

function named(element) {
  const { tag, content } = element ?? {};
  const printable = (byte) => byte > 0x20 && byte < 0x7f;
  const sound = tag === 0x0c && content.length >= 1 && content.length <= 128 && content.every(printable);
  chained(sound, "a name that is not of printable ASCII");
  return text(content);
}

function isProduction(element) {
  const inner = x509.items(element, 0xa0);
  chained(inner.length === 1, "properties of another form");
  let production = false;
  let before = 0;
  for (const { tag, content } of x509.items(inner[0])) {
    chained(tag > before, "properties are not in order");
    before = tag;
    if (tag === 0xa0) natural(x509.der(content));
    if (tag === 0xa1) {
      const truth = x509.der(content);
      const sound = truth.tag === 1 && truth.content.length === 1 && [0, 0xff].includes(truth.content[0]);
      chained(sound, "a truth value that is neither");
      production = truth.content[0] === 0xff;
    }
  }
  return production;
}

function machineOf(leaf) {
  const found = leaf.extensions.get(MACHINE);
  chained(found, "the attestation key names no machine");
  const fields = x509.items(x509.der(found.value));
  chained(fields.length === 5 || fields.length === 6, "a machine's name of another form");
  const [zone, projectNumber, project, instanceId, instance, properties] = fields;
  natural(projectNumber);
  named(instance);
  return {
    zone: named(zone),
    project: named(project),
    instance: natural(instanceId),
    production: properties !== undefined && isProduction(properties),
  };
}

async function isIssued(below, above, simulated) {
  if (!equal(above.subject, below.issuer)) return false;
  if (below.algorithm === RSA_SHA256) {
    if (above.rsaBits < 2048 && !simulated) return false;
    return above.rsaBits > 0 && rsaPkcs1(above.info, below.signature, below.signed);
  }
  if (!simulated || below.algorithm !== ECDSA_SHA256) return false;
  return x509.signedBy(above, "SHA-256", below.signature, below.signed);
}

async function checkChain(path, now, simulated) {
  const known = ["2.5.29.19", "2.5.29.15"];
  for (const [place, one] of path.entries()) {
    for (const [name, { critical }] of one.extensions) {
      chained(!critical || known.includes(name), "an unknown critical extension");
    }
    chained(one.extensions.has("2.5.29.19"), "no basic constraints");
    const { authority, depth, certifies, signs } = x509.powers(one);
    chained(certifies !== null, "no key usage");
    if (place === 0) {
      chained(!authority && !certifies && signs, "the attestation key is an authority's, or may not sign");
      continue;
    }
    chained(authority && certifies && depth >= place - 1, "an issuer may not sign certificates");
    chained(await isIssued(path[place - 1], one, simulated), "a certificate was issued by another");
  }
  for (const one of path) chained(one.start <= now && now <= one.end, "not valid at that time");
}

/** The attestation key and its machine, of certificates with the key's own first. */
async function verifyKey(certificates, root, now) {
  chained(certificates.length >= 2 && certificates.every((one) => one.length <= 4096), "a chain of another length");
  const last = certificates.at(-1);
  if (root) {
    demand(equal(last, root), "quote-root-untrusted", "another simulator's root");
  } else if (hex(await sha256(last)) !== GOOGLE_ROOT) {
    demand(!x509.callsItselfSimulated(last), "simulated-evidence", "a simulator where hardware is asked for");
    throw new Refusal("quote-root-untrusted", "not Google's root of vTPM keys");
  }
  try {
    const path = certificates.map(x509.certificate);
    await checkChain(path, now, Boolean(root));
    const machine = machineOf(path[0]);
    demand(machine.production, "debug-guest", "the attestation key was not made for production");
    return { key: path[0], machine };
  } catch (error) {
    if (!(error instanceof x509.BadDer || error instanceof TypeError)) throw error;
    throw new Refusal("certificate-chain-invalid", error.message);
  }
}

const RSA_EXPONENT = "010001";

function keyKind(key) {
  if (key.curve === "P-256") return "ecdsa";
  const fits = key.rsaBits >= 2048 && key.rsaBits <= 4096 && key.rsaExponent === RSA_EXPONENT;
  demand(fits, "quote-invalid", "the attestation key is of another kind");
  return "rsassa";
}

async function checkSignature(quote, raw, key) {
  const kind = keyKind(key);
  const reader = new Octets(raw);
  form(raw.length <= 518, "signature is too long");
  const scheme = { 0x14: "rsassa", 0x18: "ecdsa" }[reader.u16()];
  form(scheme && reader.u16() === 0x0b, "another kind of signature");
  const parts = [reader.sized(518)];
  if (scheme === "ecdsa") parts.push(reader.sized(518));
  reader.finish();
  let holds = false;
  if (scheme === "ecdsa") {
    const sound = (part) => part.length <= 32 && part.some((byte) => byte !== 0);
    form(parts.every(sound), "no two numbers of a signature");
    const padded = parts.map((part) => concat(new Uint8Array(32 - part.length), part));
    holds = kind === scheme && (await ecdsa("P-256", "SHA-256", key.point, concat(...padded), quote.raw));
  } else {
    holds = kind === scheme && (await rsaPkcs1(key.info, parts[0], quote.raw));
  }
  demand(holds, "quote-invalid", "the attestation key did not sign the TPM quote");
}

/** A register that was extended with each digest in turn. */
export async function replayed(bank, digests) {
  let register = new Uint8Array(bank.size);
  for (const one of digests) register = await HASHES[bank.name](register, one);
  return hex(register);
}

async function checkEvents(quote, values, events) {
  const size = values.values().next().value.length;
  form(events.every((event) => event.digest.length === size), "an event of another bank");
  const indexes = [...new Set(events.map((event) => event.index))].sort((a, b) => a - b);
  for (const one of indexes) {
    const digests = events.filter((event) => event.index === one).map((event) => fromHex(event.digest));
    const holds = values.get(one) === (await replayed(quote.bank, digests));
    demand(holds, "event-log-mismatch", `events do not replay to PCR ${one} of the vTPM`);
  }
}

function element(tag, ...parts) {
  const content = concat(...parts);
  const size = content.length;
  const length = size < 0x80 ? [size] : size < 0x100 ? [0x81, size] : [0x82, size >> 8, size & 0xff];
  return concat(new Uint8Array([tag, ...length]), content);
}

function unsigned(bytes) {
  const first = bytes.findIndex((byte) => byte !== 0);
  const found = first < 0 ? new Uint8Array(1) : bytes.subarray(first);
  return found[0] & 0x80 ? concat(new Uint8Array(1), found) : found;
}

const RSA_ENCRYPTION = fromHex("06092a864886f70d0101010500");

/** An attestation key (RSA) of its two numbers, big-endian. */
export function rsaKey(exponent, modulus) {
  const [small, large] = [unsigned(exponent), unsigned(modulus)];
  const bare = large[0] === 0 ? large.subarray(1) : large;
  const key = element(0x30, element(2, large), element(2, small));
  const found = {
    rsaBits: bare.length === 0 ? 0 : bare.length * 8 - Math.clz32(bare[0]) + 24,
    rsaExponent: hex(small),
    info: element(0x30, element(0x30, RSA_ENCRYPTION), element(3, new Uint8Array(1), key)),
  };
  keyKind(found);
  return found;
}

/** A quote that a key signed, with its registers (index to hex); something else vouches for the key. */
export async function verifyBoot(shown, key) {
  return checkBoot(parseQuote(fromBase64(shown.message)), shown, key);
}

async function checkBoot(quote, shown, key) {
  await checkSignature(quote, fromBase64(shown.signature), key);
  const registers = new Map(shown.registers.map((one) => [one.index, one.value]));
  form([...registers.keys()].join() === quote.selection.join(), "other registers than the quoted ones");
  form([...registers.values()].every((one) => one.length === 2 * quote.bank.size), "a register of another bank");
  const found = await sha256(concat(...[...registers.values()].map(fromHex)));
  demand(equal(found, quote.digest), "measurement-mismatch", "other registers than the quoted ones");
  await checkEvents(quote, registers, shown.events);
  return { quote, registers };
}

/** Facts that Google signed about a vTPM: `quote`, `registers` (index to hex) and `machine`. */
export async function verifyTpm(shown, root, now) {
  const quote = parseQuote(fromBase64(shown.message));
  const { key, machine } = await verifyKey(shown.certificates.map(fromBase64), root, now);
  return { ...(await checkBoot(quote, shown, key)), machine };
}
