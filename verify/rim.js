// Files of reference values of NVIDIA's firmware (spec/evidence-nvidia.md, "Reference values").

import { CannotCheck, demand, digest, ecdsa, equal, fromBase64, sha384 } from "./bytes.js";
import * as x509 from "./x509.js";
import { NotXml, attribute, canonicalXml, content, elements, parseXml } from "./xml.js";

const ROOT = "12977b5115acb0381179279fffeb5a8c4d264971ebb32298023a465fa41df5d1";
const SWID = "http://standards.iso.org/iso/19770/-2/2015/schema.xsd";
const HASH = "http://www.w3.org/2001/04/xmlenc#sha384";
const DS = "http://www.w3.org/2000/09/xmldsig#";
const C14N = "http://www.w3.org/2006/12/xml-c14n11";
const ECDSA = "http://www.w3.org/2001/04/xmldsig-more#ecdsa-sha384";
const SHA384 = "http://www.w3.org/2001/04/xmldsig-more#sha384";
const ENVELOPED = `${DS}enveloped-signature`;
const INDEX = /^(?:0|[1-9][0-9]{0,2})$/;
const DECODER = 35;
const DRIVERS = { HOPPER: "NV_GPU_DRIVER_GH100", BLACKWELL: "NV_GPU_CC_DRIVER_GB100" };
const SWITCH = "NV_SWITCH_BIOS_5612_0002_890";

const valid = (condition, message) => demand(condition, "reference-value-invalid", message);
const same = (condition, message) => demand(condition, "reference-value-mismatch", message);

/** Name of each file that a device needs, with the version that it must be for. */
function filesOf({ architecture, report }) {
  const { driver, vbios, project, projectSku, chipSku } = report;
  const plain = vbios.replaceAll(".", "").toUpperCase();
  if (report.kind === "switch") return [[`${SWITCH}_${plain}`, vbios]];
  return [
    [`${DRIVERS[architecture]}_${driver}`, driver],
    [`NV_GPU_VBIOS_${project}_${projectSku}_${chipSku}_${plain}`, vbios],
  ];
}

/**
 * Compare a device's measurements with the vendor's files.
 *
 * @param {object} device Verified.
 * @param {{rims: object}|null} collateral Where the files are.
 * @param {object} rules The policy's.
 * @param {Uint8Array|null} root DER of a simulator's root, null for NVIDIA's.
 * @param {Map} read Files that were verified before, by digest.
 */
export async function checkReferenceValues(device, collateral, rules, { root, now, read }) {
  const wanted = rules.reference_values;
  if (wanted === "any") return;
  const pins = typeof wanted === "string" ? null : wanted;
  const taken = new Set();
  const { measurements, decoder, kind } = device.report;
  for (const [name, version] of filesOf(device)) {
    const held = collateral !== null && Object.hasOwn(collateral.rims, name);
    same(held, `no file ${name}`);
    const xml = fromBase64(collateral.rims[name]);
    const sha = await digest(xml);
    const pinned = pins !== null && Object.hasOwn(pins, name) && pins[name].includes(sha);
    valid(pins === null || pinned, `the file ${name} is not pinned`);
    if (!read.has(sha)) read.set(sha, await authentic(xml, root === null ? ROOT : await digest(root)));
    const { values, version: own, start, end } = read.get(sha);
    valid(pinned || (start <= now && now <= end), "the signer is not valid at that time");
    same(own.toUpperCase() === version.toUpperCase(), `the file ${name} is of another version`);
    for (const [index, digests] of values) {
      same(!taken.has(index), "two files share an index");
      taken.add(index);
      const looked = index !== DECODER || kind !== "gpu" || decoder !== false;
      same(!looked || digests.includes(measurements.get(index + 1)), `${name}: index ${index} differs`);
    }
  }
}

/** Values of a file under a root of this SHA-256, and the seconds between which its chain is valid. */
export async function authentic(xml, rootDigest) {
  valid(xml.length > 0 && xml.length <= 262144, "the file has the wrong length");
  const declares = (word) => includes(xml, word);
  valid(!declares("<!DOCTYPE") && !declares("<!ENTITY"), "the file declares a document type");
  try {
    const root = parseXml(xml);
    bounded(root);
    const { signature, others } = signatureOf(root);
    const parts = partsOf(signature);
    const { signer, start, end } = await chainOf(parts.info, rootDigest);
    await signedWhole(root, signature, parts, signer);
    return { ...valuesOf(root, others), start, end };
  } catch (error) {
    if (!(error instanceof NotXml || error instanceof x509.BadDer || error instanceof TypeError)) throw error;
    valid(false, error.message);
  }
}

function includes(bytes, word) {
  const codes = [...word].map((character) => character.charCodeAt(0));
  for (let at = bytes.indexOf(codes[0]); at >= 0; at = bytes.indexOf(codes[0], at + 1)) {
    if (codes.every((code, i) => bytes[at + i] === code)) return true;
  }
  return false;
}

function bounded(root) {
  let count = 0;
  const visit = (element, depth) => {
    count += 1;
    const { attributes, scope } = element;
    const small = count <= 1024 && depth <= 8 && attributes.length <= 64 && scope.size <= 16;
    valid(small, "the file is larger or deeper than a list of measurements");
    for (const child of elements(element)) visit(child, depth + 1);
  };
  visit(root, 1);
}

const is = (element, local, space = DS) => element?.space === space && element.local === local;

function signatureOf(root) {
  const visit = (element) => [element, ...elements(element).flatMap(visit)];
  const found = visit(root).filter((element) => is(element, "Signature"));
  valid(found.length === 1 && found[0].parent === root, "not exactly one signature below the root");
  return { signature: found[0], others: elements(root).filter((element) => element !== found[0]) };
}

/** Parts of a signature in their plain form. Nothing signs them but the first. */
function partsOf(signature) {
  const parts = elements(signature);
  const [info, value, key] = parts;
  const known = is(info, "SignedInfo") && is(value, "SignatureValue") && is(key, "KeyInfo");
  valid(known, "the signature has other parts");
  const plain = parts.length === 3 && [signature, value, key].every((one) => one.attributes.length === 0);
  if (!plain) throw new CannotCheck("reference values: a signature with objects or attributes beside it");
  return { signed: info, value: packed(value), info: key };
}

const onlyElements = (element) => element.children.every((one) => typeof one !== "string" || !/[^ \t\n\r]/.test(one));
const packed = (element) => fromBase64((content(element) ?? "?").replace(/[ \t\n\r]+/g, ""));

async function chainOf(info, rootDigest) {
  const [data, ...more] = elements(info);
  valid(is(data, "X509Data") && more.length === 0, "the signature does not carry one chain");
  const parts = elements(data);
  const known = parts.length >= 2 && parts.length <= 5 && parts.every((one) => is(one, "X509Certificate"));
  valid(known && onlyElements(info) && onlyElements(data), "the signer's chain has another form");
  if ([data, ...parts].some((one) => one.attributes.length > 0)) {
    throw new CannotCheck("reference values: attributes beside a certificate");
  }
  const certificates = parts.map((part) => x509.certificate(packed(part)));
  const root = certificates[certificates.length - 1];
  valid((await digest(root.bytes)) === rootDigest, "the signer's chain leads to a foreign root");
  await x509.checkPath([...certificates].reverse(), { now: null });
  const own = equal(root.subject, root.issuer) && root.hash === "SHA-384";
  valid(own && (await x509.signedBy(root, root.hash, root.signature, root.signed)), "the root did not sign itself");
  const start = Math.max(...certificates.map((one) => one.start));
  const end = Math.min(...certificates.map((one) => one.end));
  return { signer: certificates[0], start, end };
}

async function signedWhole(root, signature, { signed, value }, signer) {
  const holds =
    value?.length === 96 && (await ecdsa("P-384", "SHA-384", signer.point, value, canonicalXml(signed)));
  valid(holds, "the signature does not hold");
  const [method, algorithm, reference, ...more] = elements(signed);
  const [transforms, hashing, found, ...rest] = elements(reference);
  const steps = elements(transforms);
  const names = (one, local, uri) => is(one, local) && attribute(one, "Algorithm") === uri && elements(one).length === 0;
  const whole =
    more.length + rest.length === 0 &&
    names(method, "CanonicalizationMethod", C14N) &&
    names(algorithm, "SignatureMethod", ECDSA) &&
    is(reference, "Reference") &&
    reference.attributes.some((one) => one.local === "URI" && one.space === "" && one.value === "") &&
    is(transforms, "Transforms") &&
    steps.length === 2 &&
    names(steps[0], "Transform", ENVELOPED) &&
    names(steps[1], "Transform", C14N) &&
    names(hashing, "DigestMethod", SHA384) &&
    is(found, "DigestValue");
  valid(whole && onlyElements(signature), "the signature does not cover the whole document");
  const expected = packed(found);
  valid(expected && equal(expected, await sha384(canonicalXml(root, signature))), "the document is another");
}

function valuesOf(root, children) {
  const metas = children.filter((one) => is(one, "Meta", SWID));
  const payloads = children.filter((one) => is(one, "Payload", SWID));
  const tag = is(root, "SoftwareIdentity", SWID) && metas.length === 1 && payloads.length === 1;
  valid(tag, "not a SWID tag with one Meta and one Payload");
  const version = attribute(metas[0], "colloquialVersion");
  valid(/^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/.test(version), "no firmware version");
  const seen = new Set();
  const values = new Map();
  for (const resource of elements(payloads[0])) {
    if (!is(resource, "Resource", SWID) || attribute(resource, "type") !== "Measurement") continue;
    const { index, active, digests } = measurement(resource);
    valid(!seen.has(index), "an index twice");
    seen.add(index);
    if (active) values.set(index, digests);
  }
  valid(values.size > 0, "no active measurement");
  return { version, values: new Map([...values].sort(([one], [other]) => one - other)) };
}

function measurement(resource) {
  const [index, count] = [attribute(resource, "index"), attribute(resource, "alternatives")];
  valid(INDEX.test(index) && Number(index) <= 254, "a measurement without an index");
  valid(INDEX.test(count) && Number(count) >= 1 && Number(count) <= 32, "no count of alternatives");
  const found = resource.attributes.filter(({ space, local }) => space === HASH && local.startsWith("Hash"));
  const digests = Array.from({ length: Number(count) }, (_, i) => attribute(resource, `Hash${i}`, HASH));
  const active = attribute(resource, "active");
  const plain =
    found.length === digests.length &&
    ["True", "False"].includes(active) &&
    attribute(resource, "size") === "48" &&
    digests.every((one) => /^[0-9A-Fa-f]{96}$/.test(one));
  valid(plain, "a measurement of another form");
  return { index: Number(index), active: active === "True", digests: digests.map((one) => one.toLowerCase()) };
}
