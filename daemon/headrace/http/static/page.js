"use strict";
// The status page: what /api/v1/events says, drawn. All texts go in by textContent: names and errors are not ours.

const $ = (id) => document.getElementById(id);
const HOUR = 3600;
const WELL = new Set(["STREAMING", "STANDBY", "SNAPSHOTTING"]);
const WARN = new Set(["DEGRADED", "PAUSED", "STARTING", "STOPPED"]);
const ACTIONS = {
  pause: ["Pause", "The stream ends in order, and starts again when it is resumed."],
  resume: ["Resume", "The stream continues after what was confirmed."],
  restart: ["Restart", "The stream ends in order and starts again, with new connections."],
};
const cards = new Map();
let before = null;

// -- texts ------------------------------------------------------------------------------------------------------

const number = (value) => new Intl.NumberFormat("en").format(value);

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 10) return `${seconds.toFixed(seconds < 1 ? 2 : 1)} s`;
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const at = units.findIndex(([size]) => seconds >= size);
  const [size, name] = units[at];
  const rest = at < 3 ? Math.floor((seconds % size) / units[at + 1][0]) : 0;
  return `${Math.floor(seconds / size)} ${name}${rest ? ` ${rest} ${units[at + 1][1]}` : ""}`;
}

function bytes(count) {
  if (count === null || count === undefined) return "–";
  const names = ["B", "kB", "MB", "GB", "TB"];
  let size = count, at = 0;
  while (size >= 1000 && at < names.length - 1) { size /= 1000; at += 1; }
  return `${at && size < 100 ? size.toFixed(1) : Math.round(size)} ${names[at]}`;
}

function say(element, text) {
  const shown = text || "";
  if (element.textContent !== shown) element.textContent = shown;
  element.hidden = !shown;
}

// -- one destination --------------------------------------------------------------------------------------------

function makeCard(name) {
  const element = $("card").content.firstElementChild.cloneNode(true);
  const card = { element, name, samples: [], facts: new Map(), find: (one) => element.querySelector(one) };
  card.find("h2").textContent = name;
  element.setAttribute("aria-label", name);
  for (const [action, [label]] of Object.entries(ACTIONS)) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = t(label);
    button.dataset.action = action;
    button.addEventListener("click", () => operate(name, action));
    card.find(".actions").append(button);
  }
  return card;
}

function fact(card, key, value) {
  let pair = card.facts.get(key);
  if (!pair) {
    pair = [document.createElement("dt"), document.createElement("dd")];
    pair[0].textContent = t(key);
    card.find("dl").append(...pair);
    card.facts.set(key, pair);
  }
  say(pair[1], value);
  pair[0].hidden = pair[1].hidden;
}

function drawCard(card, now, rate, node) {
  const kind = WELL.has(now.state) ? "well" : WARN.has(now.state) ? "warn" : "ill";
  card.element.className = kind;
  card.find(".state strong").textContent = now.state + (now.reason ? ` · ${now.reason}` : "");
  card.find(".since").textContent = t`for ${duration(now.state_seconds)}`;
  say(card.find(".message"), now.message);
  const standby = now.state === "STANDBY";
  fact(card, "Node", standby ? t`${now.holder || t("nobody")} (this one stands by)` : t`${node}, epoch ${now.epoch}`);
  fact(card, "Lag", standby ? "" : lagText(now));
  fact(card, "Rows/s", standby || rate === null ? "" : number(Math.round(rate)));
  fact(card, "Position", now.position ? `${now.position.file}:${number(now.position.offset)}` : "");
  fact(card, "Source", now.source.address);
  fact(card, "Backlog", backlogText(now.backlog));
  fact(card, "Parked", parkedText(now.parked));
  drawRetention(card, now.retention);
  drawSnapshot(card, now.snapshot);
  const at = now.last_error_at ? ` (${now.last_error_at.slice(0, 19).replace("T", " ")})` : "";
  const again = now.message.includes(now.last_error);
  const error = again ? at : `${at}: ${now.last_error}`;
  say(card.find(".error"), now.last_error ? t`Last error${error}` : "");
  drawChart(card, standby);
  const paused = now.state === "PAUSED" && now.reason === "operator";
  for (const button of card.find(".actions").children) {
    button.hidden = (button.dataset.action === "resume") !== paused && button.dataset.action !== "restart";
    button.disabled = !$("token").value || standby;
    button.title = $("token").value ? "" : t("Enter the token first");
  }
}

function lagText(now) {
  const parts = now.lag_seconds >= 1
    ? t` (reading ${duration(now.reading_lag_seconds)}, publishing ${duration(now.publishing_lag_seconds)})` : "";
  return duration(now.lag_seconds) + parts;
}

function backlogText(backlog) {
  if (!backlog.bytes || backlog.bytes < 1e6) return "";
  const eta = backlog.eta_seconds === null ? "" : t`, done in ${duration(backlog.eta_seconds)}`;
  const rate = backlog.bytes_per_second === null ? "" : t` at ${bytes(backlog.bytes_per_second)}/s`;
  return bytes(backlog.bytes) + rate + eta;
}

function parkedText(parked) {
  if (!parked.messages) return "";
  const need = parked.need_operator ? t`, ${number(parked.need_operator)} need an operator` : "";
  return t`${number(parked.messages)} messages${need}`;
}

function drawRetention(card, retention) {
  const line = card.find(".retention"), share = retention.share;
  line.hidden = share === null;
  if (share === null) return;
  line.querySelector("meter").value = share;
  const left = retention.seconds === null ? bytes(retention.bytes) : duration(retention.seconds);
  line.querySelector("span").textContent = t`${Math.round(share * 100)} %, ${left} left`;
}

function drawSnapshot(card, snapshot) {
  const line = card.find(".snapshot");
  line.hidden = !snapshot;
  if (!snapshot) return;
  const bar = line.querySelector("progress");
  if (snapshot.percent === null) bar.removeAttribute("value"); else bar.value = snapshot.percent;
  const eta = snapshot.eta_seconds === null ? "" : t`, ${duration(snapshot.eta_seconds)} left`;
  const rate = t`${number(Math.round(snapshot.rows_per_second))} rows/s`;
  line.querySelector("span").textContent =
    t`Snapshot ${snapshot.state}: ${number(snapshot.rows)} rows, ${rate}${eta}`;
}

function drawChart(card, hidden) {
  const chart = card.find(".chart");
  chart.toggleAttribute("hidden", hidden);
  card.find(".scale").hidden = hidden;
  if (hidden) return;
  const now = Date.now() / 1000;
  while (card.samples.length && card.samples[0][0] < now - HOUR) card.samples.shift();
  const top = Math.max(1, ...card.samples.map((one) => one[1]));
  const points = card.samples.map(([at, lag]) => {
    const x = Math.max(0, 360 * (1 - (now - at) / HOUR)), y = 58 - 54 * (lag / top);
    return `${x.toFixed(1)} ${y.toFixed(1)}`;
  });
  const line = points.length ? `M${points.join("L")}` : "";
  card.find(".line").setAttribute("d", line);
  const [first, last] = [points[0], points[points.length - 1]].map((one) => one && one.split(" ")[0]);
  card.find(".area").setAttribute("d", line ? `${line}L${last} 60L${first} 60Z` : "");
  card.find(".top").textContent = t`lag, up to ${duration(top)}`;
  chart.setAttribute("aria-label", t`Lag over the last hour, at most ${duration(top)}`);
}

// -- all of them ------------------------------------------------------------------------------------------------

function drawStatus(page) {
  const now = performance.now() / 1000;
  const names = Object.keys(page.destinations);
  say($("daemon"), t`${page.node}, version ${page.version}: ${summary(page.destinations)}`);
  document.title = `${page.status === "ok" ? "" : "✗ "}headrace ${page.node}`;
  $("none").hidden = names.length > 0;
  $("search").hidden = names.length < 7;
  $("problems").hidden = !page.config_errors.length;
  $("problems").replaceChildren(...[...page.config_errors, t("See docs/troubleshooting.md#config")].map((one) => {
    const item = document.createElement("li");
    item.textContent = one;
    return item;
  }));
  for (const [name, card] of cards) {
    if (Object.hasOwn(page.destinations, name)) continue;
    card.element.remove();
    cards.delete(name);
  }
  for (const name of names) {
    const status = page.destinations[name];
    if (!cards.has(name)) cards.set(name, makeCard(name));
    const last = before && Object.hasOwn(before.page.destinations, name) && before.page.destinations[name];
    const rate = last ? Math.max(0, status.rows - last.rows) / Math.max(0.1, now - before.now) : null;
    const card = cards.get(name);
    keepSample(card, status.lag_seconds);
    drawCard(card, status, rate, page.node);
    card.rank = [WELL.has(status.state) ? 1 : 0, name];
  }
  place();
  before = { now, page };
}

function keepSample(card, lag) {
  const at = Date.now() / 1000, last = card.samples[card.samples.length - 1];
  if (!last || at - last[0] >= 10) card.samples.push([at, lag]);
}

function summary(destinations) {
  const counts = new Map();
  for (const one of Object.values(destinations)) counts.set(one.state, (counts.get(one.state) || 0) + 1);
  return [...counts].sort().map(([state, count]) => `${count} ${state}`).join(", ") || t("no destination");
}

/** Those that are not well come first. Nothing is moved while one of them has the focus. */
function place() {
  const wanted = $("filter").value.trim().toLowerCase();
  const sorted = [...cards.values()].sort((a, b) => a.rank[0] - b.rank[0] || (a.rank[1] < b.rank[1] ? -1 : 1));
  for (const card of sorted) {
    const text = `${card.name} ${card.find(".state").textContent}`.toLowerCase();
    card.element.hidden = !text.includes(wanted);
  }
  const main = $("destinations");
  const same = sorted.every((card, at) => main.children[at] === card.element);
  if (!same && (!main.contains(document.activeElement) || main.children.length !== sorted.length))
    main.append(...sorted.map((card) => card.element));
}

/** The last known nodes stay, with the reason why nothing newer is shown. */
function drawUnseen(page) {
  $("cluster").hidden = false;
  say($("unseen"), t`${page.error} (see ${page.help})`);
}

function drawNodes(page) {
  say($("unseen"), "");
  const names = Object.keys(page.nodes).sort(), held = page.destinations;
  $("cluster").hidden = false; // also for the last one of several: it shows who is missing
  $("nodes").replaceChildren(...names.map((name) => {
    const node = page.nodes[name], row = document.createElement("tr");
    const those = (which) => Object.keys(held).filter((one) => which(held[one])).sort().join(", ");
    const runs = those((one) => one.holder === name), waits = those((one) => one.waiting.includes(name));
    const notes = [];
    if (name === page.node) notes.push(t("this one"));
    if (page.drained.includes(name)) notes.push(t("drained"));
    for (const text of [name, node.address, node.version, runs, waits, notes.join(", ")]) {
      const cell = document.createElement("td");
      cell.textContent = text === undefined || text === null ? "" : String(text);
      row.append(cell);
    }
    return row;
  }));
}

// -- commands ---------------------------------------------------------------------------------------------------

let questions = 0;

/** The browser reports a closed dialog later, when the next question may be shown already. */
function confirmed(question, label) {
  const dialog = $("ask");
  const own = ++questions;
  $("question").textContent = question;
  $("yes").textContent = label;
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    function closed() {
      const latest = own === questions;
      if (latest && dialog.open) return;
      dialog.removeEventListener("close", closed);
      resolve(latest && dialog.returnValue === "yes");
    }
    dialog.addEventListener("close", closed);
  });
}

async function operate(name, action) {
  const [label, meaning] = ACTIONS[action];
  if (!(await confirmed(`${t(label)} ${name}? ${t(meaning)}`, t(label)))) return;
  say($("said"), `${name}: ${action} …`);
  try {
    const answer = await fetch(`api/v1/destinations/${encodeURIComponent(name)}/${action}`, {
      method: "POST",
      headers: { "content-type": "application/json", authorization: `Bearer ${$("token").value}` },
      body: JSON.stringify({ by: "the status page" }),
    });
    const page = await answer.json();
    const see = page.help ? t` (see ${page.help})` : "";
    say($("said"), answer.ok ? t`${name}: ${t(label).toLowerCase()} is done` : `${name}: ${page.error}${see}`);
  } catch (error) {
    say($("said"), t`${name}: the daemon did not answer (${error.message})`);
  }
}

// -- live -------------------------------------------------------------------------------------------------------

let heard = 0;

function hear(text) {
  heard = Date.now();
  document.body.classList.remove("stale");
  say($("away"), "");
  return JSON.parse(text.data);
}

/** A connection can be silent without an error, so the time of the last message decides. */
function checkSilence() {
  if (!heard || Date.now() - heard < 5000) return;
  document.body.classList.add("stale");
  document.title = t("✗ headrace does not answer");
  say($("away"), t`The daemon does not answer. What is shown is as of ${new Date(heard).toLocaleTimeString()}.`);
}

function listen() {
  const source = new EventSource("api/v1/events");
  source.addEventListener("status", (event) => drawStatus(hear(event)));
  source.addEventListener("nodes", (event) => drawNodes(hear(event)));
  source.addEventListener("unseen", (event) => drawUnseen(hear(event)));
  source.addEventListener("history", (event) => {
    for (const [name, samples] of Object.entries(hear(event))) {
      if (!cards.has(name)) cards.set(name, makeCard(name));
      cards.get(name).samples = samples;
    }
  });
  source.onerror = () => {
    if (!heard) heard = 1;
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, 3000);
  };
}

$("filter").addEventListener("input", place);
$("key").addEventListener("submit", (event) => event.preventDefault());
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || $("search").hidden || event.target.matches("input")) return;
  event.preventDefault();
  $("filter").focus();
});
setInterval(checkSilence, 1000);
listen();
