// Open the verifier's page in Chromium and give it files: node in_chromium.mjs CHROMIUM PAGE FILE…
//
// Prints the verdict, the rows, the time, and every address asked for. Without a FILE the page is a
// report that checks itself. `SHOWN_AT` is a width in pixels, `SCHEME` light or dark, `SHOT` a PNG
// to write; `WITHOUT` names an algorithm that the browser then does not know.

import { writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

import { withPage } from "./devtools.mjs";

const [chromium, page, ...files] = process.argv.slice(2);
const width = Number(process.env.SHOWN_AT ?? 0);

async function work({ ask, evaluate, until, shaped, picture, seen, version }) {
  if (width) await shaped(width, process.env.SCHEME === "dark");
  if (process.env.WITHOUT) {
    const source = `const known = crypto.subtle.importKey;
      SubtleCrypto.prototype.importKey = function (format, key, algorithm, ...rest) {
        const unknown = algorithm.name === ${JSON.stringify(process.env.WITHOUT)};
        if (unknown) return Promise.reject(new DOMException("unknown", "NotSupportedError"));
        return known.call(this, format, key, algorithm, ...rest);
      };`;
    await ask("Page.addScriptToEvaluateOnNewDocument", { source });
  }
  const none = { latency: 0, downloadThroughput: 0, uploadThroughput: 0 };
  await ask("Network.emulateNetworkConditions", { offline: true, ...none });
  await ask("Page.navigate", { url: pathToFileURL(page).href });
  await until("document.readyState === 'complete'", 5000);
  if (files.length) {
    const { root } = await ask("DOM.getDocument");
    const { nodeId } = await ask("DOM.querySelector", { nodeId: root.nodeId, selector: "#files" });
    await ask("DOM.setFileInputFiles", { nodeId, files });
  }
  const [holder, verdict, list] = files.length
    ? ["document.body", "verdict", "#checks tr"]
    : ["document.getElementById('self-check')", "self-verdict", "#self-rows li"];
  await until(`${holder}.dataset.verdict`, 10000);
  const rows = `[...document.querySelectorAll(${JSON.stringify(list)})].map((row) => ({...row.dataset}))`;
  const answer = {
    verdict: await evaluate(`${holder}.dataset.verdict`),
    shown: await evaluate(`document.getElementById(${JSON.stringify(verdict)}).textContent`),
    milliseconds: Number(await evaluate(`${holder}.dataset.milliseconds`)),
    rows: await evaluate(rows),
    width: await evaluate("document.documentElement.scrollWidth"),
    stacked: await evaluate(`[...document.querySelectorAll("td:not(:empty)")].every((cell) => getComputedStyle(cell).display === "block")`),
    browser: await version(),
    ...seen,
  };
  if (process.env.SHOT) writeFileSync(process.env.SHOT, await picture(width));
  return answer;
}

console.log(JSON.stringify(await withPage(chromium, work)));
