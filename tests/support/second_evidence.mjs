// Judge many evidence documents in one process: a JSON object a line in, the code of its refusal out.

import { createInterface } from "node:readline";

import { CannotCheck, Refusal, equal, fromBase64 } from "../../verify/bytes.js";
import { appraise, readEvidence, reportData, verifyEvidence } from "../../verify/evidence.js";
import { checkSimulators, isPolicy } from "../../verify/trust.js";

async function judged({ evidence, policy, now, purpose, transcript }) {
  if (!isPolicy(policy)) return "trust-invalid";
  await checkSimulators(policy);
  const document = readEvidence(fromBase64(evidence));
  const facts = await verifyEvidence(document, policy, now, { purpose, transcript });
  const { composeHash, appId } = facts;
  appraise(facts, policy, { compose_hash: composeHash, app_id: appId }, now);
  const expected = await reportData(purpose, transcript, document.gpu);
  return equal(expected, facts.reportData) ? "accepted" : "report-data-mismatch";
}

for await (const line of createInterface({ input: process.stdin })) {
  let code;
  try {
    code = await judged(JSON.parse(line));
  } catch (error) {
    if (error instanceof Refusal) code = error.code;
    else if (error instanceof CannotCheck) code = "not-checked";
    else code = `fault: ${error.stack}`;
  }
  process.stdout.write(`${JSON.stringify(code)}\n`);
}
