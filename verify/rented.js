// dstack guests on rented machines: Google Cloud with TDX, EC2 with a NitroTPM (spec/evidence-tpm.md).

import { concat, demand, equal, fromBase64, hex, sha256, sha384, utf8 } from "./bytes.js";
import { configIds, measuredGuest, runtimePreimage } from "./dstack.js";
import * as nitro from "./nitro.js";
import * as shape from "./shape.js";
import * as tpm from "./tpm.js";

const { either, integer, list, literal, match, record } = shape;
const HASHES = { sha256, sha384 };
const SHA384 = { name: "sha384", size: 48 };
const EVENT_PCR = 14;
const ZEROS = new Uint8Array(48);
const any = literal("any");
const extended = (form) => (value) => form(value) && !/^0+$/.test(value);
const provider = match(/^(?:[0-9a-f]{2}){16,1024}$/);
const replays = (condition, message) => demand(condition, "event-log-mismatch", message);

const names = either(any, list(match(/^[a-z0-9][a-z0-9.:-]{0,127}$/), { max: 1024 }));
const numbers = either(any, list(match(/^(?:0|[1-9][0-9]{0,19})$/), { max: 1024 }));
const pcr = extended(shape.hex64);

/** Which machines of Google Cloud a policy accepts. */
export const PLACE_RULES = { projects: names, zones: names, instances: numbers };

/** Fields that a policy for Google Cloud has besides those of dstack. */
export const GOOGLE_RULES = {
  boots: either(any, list(record({ pcr0: pcr, pcr2: pcr }), { max: 1024 })),
  ...PLACE_RULES,
};

const register = extended(shape.hex96);

/** A policy's rules for EC2 with a NitroTPM. */
export const NITRO_TPM_RULES = record({
  tee: literal("dstack-aws-nitro-tpm"),
  boots: list(record({ pcr4: register, pcr7: register, pcr12: shape.hex96 }), { max: 1024 }),
  config_id: literal("require", "any"),
  key_provider: either(any, provider),
  instances: either(any, list(match(/^i-[0-9a-f]{8,32}$/), { max: 4096 })),
  max_age_s: integer(1, 10800),
});

/** The register that the run-time events of a log extended, hex. */
async function eventRegister(log, bank) {
  const digests = [];
  for (const entry of log.filter((one) => one.imr === 3)) {
    digests.push(await HASHES[bank.name](runtimePreimage(entry)));
  }
  return tpm.replayed(bank, digests);
}

/** That a vTPM's quote is of this TDX quote and log. */
export async function checkGoogle(cpu, root, now) {
  const found = await tpm.verifyTpm(cpu.tpm, root, now);
  return {
    found,
    async bound() {
      const expected = await sha256(fromBase64(cpu.quote));
      demand(equal(found.quote.qualifying, expected), "report-data-mismatch", "the vTPM signed for another quote");
      const register = await eventRegister(cpu.event_log, found.quote.bank);
      replays(found.registers.get(EVENT_PCR) === register, "event log does not replay to PCR 14 of the vTPM");
    },
  };
}

/** The rules of a policy for a vTPM whose quote verified. */
export function appraiseGoogle({ quote, registers, machine }, rules) {
  const boot = (one) => one.pcr0 === registers.get(0) && one.pcr2 === registers.get(2);
  const booted = rules.boots === "any" || (quote.bank.name === "sha256" && rules.boots.some(boot));
  demand(booted, "measurement-mismatch", "another firmware or image was booted");
  appraisePlace(machine, rules);
}

/** The rules of a policy for where a vTPM's machine is. */
export function appraisePlace(machine, rules) {
  for (const [allowed, got] of [
    [rules.projects, machine.project],
    [rules.zones, machine.zone],
    [rules.instances, machine.instance],
  ]) {
    demand(allowed === "any" || allowed.includes(got), "platform-mismatch", `another machine: ${got}`);
  }
}

/** Facts that AWS signed about a dstack guest on EC2. */
export async function verifyNitroTpm(cpu, { root, now }) {
  const document = await nitro.verifyDocument(fromBase64(cpu.document), root, now, nitro.NITRO_TPM);
  const only = cpu.event_log.every((entry) => entry.imr === 3);
  const quoted = document.pcrs.has(EVENT_PCR) ? hex(document.pcrs.get(EVENT_PCR)) : null;
  const found = await eventRegister(cpu.event_log, SHA384);
  replays(only && quoted === found, "event log does not replay to PCR 14 of the NitroTPM");
  const measured = measuredGuest(cpu.event_log);
  const composeHash = hex(await sha256(utf8(cpu.app_compose)));
  demand(measured.composeHash === composeHash, "compose-hash-mismatch", "another deployment document");
  demand(document.userData?.length === 64, "report-data-mismatch", "user data is not report data");
  return {
    document,
    measured,
    simulated: Boolean(root),
    reportData: document.userData,
    composeHash,
    appId: measured.appId,
    keyProvider: measured.provider.id,
    configured: await configured(document, measured),
  };
}

/** Whether PCR 8 is unset, or commits to what was measured, or does neither (null). */
async function configured(document, measured) {
  const found = document.pcrs.get(8) ?? ZEROS;
  if (equal(found, ZEROS)) return "unset";
  for (const id of configIds(measured)) {
    if (equal(found, await sha384(ZEROS, concat(id, new Uint8Array(48 - id.length))))) return "set";
  }
  return null;
}

/** The rules of a policy for a NitroTPM whose document verified. */
export function appraiseNitroTpm({ document, measured, configured: state }, rules, now) {
  const at = document.timestamp / 1000;
  const fresh = now - rules.max_age_s <= at && at <= now + 60;
  demand(fresh, "evidence-stale", "the document was made at another time");
  const value = (index) => (document.pcrs.has(index) ? hex(document.pcrs.get(index)) : null);
  const boot = (one) => [4, 7, 12].every((index) => one[`pcr${index}`] === value(index));
  demand(rules.boots.some(boot), "measurement-mismatch", "another image was booted");
  const committed = state === "set" || (state === "unset" && rules.config_id === "any");
  replays(committed, "PCR 8 commits to other values than the log");
  const named = measured.provider.id || measured.provider.name;
  const known = rules.key_provider === "any" || rules.key_provider === named;
  demand(known, "key-provider-mismatch", "another key provider");
  const instance = rules.instances === "any" || rules.instances.includes(document.parent);
  demand(instance, "platform-mismatch", "another instance");
}
