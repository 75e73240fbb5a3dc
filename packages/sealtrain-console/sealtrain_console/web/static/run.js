// Draws the released metrics of a run: asks for thinned curves, and again as long as it goes on.
"use strict";

// What a person reads is not taken away: a part is not fetched again while something in it is open or has the focus.
document.addEventListener("htmx:before:request", (event) => {
  const part = event.target.closest?.("[data-part]");
  const waiting = part?.querySelector("[role=status]");
  const inUse = part && (part.contains(document.activeElement) || part.querySelector("details[open]"));
  if (part && !waiting && (inUse || document.hidden)) event.preventDefault();
});

(() => {
  const live = document.getElementById("live");
  if (!live) return;
  const chosen = document.getElementById("metric");
  const chart = document.getElementById("chart");
  const gauges = document.getElementById("gauges");
  const progress = document.getElementById("progress");
  const every = Number(live.dataset.every);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let plot = null;
  let drawn = "";
  let newest = null;

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const UNITS = ["bytes", "kB", "MB", "GB", "TB", "PB"];

  function short(value, name) {
    if (value === null) return "not finite";
    let [number, unit] = [value, 0];
    if (/(^|_)bytes$/.test(name)) while (Math.abs(number) >= 1000 && unit < UNITS.length - 1) [number, unit] = [number / 1000, unit + 1];
    const digits = Math.abs(number) >= 1e15 || (number && Math.abs(number) < 1e-4)
      ? number.toPrecision(4)
      : number.toLocaleString("en", { maximumSignificantDigits: 5 });
    return unit ? `${digits} ${UNITS[unit]}` : digits;
  }

  function options(name) {
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--rule"), width: 1 }, ticks: { stroke: colour("--rule") } };
    return {
      width: Math.max(240, chart.clientWidth),
      height: 260,
      scales: { x: { time: false } },
      legend: { show: false },
      cursor: { drag: { x: true, y: false } },
      axes: [axis, { ...axis, size: 58 }],
      series: [{ label: "step" }, { label: escapeHidden(name), stroke: colour("--line"), width: 2, points: { show: false } }],
    };
  }

  function draw() {
    const name = chosen.value;
    const curve = newest && newest.curves[name];
    if (!curve) return;
    const data = [curve.steps, curve.values];
    if (plot && drawn === name) {
      plot.setData(data);
    } else {
      if (plot) plot.destroy();
      plot = new uPlot(options(name), data, chart);
      drawn = name;
    }
    const last = curve.steps.length ? `${curve.count} points to step ${newest.step}` : "no point yet";
    chart.setAttribute("aria-label", `${escapeHidden(name)} over the steps: ${last}, newest ${short(curve.last, name)}`);
  }

  function tile(name, value) {
    const item = document.createElement("li");
    const number = document.createElement("b");
    const label = document.createElement("span");
    number.textContent = short(value, name);
    label.textContent = escapeHidden(name);
    item.append(number, label);
    return item;
  }

  function show(found) {
    newest = found;
    const names = Object.keys(found.curves);
    if ([...chosen.options].map((one) => one.value).join("\n") !== names.join("\n") && names.length) {
      const before = chosen.value;
      chosen.replaceChildren(...names.map((name) => new Option(escapeHidden(name), name)));
      chosen.value = names.includes(before) ? before : names.includes("loss") ? "loss" : names[0];
      chosen.disabled = false;
    }
    gauges.replaceChildren(...names.map((name) => tile(name, found.curves[name].last)));
    const step = found.progress?.words ?? `step ${found.step}`;
    progress.textContent = names.length ? step : "No metric was released yet.";
    if (found.left_out) progress.textContent += `; ${found.left_out} lines of the file say no metrics`;
    draw();
  }

  async function update() {
    const answer = await fetch(live.dataset.curves, { headers: { accept: "application/json" } });
    if (!answer.ok) throw new Error(`the console answered ${answer.status}`);
    const found = await answer.json();
    show(found);
    live.dataset.step = found.step;
  }

  async function loop() {
    const began = performance.now();
    try {
      if (!document.hidden) await update();
      live.dataset.state = "shown";
    } catch (error) {
      live.dataset.state = "away";
      progress.textContent = `The console does not answer; these are the last values. (${error.message})`;
    }
    live.dataset.whole = (performance.now() - began).toFixed(2);
    if (every) setTimeout(loop, every);
  }

  function again() {
    drawn = "";
    draw();
  }
  chosen.addEventListener("change", draw);
  dark.addEventListener("change", again);
  addEventListener("resize", () => plot && plot.setSize({ width: Math.max(240, chart.clientWidth), height: 260 }));
  loop();
})();
