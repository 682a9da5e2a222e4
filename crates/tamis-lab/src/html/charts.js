"use strict";
// Charts: drawn by uPlot from the JSON of their figures. Names and numbers that are shown come from the table.
(() => {
  const all = (selector, within = document) => Array.from(within.querySelectorAll(selector));
  document.documentElement.classList.add("js");
  const style = getComputedStyle(document.documentElement);
  const css = (name) => style.getPropertyValue("--" + name).trim();
  const DASHES = [[], [6, 4], [2, 4], [9, 3, 2, 3]];
  const NUM_COLOURS = 8;
  const FONT = '11px system-ui, "DejaVu Sans", sans-serif';
  const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 });
  const label = (value) =>
    value !== 0 && Math.abs(value) < 1e-3 ? String(Number(value.toPrecision(3)).toExponential()) : compact.format(value);
  const WHOLE = Array.from({ length: 36 }, (_, place) => [1, 2, 5][place % 3] * 10 ** Math.floor(place / 3));
  const isShown = (run) => document.getElementById("show-r" + run)?.checked ?? true;
  const plots = [];

  // What is drawn over the axes as SVG, so that patterns and schemes of colours are those of the page.
  const rectangle = (left, right, low, high) =>
    `M${left.toFixed(1)} ${low.toFixed(1)}V${high.toFixed(1)}H${right.toFixed(1)}V${low.toFixed(1)}Z`;
  const overlays = {
    stack({ at, series, x: [first] }, x, y) {
      const half = at[0] - first;
      const below = at.map(() => 0);
      return series.map(({ fill, values }) => {
        let path = "";
        values.forEach((value, place) => {
          if (!(value > 0)) return;
          const [left, right, base] = [x(at[place] - half), x(at[place] + half), y(below[place])];
          below[place] += value;
          // A hair of paper between columns, if there is room for one.
          const hair = right - left > 4 ? 0.5 : 0;
          path += rectangle(left + hair, right - hair, base, y(below[place]));
        });
        return `<path class="${fill}" d="${path}"/>`;
      }).join("");
    },
    cells({ at, series: [{ values }], x: [first, last] }, x, y) {
      const paths = {};
      values.forEach((column, place) => {
        const left = x(place ? (at[place - 1] + at[place]) / 2 : first);
        const right = x(place + 1 < at.length ? (at[place] + at[place + 1]) / 2 : last);
        // Equal neighbours are one rectangle.
        const draw = (classOf) => {
          for (let from = 0, to; from < column.length; from = to) {
            const name = classOf(column[from]);
            for (to = from + 1; to < column.length && classOf(column[to]) === name; to++);
            const share = 100 / column.length;
            if (name) paths[name] = (paths[name] ?? "") + rectangle(left, right, y(share * from), y(share * to));
          }
        };
        draw((cell) => "h" + (cell.toLowerCase().charCodeAt(0) - 97));
        draw((cell) => (cell < "a" ? "hatch" : ""));
      });
      const path = ([name, d]) => `<path class="${name === "h11" ? "none" : name}" d="${d}"/>`;
      return Object.entries(paths).sort(([one], [other]) => (one === "hatch") - (other === "hatch")).map(path).join("");
    },
    dots({ at, series: [{ values }] }, x, y, names, [width, height]) {
      const dots = at.map((place, number) => [x(place), y(values[number])]);
      const size = (name) => [6 * name.length, 12];
      const placed = [];
      const overlaps = ([left, top, wide, high], [l, t, w, h]) => left < l + w && l < left + wide && top < t + h && t < top + high;
      const places = ([dotX, dotY], [wide, high]) =>
        // Beside the dot first, then around it in growing rings.
        [0, 14, 24, 36, 50, 66, 84, 104, 128, 156].flatMap((far) => [0, 180, 45, 135, 225, 315, 90, 270, 22, 158, 202, 338].map((angle) => {
          const [right, down] = [Math.cos(angle * Math.PI / 180), Math.sin(angle * Math.PI / 180)];
          return [dotX + right * (6 + far) + (right - 1) * wide / 2, dotY + down * (6 + far) - high / 2, wide, high];
        })).filter(([left, top]) => left >= 0 && top >= 0 && left + wide <= width && top + high <= height);
      const nearest = ([dotX], [left, top, wide, high]) => [Math.max(left, Math.min(dotX, left + wide)), top + high / 2];
      // A line to a name, as small areas.
      const lead = (dot, area) => Array.from({ length: 19 }, (_, step) =>
        nearest(dot, area).map((end, axis) => dot[axis] + (end - dot[axis]) * (step + 0.5) / 20)).map(([left, top]) => [left, top, 1, 1]);
      const leads = [];
      return dots.map((dot, number) => {
        const free = places(dot, size(names[number])).filter((area) => !placed.some((other) => overlaps(area, other))
          && !dots.some(([dx, dy]) => overlaps(area, [dx - 3, dy - 3, 6, 6])));
        const area = free.find((area) => !leads.some((small) => overlaps(area, small))
          && !lead(dot, area).some((small) => placed.some((other) => overlaps(small, other)))) ?? free[0];
        const mark = `<circle cx="${dot[0].toFixed(1)}" cy="${dot[1].toFixed(1)}" r="3.5"/>`;
        const colour = `<g class="c${number % NUM_COLOURS}">`;
        // A name without room is in the table, and under the pointer.
        if (!area) return colour + mark + "</g>";
        placed.push(area);
        leads.push(...lead(dot, area));
        const near = nearest(dot, area);
        const line = Math.hypot(near[0] - dot[0], near[1] - dot[1]) > 9
          ? `<path class="lead-line" d="M${dot.map(Math.round).join(" ")}L${near.map(Math.round).join(" ")}"/>` : "";
        return `${colour}${line}${mark}<text x="${area[0].toFixed(1)}" y="${(area[1] + 9.5).toFixed(1)}" data-name="${number}"></text></g>`;
      }).join("");
    },
    lines({ at, series }, x, y, names, [width, height]) {
      const mark = (value, place, run) => {
        if (typeof value !== "string" || !isShown(run) || x(at[place]) < 0 || x(at[place]) > width) return "";
        const [tip, base] = value === "Infinity" ? [0, 8] : [height, height - 8];
        return `M${x(at[place]).toFixed(1)} ${tip}l-4 ${base - tip}h8z`;
      };
      return series.map(({ colour, run, values }) =>
        `<path class="mark c${colour}" d="${values.map((value, place) => mark(value, place, run)).join("")}"/>`).join("");
    },
  };

  const draw = (figure) => {
    const plot = figure.querySelector(".plot");
    const chart = JSON.parse(plot.dataset.chart);
    const { kind, at, unit, x: [low, high] } = chart;
    const rows = all("table.numbers tbody tr", figure);
    const heads = all("table.numbers thead th", figure).slice(1);
    const names = rows.map((row) => row.firstChild.textContent);
    const values = kind === "cells" ? [] : all(".legend strong", figure);
    const readout = figure.querySelector(".readout");
    const height = kind === "dots" ? Math.max(300, Math.min(560, 120 + 14 * at.length)) : 230;

    // A line is a series of the library, its band two more; of other charts it draws the axes alone.
    const data = [at];
    const series = [{}];
    const bands = [];
    // Missing values are passed over: where a line breaks is in its data.
    const finite = (value) => (typeof value === "number" ? value : undefined);
    const hidden = { points: { show: false }, paths: () => null };
    if (kind === "lines") {
      for (const { run, colour, dash, values: line, gaps = [], least, most } of chart.series) {
        const broken = (u) => gaps.map((ends) => ends.map((end) => Math.round(u.valToPos(end, "x", true))));
        const ink = () => css(colour === NUM_COLOURS ? "text" : "c" + colour);
        // A line of few points has dots at them, any other at those that no line leads to.
        const own = at.map((_, index) => index).filter((index) => typeof line[index] === "number");
        const ends = (side, index) => gaps.some((gap) => gap[side] === at[index]);
        const alone = own.filter((index, number) => (number === 0 || ends(1, index)) && (number === own.length - 1 || ends(0, index)));
        const dots = { fill: ink, size: 5, filter: (_, __, isDense) => (isDense ? null : alone), ...(own.length <= 40 ? { show: true } : {}) };
        series.push({ stroke: ink, width: 1.9, dash: DASHES[dash], show: isShown(run), gaps: broken, points: dots, run });
        data.push(line.map(finite));
        if (!least) continue;
        bands.push({ series: [series.length, series.length + 1], fill: () => ink() + "29" });
        for (const bound of [most, least]) {
          series.push({ stroke: "transparent", width: 0, show: isShown(run), gaps: broken, points: { show: false }, run });
          data.push(bound.map(finite));
        }
      }
    } else {
      series.push(hidden);
      data.push(kind === "dots" ? chart.series[0].values : at.map(() => chart.y[0]));
    }

    const inRange = (_, least, most) => {
      if (least == null) return chart.y ?? [0, 1];
      const margin = most > least ? 0.06 * (most - least) : 0.5 * Math.max(Math.abs(most), 1e-3);
      const [from, to] = chart.y ?? [Infinity, -Infinity];
      return [least >= from && least <= to ? from : least - margin, most <= to && most >= from ? to : most + margin];
    };
    const axis = { stroke: () => css("quiet"), font: FONT, ticks: { show: false }, gap: 6 };
    const grid = { stroke: () => css("rule"), width: 1 };
    const holder = document.createElement("div");
    holder.innerHTML = `<svg class="overlay ${kind}" aria-hidden="true"></svg>`;
    const svg = holder.firstChild;
    const overlay = (u) => {
      const [width, tall] = [u.over.clientWidth, u.over.clientHeight];
      svg.setAttribute("viewBox", `0 0 ${width} ${tall}`);
      svg.innerHTML = overlays[kind](chart, (value) => u.valToPos(value, "x"), (value) => u.valToPos(value, "y"), names, [width, tall]);
      for (const name of all("text", svg)) name.textContent = names[name.dataset.name];
    };

    // The values at a place, or the last ones when nothing points at one.
    const lasts = heads.map((_, column) => rows.map((row) => row.children[column + 1].textContent).findLast((cell) => cell !== "–"));
    let place = null;
    const show = (index) => {
      place = index ?? null;
      const shown = index ?? at.length - 1;
      const cells = all("td", rows[shown]).map((cell) => cell.textContent);
      const where = unit && kind !== "dots" ? `${unit} ${names[shown]}` : names[shown];
      values.forEach((value, column) => { value.textContent = (index == null ? lasts : cells)[column] ?? ""; });
      const parts = heads.map((head, column) => [head, cells[column]])
        .filter(([head, cell]) => isShown(head.dataset.run) && cell !== "–").map(([head, cell]) => `${head.textContent} ${cell}`);
      const text = `${where}: ${parts.join(", ") || "no values"}`;
      const isRest = index == null;
      readout.textContent = values.length ? (isRest ? "last values" : where) : isRest ? "" : text;
      plot.setAttribute("aria-valuenow", at[shown]);
      plot.setAttribute("aria-valuetext", text);
    };
    const whole = (u) => u.scales.x.min <= low && u.scales.x.max >= high;
    const u = new uPlot({
      width: plot.clientWidth || 300, height, series, bands, padding: [8, 20, 0, 0], legend: { show: false },
      scales: {
        // The first call is about all places, which the axis may reach beyond.
        x: { time: false, range: (_, from, to) => (at.length < 2 || (from === at[0] && to === at[at.length - 1]) ? [low, high === low ? low + 1 : high] : [from, to]) },
        y: { range: kind === "lines" ? inRange : () => chart.y },
      },
      axes: [
        { ...axis, grid: { show: false }, size: 24, label: unit, labelSize: 16, labelFont: FONT, labelGap: 0, values: (_, ticks) => ticks.map(label),
          ...(/^steps?$/.test(unit) ? { incrs: WHOLE } : {}) },
        { ...axis, grid, values: (_, ticks) => ticks.map(label),
          size: (_, ticks) => 14 + 6.5 * Math.max(2, ...(ticks ?? []).map((tick) => tick.length)) },
      ],
      cursor: {
        y: false, drag: { x: true, y: false }, points: { show: kind === "lines" },
        sync: { key: unit, scales: ["x", null], setSeries: false, filters: { pub: (type) => !/^mouse(down|up)$|click/.test(type) } },
      },
      hooks: {
        ready: [(u) => u.over.prepend(svg)],
        draw: [overlay],
        setCursor: [(u) => show(u.cursor.idx)],
        setScale: [(u, scale) => scale === "x" && figure.classList.toggle("zoomed", !whole(u))],
      },
    }, data, plot);
    plots.push(u);
    show(null);

    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "show all";
    button.className = "unzoom";
    const reset = () => u.setScale("x", { min: at[0], max: at[at.length - 1] });
    button.addEventListener("click", reset);
    plot.append(button);
    const zoom = (factor) => {
      const { min, max } = u.scales.x;
      const middle = place == null ? (min + max) / 2 : at[place];
      const half = (max - min) * factor / 2;
      if (half * 2 >= high - low) return reset();
      const from = Math.max(low, Math.min(high - 2 * half, middle - half));
      u.setScale("x", { min: from, max: from + 2 * half });
    };
    const point = (index) => {
      const next = Math.max(0, Math.min(at.length - 1, index));
      const { min, max } = u.scales.x;
      if (at[next] < min || at[next] > max) {
        const from = Math.max(low, Math.min(high - (max - min), at[next] - (max - min) / 2));
        u.setScale("x", { min: from, max: from + max - min });
      }
      u.setCursor({ left: u.valToPos(at[next], "x"), top: height / 2 }, false);
      show(next);
    };
    const hide = () => u.setCursor({ left: -10, top: -10 });
    plot.tabIndex = 0;
    plot.setAttribute("role", "slider");
    plot.setAttribute("aria-label", figure.querySelector("h3").textContent + (unit ? ", by " + unit : ""));
    plot.setAttribute("aria-valuemin", at[0]);
    plot.setAttribute("aria-valuemax", at[at.length - 1]);
    plot.addEventListener("keydown", (event) => {
      const far = Math.max(1, Math.round(at.length / 10));
      const now = place ?? at.length - 1;
      const moves = {
        ArrowLeft: now - 1, ArrowDown: now - 1, ArrowRight: now + 1, ArrowUp: now + 1,
        PageDown: now - far, PageUp: now + far, Home: 0, End: at.length - 1,
      };
      if (event.ctrlKey || event.metaKey || event.altKey || event.target !== plot) return;
      if (event.key in moves) point(moves[event.key]);
      else if (event.key === "+") zoom(0.5);
      else if (event.key === "-") zoom(2);
      else if (event.key === "0") reset();
      else if (event.key === "Escape") hide();
      else return;
      event.preventDefault();
    });
    plot.addEventListener("blur", hide);
    // The library knows the mouse; a finger reads values as it moves.
    plot.addEventListener("pointermove", (event) => {
      const box = u.over.getBoundingClientRect();
      if (event.pointerType !== "mouse") u.setCursor({ left: event.clientX - box.left, top: event.clientY - box.top });
    });
    new ResizeObserver(() => plot.clientWidth && plot.clientWidth !== u.width && u.setSize({ width: plot.clientWidth, height })).observe(plot);
  };
  all("figure.chart:has(.plot)").forEach(draw);

  const redraw = () => plots.forEach((u) => u.redraw(false));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  // On paper two charts stand beside each other.
  matchMedia("print").addEventListener("change", ({ matches }) => {
    for (const u of plots) {
      const width = matches ? 320 : u.root.parentNode.clientWidth;
      if (width) u.setSize({ width, height: u.height });
    }
    redraw();
  });
  all(".toggles input").forEach((box, run) => box.addEventListener("change", () => {
    for (const u of plots) u.series.forEach((series, number) => series.run === run && u.setSeries(number, { show: box.checked }));
    redraw();
  }));
})();
