"use strict";
(() => {
  const all = (selector, within = document) => Array.from(within.querySelectorAll(selector));
  document.documentElement.classList.add("js");

  // Charts: a cursor at a step, moved by pointer or keys, with the numbers of the chart's table.
  
  const isShown = (run) => {
    const box = document.getElementById("show-r" + run);
    return !box || box.checked;
  };
  for (const figure of all("figure.chart")) {
    const grid = figure.querySelector(".grid[data-frame]");
    const rows = all("table.numbers tr[data-at]", figure);
    if (!grid || rows.length === 0) continue;
    const plot = figure.querySelector(".plot");
    const svg = plot.querySelector("svg");
    const readout = figure.querySelector(".readout");
    const [left, right, top, bottom, low, high] = grid.dataset.frame.split(" ").map(Number);
    const places = rows.map((row) => Number(row.dataset.at));
    const heads = all("thead th", figure.querySelector("table.numbers")).slice(1);
    const cursor = document.createElementNS(svg.namespaceURI, "path");
    cursor.setAttribute("class", "cursor");
    let at = -1;
    plot.tabIndex = 0;
    plot.setAttribute("role", "slider");
    plot.setAttribute("aria-label", figure.querySelector("h3").textContent + ", by step");
    plot.setAttribute("aria-describedby", svg.querySelector("desc").id);
    plot.setAttribute("aria-valuemin", places[0]);
    plot.setAttribute("aria-valuemax", places[places.length - 1]);
    plot.setAttribute("aria-valuenow", places[0]);
    plot.setAttribute("aria-valuetext", "arrow keys read the values");
    const show = (place) => {
      at = Math.max(0, Math.min(rows.length - 1, place));
      const x = left + ((places[at] - low) / (high - low)) * (right - left);
      cursor.setAttribute("d", `M${x} ${top}V${bottom}`);
      if (!cursor.isConnected) svg.append(cursor);
      const cells = Array.from(rows[at].children);
      const parts = heads
        .map((head, column) => [head, cells[column + 1]])
        .filter(([head, cell]) => cell && isShown(head.dataset.run) && cell.textContent !== "–")
        .map(([head, cell]) => head.textContent + " " + cell.textContent);
      const text = "step " + cells[0].textContent + ": " + (parts.join(", ") || "no values");
      readout.textContent = text;
      plot.setAttribute("aria-valuenow", places[at]);
      plot.setAttribute("aria-valuetext", text);
    };
    const hide = () => {
      cursor.remove();
      readout.textContent = "";
    };
    const point = (event) => {
      const box = svg.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
      const step = low + ((x - left) / (right - left)) * (high - low);
      let nearest = 0;
      places.forEach((place, number) => {
        if (Math.abs(place - step) < Math.abs(places[nearest] - step)) nearest = number;
      });
      show(nearest);
    };
    plot.addEventListener("pointermove", point);
    plot.addEventListener("pointerdown", point);
    plot.addEventListener("pointerleave", () => {
      if (document.activeElement !== plot) hide();
    });
    plot.addEventListener("blur", hide);
    plot.addEventListener("focus", () => {
      if (plot.matches(":focus-visible")) show(at < 0 ? rows.length - 1 : at);
    });
    plot.addEventListener("keydown", (event) => {
      const far = Math.max(1, Math.round(rows.length / 10));
      const moves = {
        ArrowLeft: at - 1, ArrowDown: at - 1, ArrowRight: at + 1, ArrowUp: at + 1,
        PageDown: at - far, PageUp: at + far, Home: 0, End: rows.length - 1,
      };
      if (event.key === "Escape") hide();
      if (!(event.key in moves) || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      show(moves[event.key]);
    });
  }

  // Completions: one step at a time, all groups or some.
  const slider = document.getElementById("step");
  if (!slider) return;
  const steps = all("section.step");
  const shown = document.getElementById("step-shown");
  const verdict = document.getElementById("verdict");
  const [back, forth] = ["back", "forth"].map((id) => document.getElementById(id));
  const update = () => {
    const at = Number(slider.value);
    steps.forEach((step, number) => { step.hidden = number !== at; });
    const text = `step ${steps[at].dataset.step} (${at + 1} of ${steps.length})`;
    shown.textContent = text;
    slider.setAttribute("aria-valuetext", text);
    back.disabled = at === 0;
    forth.disabled = at === steps.length - 1;
    for (const group of all("article.group")) {
      group.hidden = verdict.value !== "" && group.dataset.verdict !== verdict.value;
    }
  };
  const move = (by) => {
    slider.value = Number(slider.value) + by;
    update();
  };
  slider.addEventListener("input", update);
  verdict.addEventListener("change", update);
  back.addEventListener("click", () => move(-1));
  forth.addEventListener("click", () => move(1));
  // A link to a group leads to its step.
  const follow = () => {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    const step = target && target.closest("section.step");
    if (!step) return;
    slider.value = steps.indexOf(step);
    verdict.value = "";
    update();
    target.scrollIntoView();
  };
  window.addEventListener("hashchange", follow);
  document.querySelector(".controls").hidden = false;
  update();
  follow();
})();
