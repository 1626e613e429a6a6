// Charts of samples (uPlot). A page marks a place with data-chart="URL of the samples API"; the server's sparkline
// stays until the first answer, and for ever when scripts are off. One cursor for all charts of a page.
(() => {
  "use strict";
  const SYNC = "tierkeeper";
  const made = new Map();
  // With the line of the read-out and the one of the marks as high as the room kept for it (css/pictures.css).
  const HEIGHT = 220;

  // Custom properties hold light-dark() pairs: only an element's computed colour is one colour.
  const probe = document.createElement("span");
  probe.hidden = true;
  document.body.append(probe);
  function colour(name) {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  }
  const faded = (rgb, alpha) => rgb.replace(/^rgb\(([^)]+)\)$/, (_, c) => `rgba(${c}, ${alpha})`);

  // `more`: digits beyond the usual ones, for neighbours that would read the same.
  const scaled = (v, base, units, more = 0) => {
    let i = 0;
    let x = Math.abs(v);
    while (x >= base && i < units.length - 1) { x /= base; i += 1; }
    const digits = i === 0 && Number.isInteger(x) ? 0 : x >= 100 ? 0 : x >= 10 ? 1 : 2;
    const extra = Number.isInteger(x) ? 0 : more;
    return `${v < 0 ? "-" : ""}${x.toFixed(digits + extra)}\u00a0${units[i]}`.trimEnd();
  };
  const printers = {
    bytes: (v, more) => scaled(v, 1024, ["B", "KiB", "MiB", "GiB", "TiB"], more),
    disk: (v, more) => scaled(v, 1000, ["B", "kB", "MB", "GB", "TB", "PB"], more),
    bytes_per_second: (v, more) => `${scaled(v, 1000, ["B", "kB", "MB", "GB"], more)}/s`,
    ratio: (v, more = 0) => `${(v * 100).toFixed((v > 0 && v < 0.1 ? 2 : 1) + more)}\u00a0%`,
    bool: (v) => (v ? "yes" : "no"),
    chunks_per_second: (v, more) => `${scaled(v, 1000, ["", "k", "M"], more)} chunks/s`,
    cores: (v, more = 0) => `${v.toFixed(2 + more)}\u00a0cores`,
    preemptions_per_second: (v, more) => `${scaled(v, 1000, ["", "k"], more)}/s`,
    requests_per_second: (v, more) => `${scaled(v, 1000, ["", "k"], more)}/s`,
    seconds: (v, more) => (v === 0 ? "0\u00a0s" : Math.abs(v) < 1e-3 ? scaled(v * 1e6, Infinity, ["µs"], more) : Math.abs(v) < 1 ? scaled(v * 1e3, Infinity, ["ms"], more) : scaled(v, Infinity, ["s"], more)),
    retrieves_per_second: (v, more) => `${scaled(v, 1000, ["", "k"], more)}/s`,
    tokens_per_second: (v, more) => `${scaled(v, 1000, ["", "k", "M"], more)} tokens/s`,
  };
  const printer = (unit) => printers[unit] ?? ((v, more) => scaled(v, 1000, ["", "k", "M", "G"], more));
  // What stands at the ticks of an axis: no two ticks read the same.
  function labels(unit, ticks) {
    const show = printer(unit);
    for (let more = 0; more < 6; more += 1) {
      const said = ticks.map((v) => show(v, more));
      if (new Set(said).size === said.length) return said;
    }
    return ticks.map(String);
  }

  // As wide as the longest label (11 px Inter: 6.2 px a character), so that none is cut; the usual ones share one width.
  const room = (_, said) => Math.max(74, 14 + 6.2 * Math.max(0, ...(said ?? []).map((text) => text.length)));

  // Times are UTC, as everywhere on the pages: hours within a day, else the day.
  const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
  const two = (n) => String(n).padStart(2, "0");
  const day = (d) => `${d.getUTCDate()} ${MONTHS[d.getUTCMonth()]}`;
  const clock = (d) => `${two(d.getUTCHours())}:${two(d.getUTCMinutes())}`;
  function timeTicks(_, ticks, __, ___, step) {
    return ticks.map((t) => {
      const d = new Date(t * 1000);
      if (step >= 86400) return day(d);
      return d.getUTCHours() + d.getUTCMinutes() === 0 ? day(d) : step < 60 ? `${clock(d)}:${two(d.getUTCSeconds())}` : clock(d);
    });
  }
  const moment = (v) => {
    if (v == null) return "—";
    const d = new Date(v * 1000);
    return `${day(d)}, ${clock(d)}:${two(d.getUTCSeconds())} UTC`;
  };
  // Ticks at whole powers of two for memory, at no and yes for lights.
  const steps = { bytes: Array.from({ length: 50 }, (_, i) => 2 ** i), bool: [1] };

  // What happened around the target: a dashed line each, told when the cursor comes near.
  const COLOURS = { ok: "ok", warn: "warn", bad: "bad", info: "info" };
  const NEAR = 6;
  function marks() {
    const data = document.querySelector("[data-chart-marks]");
    if (!data) return [];
    try {
      return JSON.parse(data.textContent).map(([at, kind, text]) => ({ at: Date.parse(at) / 1000, kind, text }));
    } catch {
      return [];
    }
  }
  const shown = (u) => u.marks.filter((m) => m.at >= u.scales.x.min && m.at <= u.scales.x.max);
  function drawMarks(u) {
    const ratio = devicePixelRatio || 1;
    const { left, top, height } = u.bbox;
    u.ctx.save();
    for (const mark of shown(u)) {
      const x = Math.round(left + u.valToPos(mark.at, "x") * ratio);
      u.ctx.strokeStyle = u.ctx.fillStyle = colour(COLOURS[mark.kind] ?? "none");
      u.ctx.lineWidth = ratio;
      u.ctx.setLineDash([3 * ratio, 3 * ratio]);
      u.ctx.beginPath();
      u.ctx.moveTo(x, top);
      u.ctx.lineTo(x, top + height);
      u.ctx.stroke();
      u.ctx.setLineDash([]);
      u.ctx.beginPath();
      u.ctx.moveTo(x - 4 * ratio, top);
      u.ctx.lineTo(x + 4 * ratio, top);
      u.ctx.lineTo(x, top + 6 * ratio);
      u.ctx.fill();
    }
    u.ctx.restore();
  }
  // What the line below says while the cursor is near no mark.
  const zoomed = (u) => { const x = u.data[0]; return x.length > 1 && (u.scales.x.min > x[0] || u.scales.x.max < x.at(-1)); };
  function hint(u) {
    const n = shown(u).length;
    const told = n ? `${n} ${n === 1 ? "event" : "events"} marked. ` : "";
    return told + (zoomed(u) ? "Double click to see all of it." : "Drag to look closer.");
  }
  function tellMark(u) {
    const note = u.root.querySelector(".chart-mark span");
    if (!note) return;
    tellFiner(u);
    const at = u.cursor.left;
    const near = at < 0 ? [] : shown(u).filter((m) => Math.abs(u.valToPos(m.at, "x") - at) <= NEAR);
    const text = near.map((m) => `${moment(m.at)}: ${m.text}`).join(" · ") || hint(u);
    if (note.textContent !== text) note.textContent = text;
  }
  // What was chosen by dragging is drawn from the points that are there; its own page has it in finer steps.
  function tellFiner(u) {
    const link = u.root.querySelector(".chart-mark a");
    if (!link) return;
    link.hidden = !zoomed(u) || u.scales.x.min === null;
    const at = (seconds) => encodeURIComponent(new Date(seconds * 1000).toISOString());
    if (!link.hidden) link.href = `${link.dataset.history}&from=${at(u.scales.x.min)}&to=${at(u.scales.x.max)}`;
  }
  function prepare(u, history) {
    u.marks = marks();
    const note = document.createElement("p");
    note.className = "chart-mark";
    const told = document.createElement("span");
    told.setAttribute("aria-live", "polite");
    note.append(told);
    if (history) {
      const link = document.createElement("a");
      link.dataset.history = history;
      link.textContent = "This time in finer steps";
      link.hidden = true;
      note.append(" ", link);
    }
    u.root.append(note);
  }

  // A value with nothing known on either side has no line: it is a dot, or a panel that polls seldom would draw nothing.
  const lonely = { show: false, size: 4, filter: (u, index) => {
    const values = u.data[index];
    const alone = values.flatMap((v, at) => (v != null && values[at - 1] == null && values[at + 1] == null ? [at] : []));
    return alone.length ? alone : null;
  } };
  const edge = (line) => ({ stroke: faded(line, 0.35), width: 0.5, spanGaps: false, points: { show: false }, class: "edge" });
  // "(from 3 to 5)" where a bucket held more than one value.
  function range(u, at, show) {
    const high = u.data[2]?.[at], low = u.data[3]?.[at];
    return low == null || high == null || low === high ? "" : ` (${show(low)} to ${show(high)})`;
  }

  function options(box, unit, width, banded) {
    const show = printer(unit);
    const line = colour(box.dataset.tier ? `tier-${box.dataset.tier}` : "text");
    const axis = colour("text-3");
    const grid = colour("line");
    return {
      width,
      height: HEIGHT,
      tzDate: (ts) => uPlot.tzDate(new Date(ts * 1000), "Etc/UTC"),
      cursor: { sync: { key: SYNC }, drag: { x: true, y: false } },
      hooks: { init: [(u) => prepare(u, box.dataset.history)], draw: [drawMarks], setCursor: [tellMark], setScale: [tellMark] },
      // Without points (or with one) the library would invent months: the last hour is asked for, and drawn.
      scales: { x: { range: (_, low, high) => (low == null || high - low < 60 ? [(high ?? Date.now() / 1000) - 3600, high ?? Date.now() / 1000] : [low, high]) }, y: { range: (_, low, high) => (unit === "ratio" ? [0, 1] : unit === "bool" ? [0, 1.1] : [Math.min(0, low ?? 0), (high || 1) * 1.08]) } },
      axes: [
        { stroke: axis, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid }, font: "11px Inter, sans-serif", values: timeTicks },
        { stroke: axis, grid: { stroke: grid, width: 1 }, ticks: { show: false }, size: room, font: "11px Inter, sans-serif", values: (_, ticks) => labels(unit, ticks), ...(steps[unit] && { incrs: steps[unit] }) },
      ],
      series: [
        { label: "time", value: (_, v) => moment(v) },
        { label: box.dataset.title, stroke: line, width: 1.6, fill: banded ? undefined : faded(line, 0.1), spanGaps: false, points: { ...lonely, fill: line },
          value: (u, v, __, at) => (at == null ? "—" : v == null ? "not known" : `${show(v)}${range(u, at, show)}`) },
        // Highest and lowest of each bucket: the area between them is drawn, so that a spike survives its mean.
        ...(banded ? [edge(line), edge(line)] : []),
      ],
      ...(banded && { bands: [{ series: [2, 3], fill: faded(line, 0.18) }] }),
    };
  }

  function draw(box, samples) {
    const unit = box.dataset.unit || samples.unit;
    // Points are [time, value]; null is a gap, never 0.
    const data = [samples.points.map((p) => Date.parse(p[0]) / 1000), samples.points.map((p) => p[1])];
    // A gauge tells the extremes of each bucket; where no bucket held two values the band would be the line itself.
    const banded = Boolean(samples.lowest && samples.highest && samples.lowest.some((low, i) => low !== samples.highest[i]));
    if (banded) data.push(samples.highest, samples.lowest);
    const old = made.get(box);
    if (old && !old.stale && old.banded === banded) {
      old.chart.marks = marks();
      old.chart.setData(data, old.chart.scales.x.min === old.full?.[0] && old.chart.scales.x.max === old.full?.[1]);
      old.full = [data[0][0], data[0].at(-1)];
      return;
    }
    old?.chart.destroy();
    box.replaceChildren();
    const chart = new uPlot(options(box, unit, box.clientWidth, banded), data, box);
    const watcher = old?.watcher ?? new ResizeObserver(() => {
      const entry = made.get(box);
      if (entry && box.clientWidth) entry.chart.setSize({ width: box.clientWidth, height: HEIGHT });
    });
    if (!old) watcher.observe(box);
    made.set(box, { chart, watcher, samples, banded, full: [data[0][0], data[0].at(-1)], stale: false });
  }

  async function load(box) {
    try {
      const answer = await fetch(box.dataset.chart, { headers: { Accept: "application/json", "Tierkeeper-Poll": "1" } });
      if (!answer.ok) return;
      const samples = await answer.json();
      if (samples.points.some((p) => p[1] !== null)) draw(box, samples);
    } catch {
      // The sparkline stays; the page itself says when the connection is lost.
    }
  }

  function forgetGone() {
    for (const [box, entry] of made) {
      if (!box.isConnected) {
        entry.watcher.disconnect();
        entry.chart.destroy();
        made.delete(box);
      }
    }
  }

  let last = 0;
  window.tierkeeperCharts = (scope) => {
    forgetGone();
    const fresh = [...scope.querySelectorAll("[data-chart]")].filter((box) => !made.has(box));
    fresh.forEach(load);
    // Live pages call this after every poll; samples need not come that often.
    if (Date.now() - last > 15000) {
      last = Date.now();
      made.forEach((_, box) => load(box));
    }
  };
  window.tierkeeperCharts.labels = labels;
  document.addEventListener("themechange", () => {
    for (const [box, entry] of made) {
      entry.stale = true;
      draw(box, entry.samples);
    }
  });
})();
