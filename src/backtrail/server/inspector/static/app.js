// The pages are made by the server. This module adds to them: parts that load when they are opened, keys, dialogs.
import { follow } from "./live.js";
import { changes } from "./change.js";
import { graph } from "./graph.js";
import { keys } from "./keys.js";

// -- parts of pages: the server renders and escapes them ----------------------------------------------

export async function part(url) {
  const response = await fetch(url, { headers: { accept: "text/html" } });
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  if (!response.ok) throw new Error(page.querySelector(".problem")?.innerText || `The server answers ${response.status}.`);
  return page;
}

export function nodes(page) {
  return [...page.body.childNodes];
}

function failed(error) {
  const text = document.createElement("p");
  text.className = "note bad";
  text.textContent = error.message;
  return [text];
}

async function fill(box, url) {
  try { box.replaceChildren(...nodes(await part(url))); } catch (error) { box.replaceChildren(...failed(error)); }
  ready(box);
}

// Load what is marked to be loaded at once.
export function ready(box) {
  for (const each of box.querySelectorAll("[data-now]")) {
    const { src } = each.dataset;
    delete each.dataset.now;
    each.removeAttribute("data-now");
    fill(each, src);
  }
  ages(box);
}

document.addEventListener("toggle", (event) => {
  const box = event.target;
  if (box.open && box.dataset?.src) {
    fill(box.querySelector(".body"), box.dataset.src);
    delete box.dataset.src;
  }
}, true);

document.addEventListener("click", async (event) => {
  const more = event.target.closest?.("a[data-more]");
  if (!more || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  const place = more.closest("p") || more;
  try { place.replaceWith(...nodes(await part(more.href))); } catch (error) { place.replaceWith(...failed(error)); }
});

document.addEventListener("change", (event) => {
  if (event.target.matches("[data-submit]")) event.target.form.requestSubmit();
});

// -- the page again, with what was open ---------------------------------------------------------------

const open = (box) => [...box.querySelectorAll("details[open][data-key]")].map((each) => each.dataset.key);
const text = (box) => box.innerHTML.replace(/(<time[^>]*>)[^<]*/g, "$1"); // without what only the clock changes
const last = new Map([...document.querySelectorAll("[data-swap]")].map((each) => [each.id, text(each)]));

export async function refresh() {
  const page = await part(location.href);
  const focus = document.activeElement?.getAttribute?.("href");
  for (const now of document.querySelectorAll("[data-swap]")) {
    const then = page.getElementById(now.id);
    if (!then || last.get(now.id) === text(then)) continue;
    if ("graph" in now.dataset && (now.scrollTop > 60 || then.querySelector("[data-around]"))) {
      fresh(now);
      continue;
    }
    last.set(now.id, text(then));
    const keysOpen = open(now);
    const { scrollTop } = now;
    now.replaceChildren(...then.childNodes);
    for (const each of now.querySelectorAll("details[data-key]")) if (keysOpen.includes(each.dataset.key)) each.open = true;
    now.scrollTop = scrollTop;
    ready(now);
  }
  if (focus && document.activeElement === document.body) {
    document.querySelector(`main a[href="${CSS.escape(focus)}"]`)?.focus({ preventScroll: true });
  }
}

// The user reads further down: the graph stays, and a button leads to the new checkpoints.
function fresh(graph) {
  if (graph.querySelector(".fresh")) return;
  const button = document.createElement("button");
  button.className = "fresh";
  button.textContent = "There are new checkpoints";
  button.addEventListener("click", () => { location.href = location.pathname; });
  graph.prepend(button);
}

// -- times, colours -----------------------------------------------------------------------------------

function ages(box = document) {
  for (const each of box.querySelectorAll("time[datetime]")) {
    const seconds = (Date.now() - Date.parse(each.dateTime)) / 1000;
    if (!(seconds < 5184000)) continue;
    const [unit, name] = seconds < 60 ? [1, "s"] : seconds < 3600 ? [60, "min"] : seconds < 86400 ? [3600, "h"] : [86400, "d"];
    each.textContent = `${Math.max(Math.floor(seconds / unit), 0)} ${name}`;
  }
}
setInterval(ages, 15000);

export function theme() {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const order = dark ? ["", "light", "dark"] : ["", "dark", "light"];
  const next = order[(order.indexOf(root.dataset.theme || "") + 1) % order.length];
  if (next) root.dataset.theme = next; else delete root.dataset.theme;
  try { if (next) localStorage.setItem("backtrail-theme", next); else localStorage.removeItem("backtrail-theme"); } catch { /* blocked */ }
}
document.getElementById("theme").addEventListener("click", theme);
document.getElementById("help").addEventListener("click", () => document.getElementById("keys").showModal());

ready(document);
keys();
changes();
graph();
follow();
document.documentElement.dataset.ready = ""; // keys and links work from now on
const target = location.hash && document.getElementById(location.hash.slice(1));
if (target?.matches?.("details")) target.open = true;
const end = document.querySelector("[data-end]");
if (end && !location.search && !location.hash) scrollTo(0, document.body.scrollHeight);
