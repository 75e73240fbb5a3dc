// Visit pages in Chromium: node pages_in_chromium.mjs CHROMIUM < JOB, a JSON object of `axe` (path of axe-core, or
// null), `authenticator` (whether a passkey can be made) and `visits`.
//
// A visit has `url`, `width`, `dark`, and may have `shot` (a PNG to write), `tabs` (how often Tab is pressed),
// `blocked` (URL patterns), and `steps`: `{click}` and `{press}` a selector, `{value, of}`, `{files, of}`, `{until}` an
// expression, `{get}` one, `{pause}` milliseconds. Prints what each visit found.

import { readFileSync, writeFileSync } from "node:fs";

import { pause, withPage } from "./devtools.mjs";

const chromium = process.argv[2];
const job = JSON.parse(readFileSync(0, "utf8"));
const axe = job.axe ? readFileSync(job.axe, "utf8") : null;

async function work({ ask, evaluate, until, key, shaped, picture, seen, version }) {
  if (job.authenticator) {
    await ask("WebAuthn.enable");
    const options = { protocol: "ctap2", transport: "internal", hasResidentKey: true, hasUserVerification: true };
    await ask("WebAuthn.addVirtualAuthenticator", { options: { ...options, isUserVerified: true } });
  }
  const answers = [];
  for (const visit of job.visits) {
    [seen.asked, seen.faults] = [[], []];
    await shaped(visit.width, visit.dark);
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
        await key("Enter", 13, "\r");
      }
      if (step.files) {
        const { root } = await ask("DOM.getDocument");
        const { nodeId } = await ask("DOM.querySelector", { nodeId: root.nodeId, selector: step.of });
        await ask("DOM.setFileInputFiles", { nodeId, files: step.files });
      } else if (step.of) await evaluate(`(() => { const field = document.querySelector(${JSON.stringify(step.of)});
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
      ...seen,
    };
    if (visit.shot) writeFileSync(visit.shot, await picture(visit.width));
    answers.push(answer);
  }
  return { browser: await version(), visits: answers };
}

console.log(JSON.stringify(await withPage(chromium, work)));
