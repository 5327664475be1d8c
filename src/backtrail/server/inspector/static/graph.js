// The graph of a thread: windows of 100 rows. The next is loaded when its place comes near; far ones are emptied.
import { nodes, part, ready } from "./app.js";

const FAR = 20000; // pixels

export function graph() {
  const box = document.querySelector("[data-graph]");
  if (!box) return;
  const near = new IntersectionObserver((seen) => {
    for (const { target, isIntersecting } of seen) if (isIntersecting) below(target);
  }, { root: box, rootMargin: "1500px" });
  const far = new IntersectionObserver((seen) => {
    for (const { target, isIntersecting } of seen) isIntersecting ? back(target) : empty(target);
  }, { root: box, rootMargin: `${FAR}px` });

  // A few words for each row, once its window has been in view for a moment.
  const seen = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      clearTimeout(target.timer);
      if (isIntersecting) target.timer = setTimeout(() => words(target), 120);
    }
  }, { root: box });

  const known = new Map(); // what a checkpoint is about never changes

  async function words(rows) {
    if (!rows.dataset.words) return;
    const all = [...rows.querySelectorAll(".cp")];
    const url = new URL(rows.dataset.words, location.href);
    const count = all.findLastIndex((each) => !known.has(each.dataset.id)) + 1;
    delete rows.dataset.words;
    if (count) {
      url.searchParams.set("count", count);
      for (const each of (await part(url)).querySelectorAll("[data-of]")) known.set(each.dataset.of, each.textContent);
    }
    for (const each of all) each.querySelector(".words").textContent = known.get(each.dataset.id) ?? "";
  }

  async function below(edge) {
    near.unobserve(edge);
    const url = edge.href;
    const found = nodes(await part(url));
    if (!edge.isConnected) return;
    edge.replaceWith(...found);
    for (const each of found) if (each.matches?.(".window")) { each.dataset.url = url; far.observe(each); }
    watch();
  }

  function empty(rows) {
    if (!rows.firstChild || rows.contains(document.activeElement)) return;
    rows.style.height = `${rows.offsetHeight}px`;
    rows.replaceChildren();
  }

  async function back(rows) {
    if (rows.firstChild) return;
    const found = await part(rows.dataset.url);
    rows.replaceChildren(...found.querySelector(".window").childNodes);
    rows.style.height = "";
    rows.dataset.words = found.querySelector(".window").dataset.words;
    seen.unobserve(rows);
    seen.observe(rows);
    mark();
  }

  async function above(edge) {
    const first = edge.nextElementSibling;
    const top = first.getBoundingClientRect().top;
    edge.replaceWith(...nodes(await part(edge.href)));
    box.scrollTop += first.getBoundingClientRect().top - top;
  }

  async function around(edge) {
    edge.replaceWith(...nodes(await part(edge.href)));
    centre("center");
  }

  const centre = (block) => box.querySelector(".cp[aria-current]")?.scrollIntoView({ block });

  function watch() {
    const edge = box.querySelector("[data-below]");
    if (edge) near.observe(edge);
    for (const each of box.querySelectorAll(".window")) seen.observe(each);
  }

  function mark() {
    const now = document.querySelector("#detail [data-checkpoint]")?.dataset.checkpoint;
    for (const each of box.querySelectorAll(".cp")) {
      if (each.dataset.id === now) each.setAttribute("aria-current", "true"); else each.removeAttribute("aria-current");
    }
  }

  // Another checkpoint: only its details are loaded, the graph stays.
  async function show(url) {
    const only = new URL(url);
    only.searchParams.set("part", "detail");
    const detail = document.getElementById("detail");
    detail.replaceChildren(...nodes(await part(only)));
    detail.scrollTop = 0;
    ready(detail);
    mark();
  }

  box.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    const edge = event.target.closest(".edge");
    const row = event.target.closest(".cp");
    if (!edge && !row) return;
    event.preventDefault();
    if (row) {
      history.pushState(null, "", row.href);
      show(row.href);
    } else if (edge.matches("[data-above]")) above(edge);
    else if (edge.matches("[data-below]")) below(edge);
  });
  addEventListener("popstate", () => show(location.href));
  new MutationObserver(watch).observe(box, { childList: true });
  watch();
  mark();
  const missing = box.querySelector("[data-around]");
  if (missing) around(missing);
  else centre(new URL(location.href).searchParams.has("ref") ? "center" : "nearest");
}
