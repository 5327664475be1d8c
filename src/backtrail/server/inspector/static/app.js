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

export async function refresh(url = location.href, only = "[data-swap]") {
  const page = await part(url);
  const focus = document.activeElement?.getAttribute?.("href");
  for (const now of document.querySelectorAll(only)) {
    const then = page.getElementById(now.id);
    if (!then || then.innerHTML === now.dataset.html || (now.dataset.graph !== undefined && now.scrollTop > 60)) continue;
    const keysOpen = open(now);
    const { scrollTop } = now;
    now.dataset.html = "";
    now.replaceChildren(...then.childNodes);
    for (const each of now.querySelectorAll("details[data-key]")) if (keysOpen.includes(each.dataset.key)) each.open = true;
    now.scrollTop = scrollTop;
    ready(now);
  }
  if (focus && !document.activeElement?.matches?.("a,button,input,select,textarea")) {
    document.querySelector(`main a[href="${CSS.escape(focus)}"]`)?.focus({ preventScroll: true });
  }
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
const end = document.querySelector("[data-end]");
if (end && !location.search && !location.hash) scrollTo(0, document.body.scrollHeight);
