// Judge what the negative cases ask: a JSON object a line in, a code or null out.

import { createInterface } from "node:readline";

import { CannotCheck, Refusal, equal, fromBase64, utf8 } from "../../verify/bytes.js";
import { appraise, readEvidence, reportData, verifyEvidence } from "../../verify/evidence.js";
import { canonical, parseJson } from "../../verify/json.js";
import * as nitro from "../../verify/nitro.js";
import * as snp from "../../verify/snp.js";
import { verifyQuote } from "../../verify/tdx.js";
import { checkSimulators, isPolicy } from "../../verify/trust.js";
import { readTrust, verify } from "../../verify/verify.js";
import { JUDGES } from "./second_accelerators.mjs";

const rootOf = (text) => (text === null ? null : fromBase64(text));
const ANY = {
  nitro: { max_age_s: 2 ** 40 },
  snp: { revocation: "any" },
};

async function signed(tee, name, { cpu, root, now, rules }) {
  const facts = await tee.verify(cpu, { rules: rules ?? ANY[name], root: rootOf(root), now });
  if (rules) tee.appraise(facts, rules);
}

const OF_EVIDENCE = {
  async quote({ raw, collateral, rules, root, now }) {
    await verifyQuote(fromBase64(raw), collateral, rules, rootOf(root), now);
  },
  nitro: (question) => signed(nitro, "nitro", question),
  snp: (question) => signed(snp, "snp", question),
  async evidence({ evidence, policy, now, purpose, transcript }) {
    if (!isPolicy(policy)) throw new Refusal("trust-invalid", "");
    await checkSimulators(policy);
    const document = readEvidence(canonical(evidence));
    const facts = await verifyEvidence(document, policy, now, { purpose, transcript });
    appraise(facts, policy, { compose_hash: facts.composeHash, app_id: facts.appId }, now);
    const expected = await reportData(purpose, transcript, document.gpu);
    if (!equal(expected, facts.reportData)) throw new Refusal("report-data-mismatch", "");
  },
  async manifest({ manifest, trust, artefacts, now }) {
    const files =
      artefacts &&
      new Map(
        Object.entries(artefacts).map(([path, data]) => [path, data === null ? null : async () => fromBase64(data)]),
      );
    const { verdict, code } = await verify(fromBase64(manifest), await readTrust(utf8(trust)), { artefacts: files, now });
    if (verdict === "refused") throw new Refusal(code, "");
    if (verdict !== "verified") throw new CannotCheck(verdict);
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  let code = null;
  try {
    const question = parseJson(utf8(line), { values: 2 ** 20, size: Infinity });
    await { ...JUDGES, ...OF_EVIDENCE }[question.kind](question);
  } catch (error) {
    if (error instanceof Refusal) code = error.code;
    else if (error instanceof CannotCheck) code = "not-checked";
    else code = `fault ${error.stack}`;
  }
  process.stdout.write(`${JSON.stringify(code)}\n`);
}
