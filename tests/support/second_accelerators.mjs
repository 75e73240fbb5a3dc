// Judge many questions about accelerators in one process: a JSON object a line in, a code or null out.

import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

import { CannotCheck, Refusal, fromBase64, fromHex, utf8 } from "../../verify/bytes.js";
import { parseJson } from "../../verify/json.js";
import { COLLATERAL, FORM, RULES, verify } from "../../verify/nvidia.js";
import { checkRevocation } from "../../verify/ocsp.js";
import { authentic, checkReferenceValues } from "../../verify/rim.js";
import { parseReport } from "../../verify/spdm.js";
import { certificate } from "../../verify/x509.js";

/** As `JSON.parse`, without prototypes, as all documents are read. */
const read = (line) => parseJson(utf8(line), { values: 2 ** 20 });

const form = (holds, code) => {
  if (!holds) throw new Refusal(code, "another form");
};

export const JUDGES = {
  async gpus({ evidence, rules, simulated, collateral, nonce, now }) {
    form(RULES(rules, simulated), "trust-invalid");
    form(FORM(evidence) && (collateral === null || COLLATERAL(collateral)), "evidence-malformed");
    await verify(evidence, { rules, nonce: fromHex(nonce), now, collateral });
  },
  async revocation({ chain, answers, now, max_age }) {
    const rules = { revocation: "require", max_ocsp_age_s: max_age };
    await checkRevocation(chain.map((one) => certificate(fromBase64(one))), { ocsp: answers }, rules, now);
  },
  async file({ xml, root, now, pinned }) {
    const { start, end } = await authentic(fromBase64(xml), root);
    form(pinned || (start <= now && now <= end), "reference-value-invalid");
  },
  async reference({ architecture, report, collateral, wanted, root, now }) {
    const parsed = await parseReport(fromBase64(report));
    const device = { architecture, report: parsed };
    const given = { root: root === null ? null : fromBase64(root), now, read: new Map() };
    await checkReferenceValues(device, collateral, { reference_values: wanted }, given);
  },
};

if (import.meta.url === pathToFileURL(process.argv[1]).href) await answer();

async function answer() {
  for await (const line of createInterface({ input: process.stdin })) {
    let code = null;
    try {
      const question = read(line);
      await JUDGES[question.kind](question);
    } catch (error) {
      if (error instanceof Refusal) code = error.code;
      else if (error instanceof CannotCheck) code = "not-checked";
      else code = `fault ${error.stack}`;
    }
    process.stdout.write(`${JSON.stringify(code)}\n`);
  }
}
