// What the pages do beyond links and forms. Everything reads without this file; it adds live updates, keys and copying.
(() => {
  "use strict";
  const root = document.documentElement;
  root.classList.add("js");
  const pollSeconds = Number(document.body.dataset.pollSeconds) || 5;
  const $ = (selector, scope = document) => scope.querySelector(selector);
  const $$ = (selector, scope = document) => [...scope.querySelectorAll(selector)];

  // ---- live parts: one clock for all of them; it rests while nobody looks ----

  let paused = false;
  let lostSince = null;
  let failures = 0;
  let lastGood = Date.now();
  let timer = null;
  let lastTick = 0;

  const hasLive = () => $("[data-live]") !== null;
  // Replacing what somebody is selecting or typing into a live part would be rude.
  const busy = () => {
    const selection = document.getSelection();
    const marked = selection && !selection.isCollapsed && selection.anchorNode?.parentElement?.closest("[data-live]");
    const typing = document.activeElement?.matches("input:not([type=checkbox],[type=radio]), select, textarea") &&
      document.activeElement.closest("[data-live]");
    return Boolean(marked || typing || $("[data-live] [popover]:popover-open"));
  };

  function tick() {
    lastTick = Date.now();
    schedule();
    if (!paused && !document.hidden && !busy()) document.body.dispatchEvent(new CustomEvent("tick"));
  }
  function schedule() {
    clearTimeout(timer);
    if (!hasLive()) return;
    const wait = pollSeconds * (failures ? Math.min(2 ** failures, 12) : 1);
    timer = setTimeout(tick, wait * 1000);
  }

  // The panel says that something moved: the live parts ask then, at most once a second. Without a stream (too many, or a
  // proxy that breaks them) they ask by the clock, as they do anyway. Browsers grant few connections: hidden tabs let go.
  let stream = null;
  let soon = null;
  function listen() {
    if (document.hidden || paused || !hasLive()) {
      stream?.close();
      stream = null;
      return;
    }
    if (stream && stream.readyState !== EventSource.CLOSED) return;
    stream = new EventSource(document.body.dataset.stream);
    stream.addEventListener("change", () => {
      soon ??= setTimeout(() => { soon = null; tick(); }, Math.max(0, 1000 - (Date.now() - lastTick)));
    });
  }
  document.addEventListener("visibilitychange", () => {
    showState();
    listen();
    if (!document.hidden && hasLive() && Date.now() - lastGood > pollSeconds * 1000) tick();
  });

  function showState() {
    const label = $("#live-state");
    if (!label || !hasLive()) return;
    const age = Math.round((Date.now() - lastGood) / 1000);
    const state = lostSince ? "lost" : paused ? "paused" : "live";
    if (label.dataset.state !== state) label.dataset.state = state;
    const text = { lost: "connection lost", paused: "paused", live: age < pollSeconds * 2 ? "live" : `live, ${age} s ago` }[state];
    if (label.textContent !== text) label.textContent = text;
  }

  function good() {
    lastGood = Date.now();
    failures = 0;
    if (lostSince) {
      lostSince = null;
      $("#connection").hidden = true;
      schedule();
    }
    showState();
  }
  function bad(text) {
    failures += 1;
    lostSince ??= new Date();
    const box = $("#connection");
    if (box) {
      $("[data-connection-text]", box).textContent = `${text} since ${lostSince.toLocaleTimeString()}.`;
      box.hidden = false;
    }
    showState();
    schedule();
  }

  const isPoll = (event) => event.detail?.ctx?.sourceElement?.hasAttribute?.("data-live");
  document.addEventListener("htmx:before:swap", (event) => {
    if (!isPoll(event)) return;
    const status = event.detail.ctx.response?.status ?? 0;
    // An error page is no news about the fleet: keep what is shown and say since when it is old.
    if (status >= 400) {
      event.preventDefault();
      bad(status === 401 || status === 403 ? "You are signed out" : `The panel answers with an error (${status})`);
    } else {
      good();
    }
  });
  document.addEventListener("htmx:error", (event) => {
    if (isPoll(event)) bad("The panel does not answer");
  });
  document.addEventListener("htmx:after:swap", (event) => {
    if (isPoll(event)) setSkew();
    relativeTimes();
    hydrate(document);
  });

  // ---- relative times ----

  function words(seconds) {
    const s = Math.abs(seconds);
    const nb = "\u00a0";
    if (s < 1.5) return "now";
    if (s >= 14 * 86400) return null;
    if (seconds < 0) return `in ${ahead(s)}`;
    let text;
    if (s < 60) text = `${Math.round(s)}${nb}s`;
    else if (s < 3600) text = `${Math.floor(s / 60)}${nb}m`;
    else if (s < 86400) text = `${Math.floor(s / 3600)}${nb}h`;
    else text = `${Math.floor(s / 86400)}${nb}d`;
    return `${text} ago`;
  }
  // A promise, to the nearest next smaller unit (as `relative` in app/web/formats.py).
  function ahead(s) {
    const nb = "\u00a0";
    if (s < 90) return `${Math.round(s)}${nb}s`;
    const minutes = Math.round(s / 60);
    if (minutes < 60) return `${minutes}${nb}m`;
    const [count, size, units] = minutes < 24 * 60 ? [minutes, 60, "hm"] : [Math.round(s / 3600), 24, "dh"];
    const part = count % size;
    return `${Math.floor(count / size)}${nb}${units[0]}` + (part ? `${nb}${part}${nb}${units[1]}` : "");
  }
  // Ages count from the server's clock: this one may be wrong.
  let skew = 0;
  // Called when an answer has just come: measuring an old one again would let its ages stand still.
  function setSkew() {
    const latest = $$("[data-now]").map((e) => Date.parse(e.dataset.now));
    if (latest.length) skew = Date.now() - Math.max(...latest);
  }
  setSkew();
  function relativeTimes() {
    const now = Date.now() - skew;
    for (const time of $$("time[data-rel]")) {
      const text = words((now - Date.parse(time.dateTime)) / 1000);
      if (text && time.textContent !== text) time.textContent = text;
    }
  }
  setInterval(() => {
    if (!document.hidden) {
      relativeTimes();
      showState();
    }
  }, 1000);
  document.addEventListener("mouseover", (event) => {
    const time = event.target.closest?.("time[title]:not([data-local])");
    if (!time) return;
    time.dataset.local = "";
    time.title += `\n${new Date(time.dateTime).toLocaleString()} here`;
  });

  // ---- small things by click ----

  document.addEventListener("click", async (event) => {
    const copy = event.target.closest("[data-copy]");
    if (copy) {
      event.preventDefault();
      await toClipboard(copy.dataset.copy);
      toast("Copied");
      return;
    }
    const toggle = event.target.closest("[data-theme-toggle]");
    if (toggle) {
      event.preventDefault();
      theme(toggle.value);
      return;
    }
    event.target.closest("[data-dismiss]")?.closest(".toast")?.remove();
  });

  async function toClipboard(text) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // Plain http has no clipboard API.
      const area = document.createElement("textarea");
      area.value = text;
      area.className = "vh";
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
  }

  function toast(text, kind = "ok") {
    const box = $("#toasts");
    if (!box) return;
    const item = document.createElement("div");
    item.className = `toast t-${kind}`;
    const line = document.createElement("p");
    line.className = "grow";
    line.textContent = text;
    item.append(line);
    box.append(item);
    setTimeout(() => item.remove(), 2500);
  }
  // What can be taken back stays longer, and as long as somebody is at it.
  function retire(shown, wait) {
    setTimeout(() => (shown.matches(":hover, :focus-within") ? retire(shown, 4000) : shown.remove()), wait);
  }
  for (const shown of $$(".toast")) retire(shown, $("form", shown) ? 30000 : 9000);

  // The choice lives in a cookie, so that the server draws the first paint in the right colours.
  const order = ["auto", "dark", "light"];
  function theme(next) {
    if (next === "auto") delete root.dataset.theme;
    else root.dataset.theme = next;
    const base = document.body.dataset.prefix.replace(/(.)\/$/, "$1");
    document.cookie = `tierkeeper-theme=${next}; Path=${base}; Max-Age=31536000; SameSite=Lax`;
    const button = $("[data-theme-toggle]");
    if (button) {
      button.value = order[(order.indexOf(next) + 1) % order.length];
      button.title = `Theme: ${next === "auto" ? "as the system" : next}`;
      const use = $("use", button);
      const icon = { auto: "sun-moon", dark: "moon", light: "sun" }[next];
      use.setAttribute("href", use.getAttribute("href").replace(/#.*/, `#${icon}`));
    }
    toast(`Theme: ${next === "auto" ? "as the system" : next}`);
    document.dispatchEvent(new CustomEvent("themechange"));
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
    document.dispatchEvent(new CustomEvent("themechange")));

  // A typed confirmation: the button stays off until the word is there. The server checks it again.
  document.addEventListener("input", (event) => {
    const word = event.target.dataset?.confirmWord;
    if (word === undefined) return;
    const button = $("[type=submit]", event.target.form);
    if (button) button.disabled = event.target.value.trim() !== word;
  });
  for (const field of $$("[data-confirm-word]")) {
    const button = $("[type=submit]", field.form);
    if (button) button.disabled = true;
  }
  // A second press of a button that starts work is never wanted.
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.method === "get" || form.hasAttribute("hx-post")) return;
    if (form.dataset.sent) {
      event.preventDefault();
      return;
    }
    form.dataset.sent = "1";
    setTimeout(() => delete form.dataset.sent, 4000);
  });
  // Filters apply at once; without a script the button does it.
  document.addEventListener("change", (event) => {
    const form = event.target.form;
    if (form?.hasAttribute("data-auto") && event.target.matches("select, input[type=checkbox], input[type=radio]")) form.requestSubmit();
  });

  // ---- keys ----

  let going = false;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest?.("input, select, textarea, [contenteditable]")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (going) {
      going = false;
      const link = $(`[data-go="${CSS.escape(event.key)}"]`);
      if (link) location.assign(link.href);
      return;
    }
    switch (event.key) {
      case "?":
        $("#keys")?.togglePopover();
        break;
      case "/": {
        const field = $("[data-key-search]");
        if (!field) return;
        field.focus();
        break;
      }
      case "g":
        going = true;
        setTimeout(() => { going = false; }, 1200);
        break;
      case "p":
        if (!hasLive()) return;
        paused = !paused;
        showState();
        toast(paused ? "Live updates paused" : "Live updates on");
        listen();
        if (!paused) tick();
        break;
      case "t":
        $("[data-theme-toggle]")?.click();
        break;
      case "j":
      case "k":
        row(event.key === "j" ? 1 : -1);
        break;
      default:
        return;
    }
    event.preventDefault();
  });
  function row(step) {
    const links = $$(".main table tbody tr").map((tr) => $("a[href]", tr)).filter(Boolean);
    if (!links.length) return;
    const at = links.indexOf(document.activeElement);
    links[Math.min(Math.max(at + step, 0), links.length - 1)].focus();
  }

  addEventListener("scroll", () => root.classList.toggle("scrolled", scrollY > 4), { passive: true });

  // ---- charts are another file, only on pages that have one ----

  function hydrate(scope) {
    window.tierkeeperCharts?.(scope);
  }
  addEventListener("load", () => {
    hydrate(document);
    schedule();
    listen();
    showState();
  });
})();
