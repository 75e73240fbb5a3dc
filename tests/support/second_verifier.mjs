// Verify many manifests in one process: a JSON object a line in, one out, in the same order.

import { createInterface } from "node:readline";

import { Refusal } from "../../verify/bytes.js";
import { filesBelow } from "../../verify/node.js";
import { readTrust, verify } from "../../verify/verify.js";

for await (const line of createInterface({ input: process.stdin })) {
  const { manifest, trust, artefacts, now } = JSON.parse(line);
  const began = performance.now();
  let answer;
  try {
    const bytes = new Uint8Array(Buffer.from(manifest, "base64"));
    const given = await readTrust(new TextEncoder().encode(trust));
    const files = artefacts === null ? null : await filesBelow(artefacts);
    answer = await verify(bytes, given, { artefacts: files, now });
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    answer = { verdict: "unusable", check: null, code: error.code, checks: [] };
  }
  const { verdict, check, code, checks, open, released, chain, limits = [] } = answer;
  const told = checks.map(({ name, outcome, detail, fault }) => ({ name, outcome, detail, fault }));
  const ms = performance.now() - began;
  process.stdout.write(`${JSON.stringify({ verdict, check, code, checks: told, open, released, chain, limits: limits.map((one) => one.text), ms })}\n`);
}
