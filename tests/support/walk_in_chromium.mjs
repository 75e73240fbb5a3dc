// Walk the page of a sealed run in Chromium: node walk_in_chromium.mjs CHROMIUM URL WIDTH keys|mouse
//
// Speaks DevTools over pipes. Presses every switch, off and (with keys) on again, in the order of
// the page. Prints for each what the page then shows, and every address, fault and violation.

import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";

const [chromium, url, width, hand] = process.argv.slice(2);
const profile = mkdtempSync(path.join(tmpdir(), "chromium-"));
const flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"];
flags.push("--disable-background-networking", "--remote-debugging-pipe", `--user-data-dir=${profile}`);
const browser = spawn(chromium, flags, { stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"] });
const waiting = new Map();
const asked = new Set();
const faults = [];
let next = 0;
let rest = "";

browser.stdio[4].on("data", (data) => {
  const parts = (rest + data).split("\0");
  rest = parts.pop();
  for (const { id, result, error, method, params } of parts.map((part) => JSON.parse(part))) {
    if (method === "Network.requestWillBeSent") asked.add(new URL(params.request.url).origin);
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
  const size = { width: Number(width), height: 844, deviceScaleFactor: 1, mobile: width < 600 };
  await ask("Emulation.setDeviceMetricsOverride", size);
  if (process.env.SCHEME) {
    const features = [{ name: "prefers-color-scheme", value: process.env.SCHEME }];
    await ask("Emulation.setEmulatedMedia", { features });
  }
  const watch = `document.addEventListener("securitypolicyviolation", (event) => {
    (window.violations ??= []).push(event.violatedDirective);
  });`;
  await ask("Page.addScriptToEvaluateOnNewDocument", { source: watch });

  const until = async (expression, seconds) => {
    for (let tries = 0; tries < seconds * 50; tries += 1) {
      if (await evaluate(expression)) return true;
      await pause(20);
    }
    return false;
  };
  const key = async (name, code, text) => {
    const event = { key: name, code: name === " " ? "Space" : name, windowsVirtualKeyCode: code, text };
    await ask("Input.dispatchKeyEvent", { type: text ? "keyDown" : "rawKeyDown", ...event });
    await ask("Input.dispatchKeyEvent", { type: "keyUp", ...event });
  };
  const focused = () => evaluate("document.activeElement.id");
  const reached = async (id) => {
    for (let tabs = 0; tabs < 20 && (await focused()) !== id; tabs += 1) await key("Tab", 9);
    return (await focused()) === id;
  };
  const clicked = async (id) => {
    const box = await evaluate(`(() => {
      const found = document.getElementById(${JSON.stringify(id)});
      found.scrollIntoView({ block: "center" });
      const { x, y, width, height } = found.getBoundingClientRect();
      return { x: x + width / 2, y: y + height / 2 };
    })()`);
    for (const type of ["mousePressed", "mouseReleased"]) {
      await ask("Input.dispatchMouseEvent", { type, button: "left", clickCount: 1, ...box });
    }
  };
  const shown = (name) =>
    evaluate(`(() => {
      const row = document.getElementById("row-${name}");
      const verdict = row.querySelector(".verdict");
      return {
        checked: row.querySelector("[role=switch]").getAttribute("aria-checked"),
        code: verdict?.dataset.code ?? null,
        claim: verdict?.dataset.claim ?? null,
        passed: verdict?.dataset.passed ?? null,
        text: verdict?.innerText ?? "",
        wide: document.documentElement.scrollWidth,
      };
    })()`);

  await ask("Page.navigate", { url });
  await until("document.readyState === 'complete' && typeof htmx === 'object'", 20);
  const names = await evaluate(
    "[...document.querySelectorAll('[role=switch]')].map((one) => one.id.replace('switch-', ''))",
  );
  const rows = [];
  for (const name of names) {
    const id = `switch-${name}`;
    const position = `document.getElementById("${id}").getAttribute("aria-checked")`;
    const answered = `document.querySelector("#row-${name} .verdict") !== null`;
    const row = { name, reached: hand !== "keys" || (await reached(id)) };
    const begun = Date.now();
    if (hand === "keys") await key(" ", 32, " ");
    else await clicked(id);
    await until(`${position} === "false" && ${answered}`, 30);
    row.milliseconds = Date.now() - begun;
    row.off = await shown(name);
    if (hand === "keys") {
      row.kept = (await focused()) === id;
      await key("Enter", 13, "\r");
      await until(`${position} === "true"`, 30);
      row.on = await shown(name);
    }
    rows.push(row);
  }
  if (process.env.SHOT) {
    const shot = await ask("Page.captureScreenshot", { captureBeyondViewport: true });
    writeFileSync(process.env.SHOT, Buffer.from(shot.data, "base64"));
  }
  const doubled = await evaluate(`(() => {
    const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
    return ids.filter((id, place) => ids.indexOf(id) !== place);
  })()`);
  const violations = (await evaluate("window.violations ?? []")) ?? [];
  console.log(JSON.stringify({ rows, doubled, violations, faults, asked: [...asked] }));
} finally {
  browser.kill();
  await new Promise((resolve) => browser.once("exit", resolve));
  rmSync(profile, { recursive: true, force: true, maxRetries: 5, retryDelay: 100 });
}
