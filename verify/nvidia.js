// Evidence of NVIDIA accelerators (spec/evidence-nvidia.md): its forms, its rules, the set of devices.

import { demand, equal, fromBase64, hex } from "./bytes.js";
import { verifyDevice } from "./accelerator.js";
import { checkRevocation } from "./ocsp.js";
import { checkReferenceValues } from "./rim.js";
import * as shape from "./shape.js";
import { callsItselfSimulated } from "./x509.js";

const { either, integer, list, literal, map, match, nullable, record, string } = shape;
const any = literal("any");
const filled = shape.base64();
const packed = (most) => (value) =>
  string(value) && value.length >= 4 && value.length <= Math.floor((most * 4) / 3) + 4 && filled(value);
const text = (most) => (value) => {
  if (!string(value) || value.length < 2 || value.length > 2 * most) return false;
  const length = [...value].length;
  return length >= 2 && length <= most;
};
const chain = (value) => string(value) && value.length <= 65536 && /^[\n -~]+$/.test(value);

const DEVICE = record({
  kind: literal("gpu", "switch"),
  architecture: literal("HOPPER", "BLACKWELL", "LS10"),
  report: packed(65536),
  certificate_chain: chain,
});

/** The part `gpu` of an evidence document. */
export const FORM = record({
  devices: list((one) => DEVICE(one) && (one.kind === "switch") === (one.architecture === "LS10"), {
    min: 1,
    max: 32,
  }),
  claims: record({
    environment: literal("PROD", "SIM", "UNAVAILABLE"),
    cc_feature: shape.boolean,
    dev_tools: shape.boolean,
    multi_gpu_mode: literal("none", "protected_pcie", "nvle"),
    driver_version: match(/^[0-9A-Za-z._-]{1,64}$/),
    gpu_count: integer(0, 32),
  }),
});

/** The part `gpu_collateral` of an evidence document. */
export const COLLATERAL = record({
  rims: map(match(/^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$/), packed(262144), { max: 32 }),
  ocsp: list(packed(16384), { max: 128 }),
  nras: nullable(record({ token: text(262144), jwks: text(524288) })),
});

const SIMULATOR = record({ insecure_simulator_root: filled });
const ROOT = either(
  literal("nvidia"),
  (value) => SIMULATOR(value) && callsItselfSimulated(fromBase64(value.insecure_simulator_root)),
);
const DRIVER = match(/^[0-9]{1,6}(?:\.[0-9]{1,6}){1,3}$/);
const VBIOS = match(/^[0-9A-F]{2}(?:\.[0-9A-F]{2}){4}$/);
const PINS = map(match(/^[0-9A-Za-z._-]{1,128}$/), list(shape.hex64, { min: 1, max: 16 }), { max: 256 });
const RULES_FORM = record({
  root: ROOT,
  rim_root: ROOT,
  gpu_count: integer(1, 32),
  switch_count: either(any, integer(0, 32)),
  architectures: list(literal("HOPPER", "BLACKWELL"), { min: 1, max: 2 }),
  mode: list(literal("single", "mpt", "protected_pcie"), { min: 1, max: 3 }),
  cc: literal("on"),
  devtools: literal("off"),
  devices: either(any, list(match(/^[0-9a-f]{8,64}$/), { max: 4096 })),
  driver_versions: either(any, record({ minimum: DRIVER, denied: list(DRIVER, { max: 256 }) })),
  vbios_versions: either(
    any,
    list(
      record({
        architecture: literal("HOPPER", "BLACKWELL", "LS10"),
        minimum: VBIOS,
        denied: list(VBIOS, { max: 256 }),
      }),
      { max: 3 },
    ),
  ),
  reference_values: either(literal("any", "require"), (value) => PINS(value) && Object.keys(value).length > 0),
  revocation: literal("any", "require"),
  max_ocsp_age_s: integer(1, 2 ** 31),
  nras: literal("local", "require"),
});

/** A policy's rules for accelerators, of a simulator or of hardware. */
export function RULES(value, simulated) {
  if (!RULES_FORM(value)) return false;
  const floors = value.vbios_versions === "any" ? [] : value.vbios_versions.map((one) => one.architecture);
  return (
    [value.root, value.rim_root].every((root) => (typeof root !== "string") === simulated) &&
    !(value.mode.length === 1 && value.mode[0] === "protected_pcie" && value.switch_count === 0) &&
    new Set(floors).size === floors.length
  );
}

const mode = (condition, message) => demand(condition, "gpu-mode-refused", message);
const set = (condition, message) => demand(condition, "gpu-set-refused", message);
const level = (condition, message) => demand(condition, "tcb-status-refused", message);
const fresh = (condition, message) => demand(condition, "gpu-nonce-mismatch", message);
const platform = (condition, message) => demand(condition, "platform-mismatch", message);
const rootOf = (root) => (typeof root === "string" ? null : fromBase64(root.insecure_simulator_root));

/**
 * Every accelerator of a guest, for one conversation.
 *
 * The verdict that collateral may hold is never read: the guest that is judged could have chosen its
 * keys. A policy that asks for one is therefore not met.
 *
 * @param {{devices: object[], claims: object}} evidence Of `FORM`.
 * @param {{rules: object, nonce: Uint8Array, now: number, collateral: object|null}} given
 */
export async function verify({ devices: shown, claims }, { rules, nonce, now, collateral }) {
  protection(claims);
  counts(shown, claims, rules);
  const read = new Map();
  const devices = [];
  for (const one of shown) {
    const device = await verifyDevice(one, rootOf(rules.root), now);
    const own = nonce.length === 32 && equal(device.report.nonce, nonce);
    fresh(own, "a report was made for another conversation");
    appraise(device, rules);
    await checkReferenceValues(device, collateral, rules, { root: rootOf(rules.rim_root), now, read });
    await checkRevocation(device.certificates, collateral, rules, now);
    devices.push(device);
  }
  together(devices, claims, rules);
  demand(rules.nras === "local", "remote-verdict-refused", "the policy asks for NVIDIA's verdict; there is none");
}

function protection({ environment, cc_feature, dev_tools, multi_gpu_mode }) {
  mode(environment === "PROD", "accelerators are not in production mode");
  // Protected PCIe is a mode beside the plain feature, which then reads as off.
  mode(cc_feature || multi_gpu_mode === "protected_pcie", "accelerators do not protect their memory");
  mode(!dev_tools, "accelerators are in developer mode");
}

function counts(shown, claims, rules) {
  const gpus = shown.filter(({ kind }) => kind === "gpu").length;
  set(claims.gpu_count === gpus, "the guest shows other GPUs than its driver sees");
  set(gpus === rules.gpu_count, "another number of GPUs");
  const switches = rules.switch_count === "any" || shown.length - gpus === rules.switch_count;
  set(switches, "another number of NVSwitches");
}

function appraise({ kind, architecture, ueid, report }, rules) {
  const families = kind === "switch" ? ["LS10"] : rules.architectures;
  platform(families.includes(architecture), "an accelerator of another family");
  platform(rules.devices === "any" || rules.devices.includes(ueid), "an accelerator that is not listed");
  if (kind === "gpu" && rules.driver_versions !== "any") above(report.driver, rules.driver_versions, 10);
  if (rules.vbios_versions === "any") return;
  const floor = rules.vbios_versions.find((one) => one.architecture === architecture);
  level(floor, "no floor for this family's VBIOS");
  above(report.vbios, floor, 16);
}

function above(version, { minimum, denied }, base) {
  const found = numbers(version, base);
  const held = found !== null && order(found, numbers(minimum, base)) >= 0;
  level(held && denied.every((one) => order(found, numbers(one, base)) !== 0), `version ${version}`);
}

function numbers(version, base) {
  const parts = version.split(".");
  const digits = base === 10 ? /^[0-9]+$/ : /^[0-9A-Fa-f]+$/;
  if (version.length > 64 || !parts.every((part) => digits.test(part))) return null;
  return parts.map((part) => BigInt(base === 10 ? part : `0x${part}`));
}

function order(first, second) {
  for (let i = 0; i < Math.max(first.length, second.length); i++) {
    const [one, other] = [first[i] ?? 0n, second[i] ?? 0n];
    if (one !== other) return one < other ? -1 : 1;
  }
  return 0;
}

const alike = (values) => new Set(values).size <= 1;
const distinct = (values) => new Set(values).size === values.length;

function together(devices, claims, rules) {
  const gpus = devices.filter(({ kind }) => kind === "gpu");
  const switches = devices.filter(({ kind }) => kind === "switch");
  for (const values of [
    devices.map(({ ueid }) => ueid),
    devices.map(({ serial }) => serial),
    switches.map(({ report }) => report.ownIdentity),
    devices.map(({ report }) => report.identity),
  ]) {
    set(distinct(values), "a device is shown more than once");
  }
  for (const kind of [gpus, switches]) {
    const same = [({ architecture }) => architecture, ({ report }) => report.driver, ({ report }) => report.vbios];
    set(same.every((value) => alike(kind.map(value))), "devices of one set differ");
  }
  fresh(alike(devices.map(({ report }) => hex(report.nonce))), "reports of different conversations");
  mode(claims.driver_version === gpus[0].report.driver, "the guest runs another driver than its GPUs report");
  const found = modeOf(gpus, claims.multi_gpu_mode);
  mode(rules.mode.includes(found), `the GPUs' mode is ${found}`);
  if (switches.length > 0 || found === "protected_pcie") wiring(gpus, switches);
}

/** The one mode on which every source agrees. */
function modeOf(gpus, driver) {
  const [{ flag, protectedPcie }] = gpus.map(({ report }) => report);
  const same = gpus.every(({ report }) => report.flag === flag && report.protectedPcie === protectedPcie);
  mode(same, "GPUs of one set are in different modes");
  if (driver === "protected_pcie") {
    mode(protectedPcie === true && [null, "PPCIE"].includes(flag), "GPUs do not report protected PCIe");
    return "protected_pcie";
  }
  mode(protectedPcie !== true && flag !== "PPCIE", "GPUs report protected PCIe, their driver does not");
  if (flag === "MPT") return "mpt";
  mode(driver !== "nvle", "GPUs do not report encrypted NVLink");
  mode(gpus.length === 1, "nothing says how GPUs protect what they say to each other");
  return "single";
}

function wiring(gpus, switches) {
  const own = switches.every(({ identity, report }) => report.ownIdentity === identity);
  set(own, "a switch reports another identity than it is certified for");
  names(gpus.map(({ report }) => report.switches), switches);
  names(switches.map(({ report }) => report.gpus), gpus);
}

/** Each device of one kind names exactly the devices of the other kind that are shown. */
function names(named, shown) {
  const identities = [...new Set(shown.map(({ identity }) => identity))].sort();
  const known = named.length > 0 && identities.length > 0 && !identities.includes("");
  const exact = named.every((found) => [...new Set(found)].sort().join() === identities.join());
  set(known && exact, "devices name others than those shown");
}
