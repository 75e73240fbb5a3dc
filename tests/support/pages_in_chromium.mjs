// Visit pages in Chromium: node pages_in_chromium.mjs CHROMIUM < JOB, a JSON object of `axe` (path of axe-core, or
// null), `authenticator` (whether a passkey can be made) and `visits`.
//
// A visit has `url`, `width`, `dark`, and may have `shot` (a PNG to write), `tabs` (how often Tab is pressed),
// `blocked` (URL patterns), and `steps`: `{click}` and `{press}` a selector, `{value, of}`, `{until}` an expression,
// `{get}` one, `{pause}` milliseconds. Prints what each visit found. Speaks DevTools over pipes.

import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";

const chromium = process.argv[2];
const job = JSON.parse(readFileSync(0, "utf8"));
const axe = job.axe ? readFileSync(job.axe, "utf8") : null;
const profile = mkdtempSync(path.join(tmpdir(), "chromium-"));
const flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"];
flags.push("--disable-background-networking", "--remote-debugging-pipe", `--user-data-dir=${profile}`);
const browser = spawn(chromium, flags, { stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"] });
const waiting = new Map();
const WATCH = `addEventListener("securitypolicyviolation", (event) => {
  (window.violations ??= []).push(event.violatedDirective + " " + event.blockedURI);
});`;
let asked = [];
let faults = [];
let next = 0;
let rest = "";

browser.stdio[4].on("data", (data) => {
  const parts = (rest + data).split("\0");
  rest = parts.pop();
  for (const { id, result, error, method, params } of parts.map((part) => JSON.parse(part))) {
    if (method === "Network.requestWillBeSent") asked.push(params.request.url);
    if (method === "Runtime.exceptionThrown") faults.push(params.exceptionDetails.exception?.description ?? "exception");
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

async function main() {
  const { targetId } = await call("Target.createTarget", { url: "about:blank" });
  const { sessionId } = await call("Target.attachToTarget", { targetId, flatten: true });
  const ask = (method, params) => call(method, params, sessionId);
  const evaluate = async (expression) => {
    const found = await ask("Runtime.evaluate", { expression, returnByValue: true, awaitPromise: true });
    if (found.exceptionDetails) throw new Error(`${expression.slice(0, 200)}: ${found.exceptionDetails.exception?.description}`);
    return found.result?.value;
  };
  const until = async (expression, milliseconds = 15000) => {
    const ends = Date.now() + milliseconds;
    while (Date.now() < ends) {
      if (await evaluate(expression).catch(() => false)) return true;
      await pause(40);
    }
    return false;
  };
  for (const domain of ["Page", "DOM", "Network", "Runtime", "Log"]) await ask(`${domain}.enable`);
  await ask("Page.addScriptToEvaluateOnNewDocument", { source: WATCH });
  if (job.authenticator) {
    await ask("WebAuthn.enable");
    const options = { protocol: "ctap2", transport: "internal", hasResidentKey: true, hasUserVerification: true };
    await ask("WebAuthn.addVirtualAuthenticator", { options: { ...options, isUserVerified: true } });
  }
  const key = async (name, code) => {
    await ask("Input.dispatchKeyEvent", { type: "keyDown", key: name, code: name, windowsVirtualKeyCode: code, text: name === "Enter" ? "\r" : undefined });
    await ask("Input.dispatchKeyEvent", { type: "keyUp", key: name, code: name, windowsVirtualKeyCode: code });
  };

  const answers = [];
  for (const visit of job.visits) {
    [asked, faults] = [[], []];
    const size = { width: visit.width, height: visit.width < 600 ? 844 : 900, deviceScaleFactor: 1, mobile: visit.width < 600 };
    await ask("Emulation.setDeviceMetricsOverride", size);
    const features = [{ name: "prefers-color-scheme", value: visit.dark ? "dark" : "light" }];
    await ask("Emulation.setEmulatedMedia", { features });
    await ask("Network.setBlockedURLs", { urls: visit.blocked ?? [] });
    await ask("Page.navigate", { url: visit.url });
    await until(`document.readyState === "complete" && location.href.startsWith(${JSON.stringify(visit.url.split("#")[0])})`);
    const settled = await until(`![...document.querySelectorAll("[data-part] [role=status]")].length &&
      (!document.getElementById("live") || document.getElementById("live").dataset.state)`, visit.patience ?? 25000);
    await until("performance.getEntriesByName('first-contentful-paint').length", 1500);
    const got = [];
    for (const step of visit.steps ?? []) {
      if (step.click) await evaluate(`document.querySelector(${JSON.stringify(step.click)}).click()`);
      if (step.press) {
        await evaluate(`document.querySelector(${JSON.stringify(step.press)}).focus()`);
        await key("Enter", 13);
      }
      if (step.of) await evaluate(`(() => { const field = document.querySelector(${JSON.stringify(step.of)});
        field.value = ${JSON.stringify(step.value)}; field.dispatchEvent(new Event("change", { bubbles: true })); })()`);
      if (step.until) got.push(await until(step.until, step.patience));
      if (step.get) got.push(await evaluate(step.get));
      if (step.pause) await pause(step.pause);
    }
    const focus = [];
    for (let i = 0; i < (visit.tabs ?? 0); i++) {
      await key("Tab", 9);
      focus.push(await evaluate(`(() => { const one = document.activeElement; const style = getComputedStyle(one);
        const box = one.getBoundingClientRect();
        return { tag: one.tagName, id: one.id, text: (one.textContent || "").trim().slice(0, 40), outline: style.outlineStyle + " " + style.outlineWidth,
          seen: box.width > 0 && box.height > 0 }; })()`));
    }
    const reachable = await evaluate(`[...document.querySelectorAll("a[href], button, select, input, textarea, summary")]
      .filter((one) => !one.disabled && one.checkVisibility()).length`);
    let breaches = null;
    if (axe && visit.judged !== false) {
      await evaluate(`${axe};0`);
      breaches = await evaluate(`axe.run(document, { resultTypes: ["violations"] }).then((found) => found.violations.map((one) =>
        ({ id: one.id, impact: one.impact, nodes: one.nodes.slice(0, 5).map((node) => node.html.slice(0, 160) + " | " + (node.any[0]?.message ?? "")) })))`);
    }
    const answer = {
      url: visit.url,
      settled,
      got,
      focus,
      reachable,
      breaches,
      title: await evaluate("document.title"),
      text: await evaluate("document.body.innerText"),
      width: await evaluate("document.documentElement.scrollWidth"),
      violations: await evaluate("window.violations ?? []"),
      scripts: await evaluate(`document.querySelectorAll("script:not([src]), [style], [onclick], [onload], [onerror]").length`),
      paint: await evaluate(`performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? null`),
      codes: await evaluate(`[...document.querySelectorAll("[data-code]")].map((one) => one.dataset.code)`),
      drawn: await evaluate(`document.getElementById("live") ? { ...document.getElementById("live").dataset } : null`),
      asked,
      faults,
    };
    if (visit.shot) {
      const { contentSize } = await ask("Page.getLayoutMetrics").then((found) => ({ contentSize: found.cssContentSize }));
      const clip = { x: 0, y: 0, width: visit.width, height: Math.min(contentSize.height, 6000), scale: 1 };
      const { data } = await ask("Page.captureScreenshot", { format: "png", clip, captureBeyondViewport: true });
      writeFileSync(visit.shot, Buffer.from(data, "base64"));
    }
    answers.push(answer);
  }
  return { browser: (await call("Browser.getVersion")).product, visits: answers };
}

try {
  console.log(JSON.stringify(await main()));
} finally {
  browser.kill();
  await new Promise((resolve) => browser.once("exit", resolve));
  rmSync(profile, { recursive: true, force: true });
}
