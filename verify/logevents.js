// The closed table of a run log's events (spec/run-log.md): written by
// tools/verifier_page.py from src/sealtrain/signing/logevents.py.

import * as shape from "./shape.js";

/** Event → the kind of collaboration that has it, null for every run; its fields. */
export const EVENTS = {
  "run.started": {
    of: null,
    fields: shape.record({platform: shape.literal("dstack", "tdx", "nitro", "snp", "simulator"), phase: shape.literal("classify", "cpt", "dpo", "embed", "evaluate", "reward", "rlhf", "sft", "vlm")}, {collaboration: shape.literal("cut", "federated", "nodes", "pads", "travelling")}),
  },
  "run.restarted": {
    of: null,
    fields: shape.record({}),
  },
  "run.resumed": {
    of: null,
    fields: shape.record({counter: shape.integer(0, 9007199254740991), step: shape.integer(0, 9007199254740991), checkpoint: shape.hex64}),
  },
  "border.closed": {
    of: null,
    fields: shape.record({landlock: shape.integer(0, 9007199254740991), seccomp: shape.boolean, unbound: shape.integer(0, 9007199254740991), memory: shape.literal("private", "folder")}),
  },
  "keys.released": {
    of: null,
    fields: shape.record({lease_id: shape.hex64, not_after: shape.realTime}),
  },
  "data.validated": {
    of: null,
    fields: shape.record({rules_sha256: shape.hex64}, {report_sha256: shape.hex64}),
  },
  "data.counted": {
    of: null,
    fields: shape.map(shape.hex32, shape.nullable(shape.record({records: shape.integer(0, 9007199254740991), whole: shape.integer(0, 9007199254740991), truncated: shape.integer(0, 9007199254740991), filtered: shape.integer(0, 9007199254740991), empty: shape.integer(0, 9007199254740991)})), { min: 1, max: 256 }),
  },
  "rows.served": {
    of: null,
    fields: shape.map(shape.hex32, shape.nullable(shape.integer(0, 9007199254740991)), { min: 1, max: 256 }),
  },
  "checkpoint.sealed": {
    of: null,
    fields: shape.record({counter: shape.integer(0, 9007199254740991), step: shape.integer(0, 9007199254740991), digest: shape.hex64}),
  },
  "training.finished": {
    of: null,
    fields: shape.record({steps: shape.integer(0, 9007199254740991), samples: shape.integer(0, 9007199254740991)}),
  },
  "output.withheld": {
    of: null,
    fields: shape.map(shape.either(shape.literal("channel.broken", "exception.thread", "exception.uncaught", "exception.unraisable", "file.refused", "logged.error", "logged.info", "logged.warning", "network.refused", "printed", "program.refused", "warned"), (value) => value.startsWith("holder.") && shape.errorCode(value.slice(7))), shape.integer(1, 9007199254740991), { min: 0, max: 512 }),
  },
  "outputs.sealed": {
    of: null,
    fields: shape.map(shape.match(/^(?:model\/[A-Za-z0-9_][A-Za-z0-9._-]{0,127}(?:\/[A-Za-z0-9_][A-Za-z0-9._-]{0,127})*\.sealed)$/), shape.hex64, { min: 1, max: 4096 }),
  },
  "nodes.joined": {
    of: "nodes",
    fields: shape.record({session: shape.hex32, ranks: shape.integer(1, 64), nodes: shape.list(shape.record({node: shape.integer(1, 255), run_id: shape.hex32, evidence: shape.hex64, key: shape.hex64, from: shape.realTime}), { min: 1, max: 255 })}),
  },
  "federation.begun": {
    of: "federated",
    fields: shape.record({rule: shape.literal("exact", "fedavg", "ffa", "flower", "median", "trimmed-mean"), rounds: shape.integer(1, 9007199254740991), min_parties: shape.integer(1, 9007199254740991), parties: shape.list(shape.match(/^(?:[a-z0-9][a-z0-9-]{0,62})$/), { min: 1, max: 256 }), state: shape.hex64}),
  },
  "federation.planned": {
    of: "federated",
    fields: shape.record({patients: shape.map(shape.match(/^(?:[a-z0-9][a-z0-9-]{0,62})$/), shape.integer(1, 9007199254740991), { min: 1, max: 256 }), rate: shape.number((value) => value > 0 && value <= 1), noise_multiplier: shape.number((value) => value >= 0.001 && value <= 1000000.0), epsilon: shape.number((value) => value >= 0 && value <= 1000000.0)}),
  },
  "party.joined": {
    of: "federated",
    fields: shape.record({party: shape.match(/^(?:[a-z0-9][a-z0-9-]{0,62})$/), records: shape.nullable(shape.integer(1, 9007199254740991))}, {patients: shape.integer(1, 9007199254740991), products: shape.record({pads: shape.literal("own", "pool", "dealer"), checks: shape.integer(1, 4), skip: shape.list(shape.match(/^(?:[A-Za-z0-9_][A-Za-z0-9_.]{0,199})$/), { min: 0, max: 256 }), layers: shape.map(shape.match(/^(?:[A-Za-z0-9_][A-Za-z0-9_.]{0,199})$/), shape.integer(1, 1000000), { min: 1, max: 4096 }), products: shape.integer(1, 1000000), dealer: shape.nullable(shape.record({simulated: shape.boolean}))})}),
  },
  "party.left": {
    of: "federated",
    fields: shape.record({party: shape.match(/^(?:[a-z0-9][a-z0-9-]{0,62})$/), code: shape.errorCode}),
  },
  "party.refused": {
    of: "federated",
    fields: shape.record({code: shape.errorCode}),
  },
  "round.begun": {
    of: "federated",
    fields: shape.record({round: shape.integer(1, 9007199254740991), state: shape.hex64}),
  },
  "update.taken": {
    of: "federated",
    fields: shape.record({round: shape.integer(1, 9007199254740991), party: shape.match(/^(?:[a-z0-9][a-z0-9-]{0,62})$/), digest: shape.nullable(shape.hex64), records: shape.nullable(shape.integer(1, 9007199254740991)), norm: shape.nullable(shape.number((value) => value >= 0))}, {products: shape.record({session: shape.hex32, products: shape.integer(0, 9007199254740991), rows: shape.integer(0, 9007199254740991), bytes_out: shape.integer(0, 9007199254740991), bytes_in: shape.integer(0, 9007199254740991)})}),
  },
  "update.refused": {
    of: "federated",
    fields: shape.record({round: shape.integer(1, 9007199254740991), party: shape.match(/^(?:[a-z0-9][a-z0-9-]{0,62})$/), code: shape.errorCode}),
  },
  "round.merged": {
    of: "federated",
    fields: shape.record({round: shape.integer(1, 9007199254740991), rule: shape.literal("exact", "fedavg", "ffa", "flower", "median", "trimmed-mean"), parties: shape.list(shape.match(/^(?:[a-z0-9][a-z0-9-]{0,62})$/), { min: 1, max: 256 }), state: shape.hex64}, {noise_multiplier: shape.number((value) => value >= 0.001 && value <= 1000000.0)}),
  },
  "federation.finished": {
    of: "federated",
    fields: shape.record({rounds: shape.integer(1, 9007199254740991), state: shape.hex64}),
  },
  "cut.begun": {
    of: "cut",
    fields: shape.record({layers: shape.integer(0, 1000), wire: shape.literal("bfloat16", "int8"), spf_share: shape.number((value) => value >= 0 && value <= 1)}),
  },
  "cut.joined": {
    of: "cut",
    fields: shape.record({party: shape.match(/^(?:[a-z0-9][a-z0-9-]{0,62})$/), consent: shape.record({payload: shape.match(/^(?:[A-Za-z0-9+\/]*={0,2})$/), payloadType: shape.literal("application/vnd.sealtrain.cut-consent+json"), signatures: shape.list(shape.record({keyid: shape.match(/^(?:ed25519:[0-9a-f]{64})$/), sig: shape.match(/^(?:[A-Za-z0-9+\/]{86}==)$/)}), { min: 1, max: 1 })})}),
  },
  "cut.received": {
    of: "cut",
    fields: shape.record({party: shape.match(/^(?:[a-z0-9][a-z0-9-]{0,62})$/), dataset_id: shape.hex32, rows: shape.integer(0, 9007199254740991), messages: shape.integer(0, 9007199254740991), bytes: shape.integer(0, 9007199254740991), digest: shape.hex64}),
  },
  "cut.finished": {
    of: "cut",
    fields: shape.record({entries: shape.integer(0, 9007199254740991)}),
  },
  "pads.begun": {
    of: "pads",
    fields: shape.record({pads: shape.literal("own", "pool", "dealer"), checks: shape.integer(1, 4), skip: shape.list(shape.match(/^(?:[A-Za-z0-9_][A-Za-z0-9_.]{0,199})$/), { min: 0, max: 256 }), layers: shape.map(shape.match(/^(?:[A-Za-z0-9_][A-Za-z0-9_.]{0,199})$/), shape.integer(1, 1000000), { min: 1, max: 4096 }), products: shape.integer(1, 1000000), dealer: shape.nullable(shape.record({simulated: shape.boolean}))}),
  },
  "pads.spent": {
    of: "pads",
    fields: shape.record({products: shape.integer(0, 9007199254740991), rows: shape.integer(0, 9007199254740991), bytes_out: shape.integer(0, 9007199254740991), bytes_in: shape.integer(0, 9007199254740991)}),
  },
  "travel.setup": {
    of: "travelling",
    fields: shape.record({buffer: shape.integer(1, 9007199254740991), program: shape.anyObject, holders: shape.map(shape.match(/^(?:[a-z0-9][a-z0-9-]{0,62})$/), shape.integer(1, 9007199254740991), { min: 1, max: 256 }), nonce: shape.hex64, code: shape.hex64, model: shape.hex64}),
  },
  "travel.taken-over": {
    of: "travelling",
    fields: shape.record({code: shape.hex64, model: shape.hex64}),
  },
  "travel.finished": {
    of: "travelling",
    fields: shape.record({model: shape.hex64}, {privacy: shape.map(shape.match(/^(?:[a-z0-9][a-z0-9-]{0,62})$/), shape.record({epsilon: shape.number((value) => value >= 0), delta: shape.number((value) => value >= 0 && value <= 1), sequences: shape.integer(0, 9007199254740991)}), { min: 1, max: 256 })}),
  },
  "trip.lent": {
    of: "travelling",
    fields: shape.record({trip: shape.integer(0, 9007199254740991), holder: shape.match(/^(?:[a-z0-9][a-z0-9-]{0,62})$/), start: shape.integer(0, 9007199254740991), end: shape.integer(0, 9007199254740991), id: shape.hex32}),
  },
  "trip.written": {
    of: "travelling",
    fields: shape.record({trip: shape.integer(0, 9007199254740991), size: shape.integer(0, 9007199254740991), mark: shape.hex64}),
  },
  "trip.refused": {
    of: "travelling",
    fields: shape.record({trip: shape.integer(0, 9007199254740991), holder: shape.match(/^(?:[a-z0-9][a-z0-9-]{0,62})$/), code: shape.errorCode}),
  },
  "trip.trained": {
    of: "travelling",
    fields: shape.record({trip: shape.integer(0, 9007199254740991), tokens: shape.integer(1, 9007199254740991), nonce: shape.hex64, after: shape.record({code: shape.hex64, model: shape.hex64})}, {moved: shape.number((value) => value >= -1)}),
  },
  "trip.scrubbed": {
    of: "travelling",
    fields: shape.record({trip: shape.integer(0, 9007199254740991), seed: shape.hex64, nonce: shape.hex64, proof: shape.hex64}),
  },
};

/** Whether the table has such an event with such fields. */
export const isWritten = (event, fields) =>
  Object.hasOwn(EVENTS, event) && EVENTS[event].fields(fields);
