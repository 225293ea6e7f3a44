// Railscope console: replaces the parts of a page that are marked `data-live`, by polling. Pages are complete without it.
"use strict";
(() => {
  const main = document.getElementById("main");
  const connection = document.getElementById("connection");
  const policy = window.trustedTypes
    ? trustedTypes.createPolicy("railscope", { createHTML: (text) => text })
    : { createHTML: (text) => text };
  const seconds = Number(main.dataset.seconds);
  const MAX_SECONDS = 60;
  let tag = "", failures = 0, timer = 0, nodes = null;

  // An element is found again in a new version of its part by its id, its disclosure, where its link leads, or its label.
  const find = (part, element) => {
    if (element.id) return part.querySelector(`#${CSS.escape(element.id)}`);
    if (element.tagName === "SUMMARY") return find(part, element.parentElement)?.querySelector("summary");
    const name = ["href", "aria-label"].find((each) => element.hasAttribute(each));
    return name ? part.querySelector(`[${name}="${CSS.escape(element.getAttribute(name))}"]`) : null;
  };

  const replace = (text) => {
    const parsed = new DOMParser().parseFromString(policy.createHTML(text), "text/html");
    for (const before of [...main.querySelectorAll("[data-live]")]) {
      const after = parsed.getElementById(before.id);
      if (!after || after.isEqualNode(before)) continue;
      if (before.hasAttribute("aria-live")) {
        before.textContent = after.textContent; // the same element, so that the change is announced
        continue;
      }
      for (const open of before.querySelectorAll("details[open]")) {
        find(after, open)?.setAttribute("open", "");
      }
      const focused = before.contains(document.activeElement) ? document.activeElement : null;
      const left = [...before.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
      const next = focused && find(after, focused);
      before.replaceWith(document.adoptNode(after));
      next?.focus({ preventScroll: true });
      after.querySelectorAll(".scroll").forEach((each, index) => { each.scrollLeft = left[index] ?? 0; });
    }
    nodes = null;
    document.dispatchEvent(new CustomEvent("railscope-updated"));
  };

  const poll = async () => {
    try {
      const headers = { Accept: "text/html", ...(tag && { "If-None-Match": tag }) };
      const answer = await fetch(main.dataset.fragment, { headers, redirect: "manual", credentials: "same-origin" });
      if (answer.type === "opaqueredirect") return location.reload(); // the session has ended
      if (answer.status === 200) {
        tag = answer.headers.get("ETag") ?? "";
        replace(await answer.text());
      } else if (answer.status !== 304) throw new Error(`status ${answer.status}`);
      failures = 0;
      connection.textContent = "";
    } catch (error) {
      failures += 1;
      connection.textContent = `Not up to date: ${error.message}. Trying again.`;
    }
    schedule();
  };

  const schedule = () => {
    clearTimeout(timer);
    if (document.hidden) return;
    timer = setTimeout(poll, 1000 * Math.min(seconds * 2 ** failures, MAX_SECONDS));
  };

  // The grid: the cell below the pointer follows from its position; names come from the page as JSON.
  const load = async () => {
    const answer = await fetch(location.href, { credentials: "same-origin", headers: { accept: "application/json" } });
    return answer.ok ? (await answer.json()).grid?.nodes ?? [] : [];
  };

  const point = async (event) => {
    const grid = event.target.closest?.(".grid svg");
    if (!grid) return "";
    const box = grid.getBoundingClientRect();
    const { columns, rails, rows } = grid.dataset;
    const cell = box.width / columns;
    const column = Math.floor((event.clientX - box.left) / cell);
    const row = Math.floor((event.clientY - box.top) / cell);
    nodes ??= load();
    const name = (await nodes)[Math.floor(row / rows) * columns + column];
    if (!name || row % rows >= rails) return "";
    return { name, rail: row % rows };
  };

  document.addEventListener("pointermove", async (event) => {
    const found = await point(event);
    const output = document.getElementById("pointed");
    if (found && output) output.textContent = `${found.name}, rail ${found.rail}`;
  });
  document.addEventListener("click", async (event) => {
    const found = await point(event);
    if (found) location.assign(`/nodes/${encodeURIComponent(found.name)}`);
  });
  document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : poll()));
  schedule();
})();
