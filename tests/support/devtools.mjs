// A page in a headless Chromium of its own, driven by DevTools over pipes.
//
// `withPage(chromium, work)` hands `work` a page and ends the browser afterwards, whatever happens.

import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";

const WATCH = `addEventListener("securitypolicyviolation", (event) => {
  (window.violations ??= []).push(event.violatedDirective + " " + event.blockedURI);
});`;
const FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"];
FLAGS.push("--disable-background-networking", "--remote-debugging-pipe");

export const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

export async function withPage(chromium, work) {
  const profile = mkdtempSync(path.join(tmpdir(), "chromium-"));
  const browser = spawn(chromium, [...FLAGS, `--user-data-dir=${profile}`], {
    stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"],
  });
  const ended = new Promise((resolve) => browser.once("exit", resolve));
  try {
    return await work(await opened(browser));
  } finally {
    browser.kill();
    await ended;
    try {
      rmSync(profile, { recursive: true, force: true, maxRetries: 40, retryDelay: 50 });
    } catch {
      // A process of the browser still writes into its cache: the folder stays, the answer counts.
    }
  }
}

async function opened(browser) {
  const waiting = new Map();
  const seen = { asked: [], faults: [] };
  let next = 0;
  let rest = "";

  browser.stdio[4].on("data", (data) => {
    const parts = (rest + data).split("\0");
    rest = parts.pop();
    for (const { id, result, error, method, params } of parts.map((part) => JSON.parse(part))) {
      if (method === "Network.requestWillBeSent") seen.asked.push(params.request.url);
      if (method === "Runtime.exceptionThrown") seen.faults.push(params.exceptionDetails.exception?.description ?? "exception");
      if (method === "Log.entryAdded") seen.faults.push(params.entry.text);
      waiting.get(id)?.(error ? { error } : result);
      waiting.delete(id);
    }
  });

  function call(method, params = {}, sessionId) {
    const id = ++next;
    browser.stdio[3].write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
    return new Promise((resolve) => waiting.set(id, resolve));
  }

  const { targetId } = await call("Target.createTarget", { url: "about:blank" });
  const { sessionId } = await call("Target.attachToTarget", { targetId, flatten: true });
  const ask = (method, params) => call(method, params, sessionId);

  async function evaluate(expression) {
    const found = await ask("Runtime.evaluate", { expression, returnByValue: true, awaitPromise: true });
    if (found.exceptionDetails) throw new Error(`${expression.slice(0, 200)}: ${found.exceptionDetails.exception?.description}`);
    return found.result?.value;
  }

  // Whether an expression became true in time; one that throws is not true yet.
  async function until(expression, milliseconds = 15000) {
    const ends = Date.now() + milliseconds;
    while (Date.now() < ends) {
      if (await evaluate(expression).catch(() => false)) return true;
      await pause(20);
    }
    return false;
  }

  async function key(name, code, text) {
    const event = { key: name, code: name === " " ? "Space" : name, windowsVirtualKeyCode: code, text };
    await ask("Input.dispatchKeyEvent", { type: text ? "keyDown" : "rawKeyDown", ...event });
    await ask("Input.dispatchKeyEvent", { type: "keyUp", ...event });
  }

  // As on a phone below 600 pixels.
  async function shaped(width, dark = false) {
    const size = { width, height: width < 600 ? 844 : 900, deviceScaleFactor: 1, mobile: width < 600 };
    await ask("Emulation.setDeviceMetricsOverride", size);
    const features = [{ name: "prefers-color-scheme", value: dark ? "dark" : "light" }];
    await ask("Emulation.setEmulatedMedia", { features });
  }

  // The whole page as a PNG, up to a height.
  async function picture(width) {
    const { cssContentSize } = await ask("Page.getLayoutMetrics");
    const clip = { x: 0, y: 0, width, height: Math.min(cssContentSize.height, 16000), scale: 1 };
    const { data } = await ask("Page.captureScreenshot", { format: "png", clip, captureBeyondViewport: true });
    return Buffer.from(data, "base64");
  }

  for (const domain of ["Page", "DOM", "Network", "Runtime", "Log"]) await ask(`${domain}.enable`);
  await ask("Page.addScriptToEvaluateOnNewDocument", { source: WATCH });
  return { ask, evaluate, until, key, shaped, picture, seen, version: async () => (await call("Browser.getVersion")).product };
}
