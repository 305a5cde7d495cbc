// Swaps the live sections of this page when the server sends newer HTML, and keeps ages current.
// Every page works without it.
"use strict";

(() => {
  const connection = document.getElementById("connection");

  // --- ages and moments ---

  const STEPS = [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]];

  function duration(seconds) {
    const whole = Math.max(Math.floor(seconds), 0);
    for (const [size, unit, smallSize, smallUnit] of STEPS) {
      if (whole >= size) {
        const small = Math.floor((whole % size) / smallSize);
        const large = `${Math.floor(whole / size)} ${unit}`;
        return small ? `${large} ${small} ${smallUnit}` : large;
      }
    }
    return `${whole} s`;
  }

  function setText(element, text) {
    if (element.textContent !== text) element.textContent = text;
  }

  // The local time, with the date unless it is today.
  function localText(moment) {
    const pad = (number) => String(number).padStart(2, "0");
    const date = [moment.getFullYear(), pad(moment.getMonth() + 1), pad(moment.getDate())].join("-");
    const time = [moment.getHours(), moment.getMinutes(), moment.getSeconds()].map(pad).join(":");
    return moment.toDateString() === new Date().toDateString() ? time : `${date} ${time}`;
  }

  function refreshTimes(root) {
    const now = Date.now() / 1000;
    for (const each of root.querySelectorAll("time[data-age]")) {
      setText(each, duration(now - Number(each.dataset.age)));
    }
    for (const each of root.querySelectorAll("time[data-until]")) {
      const left = Number(each.dataset.until) - now;
      setText(each, left > 0 ? `in ${duration(left)}` : "now");
    }
    for (const each of root.querySelectorAll("time[data-moment]")) {
      const moment = new Date(each.dateTime);
      each.title = each.title || each.textContent;
      each.textContent = localText(moment);
      delete each.dataset.moment;
    }
  }

  // --- sections ---

  // The place of an element below a section, so that the same element can be found in newer HTML.
  function keyOf(element) {
    if (element.id) return `#${CSS.escape(element.id)}`;
    for (const name of ["href", "name", "data-key"]) {
      const value = element.getAttribute(name);
      if (value) return `${element.localName}[${name}="${CSS.escape(value)}"]`;
    }
    return "";
  }

  function rememberedState(section) {
    const active = document.activeElement;
    const details = [...section.querySelectorAll("details[open]")].map(keyOf).filter(Boolean);
    const scrolled = [...section.querySelectorAll(".scroll, .log")].map((each) => [
      each.scrollLeft,
      each.scrollTop,
      each.scrollHeight - each.scrollTop - each.clientHeight < 8,
    ]);
    const index = section.contains(active)
      ? [...section.querySelectorAll(keyOf(active) || "#none")].indexOf(active)
      : -1;
    return { details, scrolled, focus: index >= 0 ? [keyOf(active), index] : null };
  }

  function restoreState(section, state) {
    for (const key of state.details) {
      for (const each of section.querySelectorAll(key)) each.open = true;
    }
    [...section.querySelectorAll(".scroll, .log")].forEach((each, number) => {
      const [left, top, wasAtEnd] = state.scrolled[number] || [0, 0, false];
      each.scrollLeft = left;
      each.scrollTop = wasAtEnd && each.classList.contains("log") ? each.scrollHeight : top;
    });
    if (state.focus) {
      const [key, index] = state.focus;
      const found = section.querySelectorAll(key);
      const target = found[index] || found[0];
      if (target) target.focus({ preventScroll: true });
    }
  }

  function isInUse(section) {
    const selection = document.getSelection();
    return selection && !selection.isCollapsed && section.contains(selection.anchorNode);
  }

  function swap(id, html) {
    const present = document.getElementById(id);
    if (!present || isInUse(present)) return;
    const holder = document.createElement("template");
    holder.innerHTML = html;
    const next = holder.content.firstElementChild;
    if (!next || next.dataset.live === present.dataset.live) return;
    const state = rememberedState(present);
    refreshTimes(next);
    // The element itself stays, so that a screen reader notices the change inside a live region.
    for (const { name, value } of [...next.attributes]) present.setAttribute(name, value);
    present.replaceChildren(...next.childNodes);
    restoreState(present, state);
  }

  // --- the stream ---

  function say(text, isBad) {
    if (connection.textContent !== text) connection.textContent = text;
    connection.classList.toggle("connection-bad", isBad);
  }

  function clockTime() {
    return new Date().toLocaleTimeString();
  }

  let stream = null;
  let lostAt = "";

  function watch() {
    const query = new URLSearchParams(location.search);
    query.delete("notice");
    const path = location.pathname + (query.size ? `?${query}` : "");
    stream = new EventSource(`/live?path=${encodeURIComponent(path)}`);
    stream.addEventListener("open", () => {
      lostAt = "";
      say("Live", false);
    });
    stream.addEventListener("sections", (event) => {
      for (const [id, html] of Object.entries(JSON.parse(event.data))) swap(id, html);
    });
    stream.addEventListener("state", (event) => {
      const { state } = JSON.parse(event.data);
      say(state === "ok" ? "Live" : `Not updated: ${state}`, state !== "ok");
    });
    stream.addEventListener("error", () => {
      lostAt = lostAt || clockTime();
      say(`Not connected since ${lostAt}`, true);
      if (stream.readyState === EventSource.CLOSED) setTimeout(watch, 5000);
    });
  }

  for (const each of document.querySelectorAll("[data-live] .log")) each.scrollTop = each.scrollHeight;
  refreshTimes(document);
  setInterval(() => refreshTimes(document), 1000);
  if (document.querySelector("[data-live]")) watch();
  addEventListener("pagehide", () => stream && stream.close());
  addEventListener("pageshow", (event) => {
    if (event.persisted && stream) watch();
  });
})();
