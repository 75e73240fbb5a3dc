// Walk the page of a sealed run in Chromium: node walk_in_chromium.mjs CHROMIUM URL WIDTH keys|mouse
//
// Presses every switch, off and (with keys) on again, in the order of the page. Prints for each what
// the page then shows, and every address, fault and violation. `SCHEME` is light or dark, `SHOT` a
// PNG to write of the page with every switch off.

import { writeFileSync } from "node:fs";

import { withPage } from "./devtools.mjs";

const [chromium, url, width, hand] = process.argv.slice(2);

async function work({ ask, evaluate, until, key, shaped, picture, seen }) {
  await shaped(Number(width), process.env.SCHEME === "dark");
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
  await until("document.readyState === 'complete' && typeof htmx === 'object'", 20000);
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
    await until(`${position} === "false" && ${answered}`, 30000);
    row.milliseconds = Date.now() - begun;
    row.off = await shown(name);
    if (hand === "keys") {
      row.kept = (await focused()) === id;
      await key("Enter", 13, "\r");
      await until(`${position} === "true"`, 30000);
      row.on = await shown(name);
    }
    rows.push(row);
  }
  if (process.env.SHOT) writeFileSync(process.env.SHOT, await picture(Number(width)));
  const doubled = await evaluate(`(() => {
    const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
    return ids.filter((id, place) => ids.indexOf(id) !== place);
  })()`);
  const violations = (await evaluate("window.violations")) ?? [];
  const asked = [...new Set(seen.asked.map((one) => new URL(one).origin))];
  return { rows, doubled, violations, faults: seen.faults, asked };
}

console.log(JSON.stringify(await withPage(chromium, work)));
