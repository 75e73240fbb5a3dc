// What the reader's own trust file leaves open (spec/evidence.md §6.2).

import { OPEN_RTMR0, OPEN_WORDS } from "./openwords.js";

const fieldsOf = (part, rules) =>
  typeof rules === "string" ? [[part, rules]] : Object.entries(rules).map(([name, value]) => [`${part}.${name}`, value]);

/** Each open value in the order of the file: `field`, and in `words` what it accepts any of. */
export function openValues(trust) {
  const { cpu, gpu } = trust.appraisal;
  const pins = [
    ["compose_hash", trust.compose_hash],
    ["app_id", trust.app_id],
  ];
  const open = [...pins, ...fieldsOf("cpu", cpu), ...fieldsOf("gpu", gpu)]
    .filter(([, value]) => value === "any")
    .map(([field]) => ({ field, words: OPEN_WORDS[field.split(".").at(-1)] }));
  const logged = Array.isArray(cpu.measurements) && cpu.measurements.some(({ rtmr0 }) => rtmr0 === "log");
  return logged ? [...open, { field: "cpu.measurements.rtmr0", words: OPEN_RTMR0 }] : open;
}

const COMPARISON = /^[A-Za-z0-9][A-Za-z0-9 -]{0,63}$/;
const isRecord = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** Every claim in a verdict; none of what has another form. */
export function claimsOf(verdict) {
  const parts = isRecord(verdict) && isRecord(verdict.submods) ? Object.values(verdict.submods) : [];
  const lists = parts.map((part) => (isRecord(part) && Array.isArray(part.claims) ? part.claims : []));
  return lists.flat().filter(isRecord);
}

/** What brokers did not compare before they released keys, by the verdicts that they signed: sorted names. */
export function releasedOpen(receipts) {
  const names = new Set();
  for (const { verdict } of receipts) {
    for (const { outcome, name } of claimsOf(verdict)) {
      if (outcome === "any" && typeof name === "string" && COMPARISON.test(name)) names.add(name);
    }
  }
  return [...names].sort();
}
