// Open the verifier's page in Chromium and give it files: node in_chromium.mjs CHROMIUM PAGE FILE…
//
// Speaks DevTools over pipes. Prints the verdict, the rows, the time, and every address asked for.
// Without a FILE the page is a report that checks itself. `SHOWN_AT` is a width in pixels;
// `WITHOUT` names an algorithm that the browser then does not know.

import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [chromium, page, ...files] = process.argv.slice(2);
const profile = mkdtempSync(path.join(tmpdir(), "chromium-"));
const flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"];
flags.push("--disable-background-networking", "--remote-debugging-pipe", `--user-data-dir=${profile}`);
const browser = spawn(chromium, flags, { stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"] });
const waiting = new Map();
const asked = [];
const faults = [];
let next = 0;
let rest = "";

browser.stdio[4].on("data", (data) => {
  const parts = (rest + data).split("\0");
  rest = parts.pop();
  for (const { id, result, error, method, params } of parts.map((part) => JSON.parse(part))) {
    if (method === "Network.requestWillBeSent") asked.push(params.request.url);
    if (method === "Runtime.exceptionThrown") faults.push(params.exceptionDetails.text);
    if (method === "Log.entryAdded") faults.push(params.entry.text);
    if (waiting.has(id)) waiting.get(id)(error ? { error } : result);
  }
});

function call(method, params = {}, sessionId) {
  const id = ++next;
  browser.stdio[3].write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
  return new Promise((resolve) => waiting.set(id, resolve));
}

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

try {
  const { targetId } = await call("Target.createTarget", { url: "about:blank" });
  const { sessionId } = await call("Target.attachToTarget", { targetId, flatten: true });
  const ask = (method, params) => call(method, params, sessionId);
  const evaluate = async (expression) =>
    (await ask("Runtime.evaluate", { expression, returnByValue: true })).result.value;
  for (const domain of ["Page", "DOM", "Network", "Runtime", "Log"]) await ask(`${domain}.enable`);
  if (process.env.SHOWN_AT) {
    const size = { width: Number(process.env.SHOWN_AT), height: 844, deviceScaleFactor: 1, mobile: true };
    await ask("Emulation.setDeviceMetricsOverride", size);
  }
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
  for (let i = 0; i < 100 && (await evaluate("document.readyState")) !== "complete"; i++) await pause(50);
  if (files.length) {
    const { root } = await ask("DOM.getDocument");
    const { nodeId } = await ask("DOM.querySelector", { nodeId: root.nodeId, selector: "#files" });
    await ask("DOM.setFileInputFiles", { nodeId, files });
  }
  const [holder, verdict, list] = files.length
    ? ["document.body", "verdict", "#checks tr"]
    : ["document.getElementById('self-check')", "self-verdict", "#self-rows li"];
  for (let i = 0; i < 200 && !(await evaluate(`${holder}.dataset.verdict`)); i++) await pause(50);
  const rows = `[...document.querySelectorAll(${JSON.stringify(list)})].map((row) => ({...row.dataset}))`;
  const answer = {
    verdict: await evaluate(`${holder}.dataset.verdict`),
    shown: await evaluate(`document.getElementById(${JSON.stringify(verdict)}).textContent`),
    milliseconds: Number(await evaluate(`${holder}.dataset.milliseconds`)),
    rows: await evaluate(rows),
    width: await evaluate("document.documentElement.scrollWidth"),
    stacked: await evaluate(`[...document.querySelectorAll("td")].every((cell) => getComputedStyle(cell).display === "block")`),
    browser: (await call("Browser.getVersion")).product,
    asked,
    faults,
  };
  console.log(JSON.stringify(answer));
} finally {
  browser.kill();
  await new Promise((resolve) => browser.once("exit", resolve));
  rmSync(profile, { recursive: true, force: true });
}
