// What a dstack guest measured: the event log against a verified quote (spec/evidence.md §5).

import { concat, demand, equal, fromHex, hex, sha256, sha384, utf8 } from "./bytes.js";
import { Malformed, canonical, parseJson } from "./json.js";
import { keccak256 } from "./keccak.js";

const RUNTIME = 134217729;
const KINDS = { none: 0, local: 1, kms: 2, tpm: 3 };
const replays = (condition, message) => demand(condition, "event-log-mismatch", message);

function le32(value) {
  return new Uint8Array([value, value >>> 8, value >>> 16, value >>> 24]);
}

/** What is hashed of a run-time event, in whichever bank. */
export function runtimePreimage(entry) {
  replays(entry.event_type === RUNTIME, "a foreign event");
  replays(entry.digest === "", "an event brings its own digest");
  if (entry.version === 1) {
    return concat(le32(RUNTIME), utf8(":"), utf8(entry.event), utf8(":"), fromHex(entry.event_payload));
  }
  return canonical({ name: entry.event, payload: entry.event_payload, type: RUNTIME });
}

async function entryDigest(entry) {
  if (entry.imr < 3) {
    const bare = entry.event_type === 0 && entry.event === "" && entry.event_payload === "";
    replays(bare && entry.version === 1 && entry.digest.length === 96, "a firmware event with more than a digest");
    return fromHex(entry.digest);
  }
  return sha384(runtimePreimage(entry));
}

/** What a log that replays to a quote's registers says of the guest. */
export async function replay(log, quote) {
  const firmware = log.some((entry) => entry.imr < 3);
  for (const [index, quoted] of quote.rtmr.entries()) {
    if (index < 3 && !firmware) continue;
    let register = new Uint8Array(48);
    for (const entry of log.filter((one) => one.imr === index)) {
      register = await sha384(register, await entryDigest(entry));
    }
    replays(hex(register) === quoted, `event log does not replay to RTMR${index}`);
  }
  const events = bootEvents(log);
  const measured = { ...facts(events), firmwareLogged: log.some((entry) => entry.imr === 0) };
  if (quote.configId.some((byte) => byte !== 0)) await checkConfigId(quote.configId, measured, events);
  return measured;
}

/** Compare the firmware's log of a guest without dstack with the registers that firmware extends. */
export async function replayFirmware(events, quote) {
  for (const index of [0, 1, 2]) {
    let register = new Uint8Array(48);
    for (const event of events.filter((one) => one.index === index)) {
      register = await sha384(register, fromHex(event.digest));
    }
    replays(hex(register) === quote.rtmr[index], `boot log does not replay to RTMR${index}`);
  }
}

function bootEvents(log) {
  const events = new Map();
  for (const entry of log.filter((one) => one.imr === 3)) {
    if (entry.event === "system-ready") return events;
    replays(!events.has(entry.event), "an event was measured twice");
    replays(!entry.event.includes(":"), "an ambiguous name of an event");
    events.set(entry.event, entry.event_payload);
  }
  replays(false, "no system-ready");
}

function facts(events) {
  const provider = keyProvider(events.get("key-provider"));
  const image = events.get("os-image-hash") ?? null;
  replays(image === null || image.length === 64, "os-image-hash has another length");
  const required = (name, ...lengths) => {
    const value = events.get(name);
    replays(value !== undefined && lengths.includes(value.length), `${name} is missing or malformed`);
    return value;
  };
  return {
    appId: required("app-id", 40),
    composeHash: required("compose-hash", 64),
    instanceId: required("instance-id", 0, 40),
    provider,
    image,
  };
}

function keyProvider(payload) {
  replays(payload !== undefined, "no key-provider");
  let value = null;
  try {
    value = parseJson(fromHex(payload), { depth: 2, size: 8192 });
  } catch (error) {
    if (!(error instanceof Malformed)) throw error;
  }
  const sound = typeof value?.name === "string" && fromHex(value.id) !== null;
  demand(sound, "key-provider-mismatch", "the key provider's event is malformed");
  return { name: value.name, id: value.id };
}

/** What the run-time events of a log say; that they replay is compared by the caller. */
export const measuredGuest = (log) => facts(bootEvents(log));

/** Configuration ids of form 2 (33 bytes) that commit to what was measured. */
export function configIds({ appId, composeHash, provider }) {
  const kind = provider.name.replace(/-sgx$/, "");
  if (!Object.hasOwn(KINDS, kind)) return [];
  return [provider.id, ""].map((id) => {
    const tail = concat(new Uint8Array([KINDS[kind]]), fromHex(id));
    return concat(new Uint8Array([2]), keccak256(concat(fromHex(composeHash), fromHex(appId), tail)));
  });
}

async function checkConfigId(configId, measured, events) {
  const { appId, composeHash, instanceId, provider } = measured;
  const kind = provider.name.replace(/-sgx$/, "");
  const accepted = [concat(new Uint8Array([1]), fromHex(composeHash)), ...configIds(measured)];
  for (const id of [provider.id, ""]) {
    const document = {
      app_id: appId,
      compose_hash: composeHash,
      instance_id: instanceId,
      key_provider: kind,
      key_provider_id: id,
      version: 3,
    };
    const gpu = events.get("gpu-policy-hash") ?? hex(await sha256(utf8("{}")));
    for (const variant of [document, { ...document, gpu_policy_hash: gpu }]) {
      const value = await sha256(utf8("dstack-mr-config-v3:\0"), canonical(variant));
      accepted.push(concat(new Uint8Array([3]), value));
    }
  }
  const commits = accepted.some((value) => equal(concat(value, new Uint8Array(15)), configId));
  replays(commits, "MRCONFIGID commits to other values than the log");
}

/** The rules of a policy for what a dstack guest measured. */
export function appraiseMeasured(measured, rules) {
  const provider = measured.provider.id || measured.provider.name;
  const known = rules.key_provider === "any" || rules.key_provider === provider;
  demand(known, "key-provider-mismatch", "another key provider");
  const image = ["any", "measured"].includes(rules.os_image_hash) || rules.os_image_hash.includes(measured.image);
  demand(image, "measurement-mismatch", "another OS image");
}
