// Changes: a dialog shows the effect, the API makes the change, and a message says how to take it back.
import { part, nodes } from "./app.js";

const KEY = "backtrail-done";
const dialog = document.getElementById("dialog");

async function show(url) {
  const here = new URL(url, location.href);
  here.searchParams.set("part", "1");
  let found;
  try {
    found = nodes(await part(here));
  } catch (error) {
    const text = document.createElement("p");
    text.textContent = error.message;
    const close = document.createElement("button");
    close.textContent = "Close";
    close.dataset.close = "";
    found = [text, close];
  }
  dialog.replaceChildren(...found);
  if (!dialog.open) dialog.showModal();
  (dialog.querySelector("input, textarea") ?? dialog.querySelector("button"))?.focus();
}

// "{new_id}" in a text is the value of the field new_id.
const filled = (text, values, encode = String) => text?.replace(/\{(\w+)\}/g, (all, name, at) => (name in values ? encode(values[name], at) : all));

// In the path of an address, an id of dots has a tilde in front, as in operations/segments.py.
const address = (text, values) => filled(text, values, (value, at) =>
  (/^~*\.\.?$/.test(value) && !text.slice(0, at).includes("?") ? "~" : "") + encodeURIComponent(value));

async function send(form) {
  const change = JSON.parse(form.dataset.change);
  const body = { ...change.body };
  const texts = {};
  const problem = form.querySelector(".problem");
  for (const field of form.elements) {
    if (!field.name || (!field.value && !field.required)) continue;
    texts[field.name] = field.value;
    try {
      body[field.name] = "json" in field.dataset ? JSON.parse(field.value) : "list" in field.dataset ? [field.value] : field.value;
    } catch {
      problem.textContent = "The result must be JSON: a text needs quotes.";
      problem.hidden = false;
      return;
    }
  }
  const headers = { "content-type": "application/json", "x-backtrail": "1" };
  if (change.match) headers["if-match"] = `"${change.match}"`;
  const url = new URL(change.url, location.href);
  const destroys = change.method === "DELETE";
  if (destroys) for (const [name, value] of Object.entries(body)) url.searchParams.set(name, value);
  const button = form.querySelector("button");
  button.disabled = true;
  const response = await fetch(url, { method: change.method, headers, body: destroys ? undefined : JSON.stringify(body) });
  button.disabled = false;
  if (!response.ok) {
    const told = await response.json().catch(() => ({}));
    const moved = response.status === 409 && told.actual ? " The page shows an older state: load it again." : "";
    problem.textContent = `${told.detail || `The server answers ${response.status}.`}${moved}`;
    problem.hidden = false;
    return;
  }
  const done = {
    text: filled(change.done, texts),
    back: change.back,
    url: address(change.back_url, texts),
    button: change.back_button,
  };
  sessionStorage.setItem(KEY, JSON.stringify(done));
  const next = address(change.next, texts);
  if (new URL(next, location.href).href === location.href) location.reload();
  else location.assign(next);
}

function toast() {
  const kept = sessionStorage.getItem(KEY);
  if (!kept) return;
  sessionStorage.removeItem(KEY);
  const done = JSON.parse(kept);
  const box = document.getElementById("toast");
  const text = document.createElement("span");
  text.textContent = `${done.text} ${done.back}`;
  box.append(text);
  if (done.url) {
    const link = document.createElement("a");
    link.href = done.url;
    link.dataset.dialog = "";
    link.textContent = done.button;
    box.append(link);
  }
  const close = document.createElement("button");
  close.setAttribute("aria-label", "Close");
  close.textContent = "×";
  close.addEventListener("click", () => box.replaceChildren());
  box.append(close);
}

async function job(button) {
  const box = document.getElementById("job");
  const say = (text) => { box.textContent = text; };
  button.disabled = true;
  try {
    let state = await (await fetch(button.dataset.job, { method: "POST", headers: { "content-type": "application/json", "x-backtrail": "1" }, body: "{}" })).json();
    while (state.status === "running") {
      const counts = Object.entries(state.progress).map(([what, count]) => `${count.toLocaleString("en")} ${what}`);
      say(`Running: ${counts.join(", ") || "begins"}`);
      await new Promise((after) => setTimeout(after, 300));
      state = await (await fetch(`${button.dataset.jobs}/${encodeURIComponent(state.job_id)}`)).json();
    }
    const { result, problem } = state;
    if (!result) say(problem?.detail ?? state.detail ?? "It failed.");
    else if (result.ok) say(`All good: ${result.threads.toLocaleString("en")} threads, ${result.states_read.toLocaleString("en")} states read.`);
    else say([`Damage: ${result.damaged.length} checkpoints.`, ...result.damaged.slice(0, 20).map((each) => `${each.kind} ${each.thread_id} ${each.checkpoint_id.slice(0, 8)}: ${each.reason}`), ...result.faults.slice(0, 20)].join("\n"));
  } catch (error) {
    say(error.message);
  }
  button.disabled = false;
}

export function changes() {
  document.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey) return;
    const target = event.target.closest?.("[data-dialog], [data-close], [data-job]");
    if (!target) return;
    if ("dialog" in target.dataset) { event.preventDefault(); show(target.href); }
    else if ("job" in target.dataset) job(target);
    else if (dialog.open) dialog.close();
    else history.back();
  });
  document.addEventListener("submit", (event) => {
    if (!event.target.matches("[data-change]")) return;
    event.preventDefault();
    send(event.target);
  });
  toast();
}
