// Reports of NVIDIA's GPUs and switches (spec/evidence-nvidia.md, "The report"); no trust yet.

import { concat, demand, digest, equal, fromHex, hex, latin1, u16le } from "./bytes.js";

const RECORDS_AT = 45;
const RECORD = 55;
const SIGNATURE = 96;
const REQUEST = fromHex("11e001ff");
const RESPONSE = fromHex("1160");
const TEXT = /^[0-9A-Za-z._ -]{0,64}$/;
const VBIOS_TEXT = /^[0-9A-F]{2}(?:\.[0-9A-F]{2}){4}$/;
const NOTHING = new Uint8Array(0);

const form = (condition, message) => demand(condition, "gpu-report-invalid", message);
const u24le = (bytes, at) => u16le(bytes, at) + bytes[at + 2] * 65536;
const filled = (bytes) => bytes.some((byte) => byte !== 0);

/** The fields of one report; its one length is exact. */
export async function parseReport(raw) {
  form(raw.length <= 65536 && raw.length >= RECORDS_AT, "report has the wrong length");
  const known = equal(raw.subarray(0, 4), REQUEST) && equal(raw.subarray(37, 39), RESPONSE);
  form(known, "not a signed report of all measurements");
  const recordsEnd = RECORDS_AT + u24le(raw, RECORDS_AT - 3);
  const opaqueAt = recordsEnd + 34;
  form(raw.length >= opaqueAt, "report is truncated");
  const opaqueEnd = opaqueAt + u16le(raw, opaqueAt - 2);
  form(raw.length === opaqueEnd + SIGNATURE, "report is truncated, or bytes follow its signature");
  const measurements = records(raw.subarray(RECORDS_AT, recordsEnd), raw[41]);
  const opaque = fields(raw.subarray(opaqueAt, opaqueEnd));
  const version = small(opaque.get(34) ?? NOTHING);
  form(version <= 1 && (opaque.get(34) ?? NOTHING).length <= 8, "fields of a later version");
  const driver = textOf(opaque, 3);
  const identities = eights(opaque.get(22) ?? NOTHING);
  form(driver !== "" || identities.length <= 1, "a switch names several identities");
  const firmware = opaque.get(20) ?? null;
  form(firmware === null || firmware.length === 48, "firmware id is no SHA-384 digest");
  const gpus = eights(opaque.get(26) ?? NOTHING).slice(0, 8);
  const signed = raw.subarray(0, opaqueEnd);
  return {
    kind: driver === "" ? "switch" : "gpu",
    signed,
    signature: raw.subarray(opaqueEnd),
    identity: await digest(signed),
    nonce: raw.subarray(4, 36),
    measurements,
    driver,
    vbios: vbiosOf(opaque.get(6) ?? NOTHING),
    decoder: switched(opaque.get(11)),
    chipSku: textOf(opaque, 15),
    project: textOf(opaque, 17),
    projectSku: textOf(opaque, 18),
    chip: textOf(opaque, 35),
    firmware,
    protectedPcie: switched(opaque.get(21)),
    // A GPU spells the identities of its switches backwards.
    switches: driver === "" ? [] : identities.filter(filled).map((one) => hex(one.slice().reverse())),
    ownIdentity: driver === "" ? hex(concat(...identities)) : "",
    gpus: driver === "" ? gpus.filter(filled).map(hex) : [],
    flag: flagOf(opaque.get(36), version),
  };
}

function records(data, count) {
  form(count > 0 && data.length === count * RECORD, "records do not fill their length");
  const found = new Map();
  for (let at = 0; at < data.length; at += RECORD) {
    const index = data[at];
    const plain = data[at + 1] === 1 && u16le(data, at + 2) === 51 && u16le(data, at + 5) === 48;
    form(plain && !(data[at + 4] & 0x80), `block ${index} is no SHA-384 digest`);
    form(index > 0 && !found.has(index), `block ${index} occurs twice or counts from zero`);
    found.set(index, hex(data.subarray(at + 7, at + RECORD)));
  }
  return found;
}

function fields(data) {
  const found = new Map();
  for (let at = 0; at < data.length; ) {
    form(data.length - at >= 4, "fields end inside a head");
    const [kind, size] = [u16le(data, at), u16le(data, at + 2)];
    at += 4;
    form(size <= data.length - at && !found.has(kind), `field ${kind} occurs twice or runs past the end`);
    found.set(kind, data.subarray(at, at + size));
    at += size;
  }
  return found;
}

const unpadded = (bytes) => latin1(bytes).replace(/\0+$/, "");

function textOf(opaque, kind) {
  const value = unpadded(opaque.get(kind) ?? NOTHING);
  form(TEXT.test(value), `field ${kind} is no short text`);
  return value;
}

/** GPUs write eight bytes backwards with the last part in the other half, switches text. */
function vbiosOf(value) {
  if (value.length === 8) {
    const digits = hex(value.slice().reverse()).toUpperCase();
    return (digits.slice(8) + digits.slice(6, 8)).match(/../g).join(".");
  }
  const written = unpadded(value).toUpperCase();
  form(VBIOS_TEXT.test(written), "no VBIOS version");
  return written;
}

function switched(value) {
  if (value === undefined) return null;
  form(value.length === 1 && (value[0] === 0xaa || value[0] === 0x55), "neither on nor off");
  return value[0] === 0xaa;
}

function eights(value) {
  form(value.length % 8 === 0, "identities are not eight bytes each");
  return Array.from({ length: value.length / 8 }, (_, i) => value.subarray(8 * i, 8 * i + 8));
}

/** A number below 256 of bytes, little endian; infinite where it is larger. */
const small = (value) => (filled(value.subarray(1)) ? Infinity : (value[0] ?? 0));

function flagOf(value, version) {
  if (value === undefined || version < 1) return null;
  const found = ["SPT", "MPT", "PPCIE"][small(value)];
  form(found !== undefined, "an unknown feature flag");
  return found;
}
