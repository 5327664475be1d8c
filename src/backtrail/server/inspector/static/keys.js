// Keys: everything is a link or a button; these only move the focus.
import { theme } from "./app.js";

const items = () => [...document.querySelectorAll("main [data-item]")].filter((each) => each.checkVisibility?.() ?? true);

function move(by) {
  const all = items();
  if (!all.length) return;
  const now = document.activeElement?.closest?.("[data-item]");
  const at = all.indexOf(now ?? document.querySelector("[data-item][aria-current]"));
  const next = all[now || at >= 0 ? Math.min(Math.max(at + by, 0), all.length - 1) : 0];
  next.focus();
  next.scrollIntoView({ block: "nearest" });
}

function act(key) {
  if (key === "j") move(1);
  else if (key === "k") move(-1);
  else if (key === "/") document.getElementById("q").focus();
  else if (key === "?") document.getElementById("keys").showModal();
  else if (key === "t") theme();
  else if (key === "u") location.href = document.querySelector("[data-up]")?.href ?? document.querySelector(".brand").href;
  else if (key === "d") {
    const { activeElement: now } = document;
    const here = document.querySelector(".cp[aria-current]") ?? document.querySelector(".cp.head");
    if (!now?.dataset?.id || !here) return false;
    const url = new URL(here.href);
    url.searchParams.set("against", now.dataset.id);
    location.href = url;
  } else return false;
  return true;
}

export function keys() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.target.matches("input, textarea, select")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (act(event.key)) event.preventDefault();
  });
}
