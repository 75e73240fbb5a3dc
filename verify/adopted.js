// A deployment document that a platform added to (spec/deployment-document.md §8): a closed list of
// fields, and a launch script that does nothing or that the lock names.

import { demand, digest, equal, utf8 } from "./bytes.js";
import { canonical } from "./json.js";
import { line } from "./shape.js";

const SCRIPT = "pre_launch_script";
const EMPTY_SCRIPT = `#!/bin/sh
# sealtrain deployment document 3
# Nothing is done before the containers start.
:
`;

const changed = (condition, message) => demand(condition, "recipe-changed", `the measured document: ${message}`);
const same = (first, second) => equal(canonical(first), canonical(second));
const exactly = (expected) => (value) => same(value, expected);
const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const ACCOUNT = new Set(["registry", "username", "password", "token_key"]);

const FIELDS = {
  features: (value, { kms_enabled: kms }) => same(value, []) || (same(value, ["kms"]) && kms === true),
  tproxy_enabled: exactly(false),
  docker_config: (value) =>
    isObject(value) && Object.entries(value).every(([name, text]) => ACCOUNT.has(name) && (text === null || text === "")),
  salt: (value) => value === null || (typeof value === "string" && /^[0-9a-f]{1,64}$/.test(value)),
  env_pubkey: (value) => typeof value === "string" && /^[0-9a-f]{0,130}$/.test(value),
  port_policy: (value) =>
    same(value, { ports: [], restrict_mode: true }) || same(value, { ports: [], restrict_mode: false }),
  swap_size: exactly(0),
  event_log_version: exactly(1),
  verity_volumes: exactly([]),
};

/** Refuse a document that has anything besides what the lock gives and a platform may add. */
export async function requireAdditions(bytes, document, expected, launchScript) {
  changed(equal(canonical(document), bytes), "it is not canonical JSON");
  for (const [name, value] of Object.entries(expected)) {
    changed(Object.hasOwn(document, name), `it lacks ${name}`);
    const accepted = name === "name" ? line(128)(document.name) : same(document[name], value);
    changed(accepted || same(document[name], value), `it has another ${name}`);
  }
  for (const name of Object.keys(document)) {
    if (name === SCRIPT || Object.hasOwn(expected, name)) continue;
    changed(Object.hasOwn(FIELDS, name), `no platform may add ${name}`);
    changed(FIELDS[name](document[name], document), `no platform may give this value to ${name}`);
  }
  const script = document[SCRIPT];
  changed(typeof script === "string", "its launch script is no text");
  const named = script === EMPTY_SCRIPT || (await digest(utf8(script))) === launchScript;
  changed(named, "it runs another launch script than its lock names");
}
