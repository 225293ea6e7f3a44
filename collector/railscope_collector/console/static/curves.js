// Railscope console: draws the figures of a page from its JSON, with one cursor. Pages are complete without it.
"use strict";
(() => {
  const root = document.querySelector("[data-history]");
  if (!root || !window.uPlot) return;
  const HEIGHT = 150, MAX_SECONDS = 300, AXIS_FONT = "12px system-ui, sans-serif";
  const seconds = Number(root.dataset.seconds ?? 0);
  const charts = new Map();
  const connection = document.getElementById("connection");
  let tag = "", failures = 0, timer = 0, document_ = null;

  // Canvas takes no light-dark(): the browser resolves it as the color of an element.
  const probe = document.createElement("span");
  root.append(probe);
  const resolved = (name) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  };

  const PREFIXES = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
  const format = (value, unit, symbol = "") => {
    if (value === null || value === undefined) return "–";
    if (unit === "ratio") return `${Number((value * 100).toPrecision(3))} %`;
    if (unit === "bytes per second") value *= 8;  // read in bits, as the speeds of ports are
    const [size, prefix] = unit === "celsius" ? [1, ""] : PREFIXES.find(([each]) => Math.abs(value) >= each) ?? [1, ""];
    return `${Number((value / size).toPrecision(4))} ${prefix}${symbol}`.trim();
  };

  // uPlot's own labels are those of a 12-hour clock and of the month before the day.
  const clock = (splits) => splits.map((time, index) => {
    const text = new Date(time * 1000).toISOString(), step = (splits[1] ?? time) - splits[0];
    const day = text.slice(0, 10), isNewDay = index > 0 && text.slice(11, 19) === "00:00:00";
    if (step >= 86400) return day;
    return (isNewDay ? `${day}\n` : "") + text.slice(11, step < 60 ? 19 : 16);
  });

  // As wide as the longest label needs: a small share has more digits than a temperature.
  const width = (plot, labels) => {
    plot.ctx.save();
    plot.ctx.font = AXIS_FONT;
    const widest = Math.max(0, ...(labels ?? []).map((label) => plot.ctx.measureText(label).width));
    plot.ctx.restore();
    return Math.max(48, Math.ceil(widest) + 20);
  };

  const shade = (figure) => (plot) => {
    const context = plot.ctx;
    context.save();
    context.fillStyle = resolved("--gap");
    for (const curve of figure.curves) {
      for (const gap of curve.gaps) {
        const left = Math.max(plot.valToPos(gap.from_ns / 1e9, "x", true), plot.bbox.left);
        const right = Math.min(plot.valToPos(gap.to_ns / 1e9, "x", true), plot.bbox.left + plot.bbox.width);
        if (right > left) context.fillRect(left, plot.bbox.top, Math.max(right - left, 1), plot.bbox.height);
      }
    }
    context.restore();
  };

  // Curves of one figure may have other times: the values between are undefined, the unknown ones null.
  const nearestTo = (index, values) => {
    for (let step = 0; step < values.length; step += 1) {
      if (values[index - step] !== undefined) return index - step;
      if (values[index + step] !== undefined) return index + step;
    }
    return index;
  };

  // The captions state the values below the cursor while there is one. They keep their height: shorter texts must move nothing.
  const point = (element, figure) => (plot) => {
    const index = plot.cursor.idx ?? null, list = element.querySelector("figcaption ul");
    list.style.minHeight = index === null ? "" : `${list.offsetHeight}px`;
    element.querySelectorAll(".words").forEach((words, place) => {
      if (index === null) { words.textContent = figure.captions[place] ?? ""; return; }
      const values = plot.data[place + 1], nearest = nearestTo(index, values), value = values[nearest] ?? null;
      const text = value === null ? "unknown" : format(value, figure.unit, figure.symbol);
      words.textContent = `${figure.curves[place].label}: ${text} at ${new Date(plot.data[0][nearest] * 1000).toISOString().slice(11, 19)}`;
    });
  };

  const draw = (element, figure, period) => {
    const place = element.querySelector(".plot");
    charts.get(figure.name)?.destroy();
    place.replaceChildren();
    const tables = figure.curves.map((curve) => [curve.times_ms.map((each) => each / 1000), curve.values]);
    const axis = { font: AXIS_FONT, stroke: resolved("--quiet"), grid: { stroke: resolved("--line"), width: 1 }, ticks: { stroke: resolved("--line") } };
    const options = {
      width: place.clientWidth, height: HEIGHT,
      tzDate: (time) => uPlot.tzDate(new Date(time * 1000), "Etc/UTC"),
      cursor: { sync: { key: "railscope" }, drag: { setScale: false } },
      scales: {
        x: { time: true, range: () => [period.from_ns / 1e9, period.to_ns / 1e9] },
        y: { range: (_, low, high) => [Math.min(low ?? 0, 0), high > 0 ? high * 1.05 : 1] },
      },
      axes: [{ ...axis, space: 70, values: (_, splits) => clock(splits) }, { ...axis, size: width, values: (_, ticks) => ticks.map((tick) => format(tick, figure.unit)) }],
      series: [
        {},
        ...figure.curves.map((_, index) => ({ stroke: resolved(`--curve-${index + 1}`), width: 1.5, points: { show: false } })),
      ],
      legend: { show: false },
      hooks: { drawClear: [shade(figure)], setCursor: [point(element, figure)] },
    };
    charts.set(figure.name, new uPlot(options, uPlot.join(tables), place));
  };

  const write = (element, figure) => {
    element.querySelector(".plot").setAttribute("aria-label", `${figure.title}: ${figure.captions.join(" ")}`);
    element.querySelectorAll(".words").forEach((words, index) => { words.textContent = figure.captions[index] ?? ""; });
    element.querySelectorAll("details tbody tr").forEach((row, index) => {
      const values = figure.rows[index];
      if (!values) return;
      row.cells[0].textContent = new Date(values.from_ns / 1e6).toISOString().slice(11, 19);
      values.cells.forEach((text, place) => { if (row.cells[place + 1]) row.cells[place + 1].textContent = text; });
    });
  };

  const show = () => {
    for (const figure of document_.figures) {
      const element = document.getElementById(`figure-${figure.name}`);
      if (!element) continue;
      draw(element, figure, document_.period);
      write(element, figure);
    }
    document.getElementById("gaps").textContent = document_.gaps;
    root.dataset.drawn = String(Number(root.dataset.drawn ?? 0) + 1);
  };

  const load = async () => {
    try {
      const address = new URL(root.dataset.history, location.origin);
      const pixels = Math.round(root.querySelector(".plot")?.clientWidth ?? 480);
      address.searchParams.set("width", String(Math.min(Math.max(Math.round(pixels / 100) * 100, 100), 1000)));
      const headers = { Accept: "application/json", ...(tag && { "If-None-Match": tag }) };
      const answer = await fetch(address, { headers, redirect: "manual", credentials: "same-origin" });
      if (answer.type === "opaqueredirect" || answer.status === 401) return location.reload();
      if (answer.status === 200) {
        tag = answer.headers.get("ETag") ?? "";
        document_ = (await answer.json()).history;
        show();
      } else if (answer.status !== 304) throw new Error(`status ${answer.status}`);
      failures = 0;
      connection.textContent = "";
    } catch (error) {
      failures += 1;
      connection.textContent = `Curves are not up to date: ${error.message}.`;
    }
    schedule();
  };

  const schedule = () => {
    clearTimeout(timer);
    if (document.hidden || (!seconds && !failures)) return;
    timer = setTimeout(load, 1000 * Math.min((seconds || 10) * 2 ** failures, MAX_SECONDS));
  };

  new ResizeObserver(() => {
    for (const plot of charts.values()) {
      const width = plot.root.parentElement.clientWidth;
      if (Math.abs(width - plot.width) > 1) plot.setSize({ width, height: HEIGHT });
    }
  }).observe(root);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document_ && show());
  document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : load()));
  load();
})();
