// The deployment document of a guest: the lock in it, and that it is written as sealtrain writes it
// (spec/deployment-document.md).

import { requireAdditions } from "./adopted.js";
import { Refusal, demand, equal, utf8 } from "./bytes.js";
import { Malformed, canonical, parseJson } from "./json.js";

const LOCK = /<<'SEALTRAIN_FILE'\n(.*)\nSEALTRAIN_FILE\n/;
const GIVEN = "/run/sealtrain";
const FROM_DOCUMENT = "document:";
const KEPT = "/run-data";
const LOCK_NAME = "recipe.lock.json";
const REPORTS = "/sys/kernel/config/tsm/report";
const DOCUMENT = `${GIVEN}/app-compose.json`;
const TICKET = `${GIVEN}/ticket.json`;
const AGENT = "/var/run/dstack.sock";
const FIRST_PORT = 8471;

const changed = (condition, message) => demand(condition, "recipe-changed", message);
const readOnly = (path) => `${path}:${path}:ro`;

const DSTACK = {
  guest: AGENT,
  collateral: true,
  ticket: TICKET,
  volumes: [`${AGENT}:${AGENT}`, `/dstack/user_config:${TICKET}:ro`],
};
const reporting = (kind, collateral) => ({
  guest: `${kind}:${REPORTS}?compose=${DOCUMENT}`,
  collateral,
  ticket: TICKET,
  user: "0:0",
  volumes: [`${REPORTS}:${REPORTS}`, readOnly(DOCUMENT), readOnly(TICKET)],
});

/** What a document with an image says of each platform (spec/deployment-document.md §2). */
const PLATFORMS = {
  simulator: DSTACK,
  dstack: DSTACK,
  tdx: reporting("tdx", true),
  snp: reporting("snp", false),
  nitro: {
    guest: `nitro:/dev/nsm?compose=${DOCUMENT}`,
    collateral: false,
    ticket: "vsock:8475",
    volumes: [readOnly(DOCUMENT)],
    devices: ["/dev/nsm:/dev/nsm"],
  },
};

/** Bytes of the lock that a measured document embeds. */
export async function embeddedLock(bytes) {
  try {
    const document = parseJson(bytes, { size: 256 * 1024 });
    const inContainer = document?.runner === "docker-compose";
    const found = inContainer ? ofCompose(document) : ofScript(document);
    const lock = parseJson(utf8(found));
    const whole = frame(lock.recipe, started(lock, found));
    if (inContainer && Object.hasOwn(document, "pre_launch_script")) {
      await requireAdditions(bytes, document, parseJson(whole), lock.recipe.hardware.launch_script);
    } else {
      changed(equal(whole, bytes), "the document is not written as sealtrain writes it");
    }
    return utf8(found);
  } catch (error) {
    if (error instanceof Malformed || error instanceof TypeError) {
      throw new Refusal("recipe-changed", `the measured document: ${error.message}`);
    }
    throw error;
  }
}

function ofScript(document) {
  changed(document?.runner === "bash" && typeof document.bash_script === "string", "unknown runner");
  const found = LOCK.exec(document.bash_script);
  changed(found, "the document embeds no lock");
  return found[1];
}

function ofCompose(document) {
  const { configs } = parseJson(utf8(document.docker_compose_file));
  const content = configs[LOCK_NAME]?.content;
  changed(typeof content === "string", "the document embeds no lock");
  changed(!content.replaceAll("$$", "").includes("$"), "something is left to interpolate");
  return content.replaceAll("$$", "$");
}

const started = ({ recipe }, lock) =>
  recipe.hardware.image === null
    ? { runner: "bash", bash_script: script(lock) }
    : { runner: "docker-compose", docker_compose_file: new TextDecoder().decode(canonical(service(recipe, lock))) };

const script = (lock) => `#!/bin/bash
# SIMULATED — NOT ATTESTED. This document names no image, so no hardware guest may run it.
# sealtrain deployment document 3
set -euo pipefail
printf %s "$(cat <<'SEALTRAIN_FILE'
${lock}
SEALTRAIN_FILE
)" > ${LOCK_NAME}
exec sealtrain guest ${LOCK_NAME} --platform simulator --guest guest.sock --collateral file:collateral.json --gpu-collateral file:gpu-collateral.json --base base --out out --ticket ticket.json --json
`;

function service(recipe, lock) {
  const { hardware } = recipe;
  const name = hardware.platforms.find((one) => one !== "simulator") ?? "simulator";
  changed(Object.hasOwn(PLATFORMS, name), "unknown platform");
  const platform = PLATFORMS[name];
  changed(!hardware.enclave || name === "nitro", "an enclave's size on another platform");
  const collateral = platform.collateral ? ["--collateral", `file:${KEPT}/collateral.json`] : [];
  const guest = {
    image: hardware.image,
    labels: { "sealtrain.document": "3" },
    entrypoint: ["sealtrain"],
    command: [
      ...["guest", `${FROM_DOCUMENT}${LOCK_NAME}`, "--platform", name, "--guest", platform.guest, ...collateral],
      ...["--gpu-collateral", `file:${KEPT}/gpu-collateral.json`, "--base", `${KEPT}/base`],
      ...["--out", `${KEPT}/out`, "--ticket", platform.ticket, "--json"],
    ],
    working_dir: KEPT,
    volumes: [...platform.volumes, `run-data:${KEPT}`],
    cap_drop: ["ALL"],
    security_opt: ["no-new-privileges:true"],
    read_only: true,
    tmpfs: ["/tmp:exec"],
    shm_size: "8gb",
    restart: "no",
  };
  const ports = portsOf(recipe);
  if (ports.length) guest.ports = ports.map((port) => `${port}:${port}`);
  if (platform.user) guest.user = platform.user;
  if (platform.devices) guest.devices = platform.devices;
  if (hardware.gpu) {
    const all = { capabilities: ["gpu"], count: "all", driver: "nvidia" };
    guest.deploy = { resources: { reservations: { devices: [all] } } };
  }
  return {
    configs: { [LOCK_NAME]: { content: lock.replaceAll("$", "$$$$") } },
    services: { guest },
    volumes: { "run-data": {} },
  };
}

function portsOf({ collaboration, backend }) {
  if (!collaboration) return [];
  const { ranks = 1, resume_ranks: others = [] } = backend ?? {};
  const more = collaboration.kind === "nodes" ? Math.max(ranks, ...others) : 1;
  return Array.from({ length: more + 1 }, (_, place) => FIRST_PORT + place);
}

function frame({ name, hardware }, start) {
  return canonical({
    manifest_version: 2,
    name,
    key_provider: hardware.key_provider,
    key_provider_id: hardware.key_provider_id ?? "",
    kms_enabled: hardware.key_provider === "kms",
    local_key_provider_enabled: hardware.key_provider === "local",
    public_logs: false,
    public_sysinfo: false,
    gateway_enabled: false,
    no_instance_id: false,
    public_tcbinfo: true,
    secure_time: true,
    allowed_envs: [],
    storage_fs: "zfs",
    ...start,
  });
}
