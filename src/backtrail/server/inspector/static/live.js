// Live: the page follows its thread. Events come from the server; without them the page is asked for again and again.
import { refresh } from "./app.js";

const POLL = 4000; // milliseconds

export function follow() {
  const { live, root, poll } = document.body.dataset;
  if (live === undefined) return;
  const sign = document.getElementById("live");
  let source = null;
  let timer = 0;
  let waiting = 0;

  const news = () => {
    if (waiting) return;
    waiting = setTimeout(async () => {
      waiting = 0;
      if (document.querySelector("dialog[open]")) return news();
      try { await refresh(); } catch { /* the server is away: EventSource tries again */ }
    }, 300);
  };

  const state = (on) => {
    sign.hidden = false;
    sign.classList.toggle("off", !on);
    sign.title = on ? "The page follows its thread." : "The server does not answer.";
  };

  const ask = (again) => {
    clearInterval(timer);
    timer = again ? setInterval(news, POLL) : 0;
  };

  function start() {
    const query = live ? `?${new URLSearchParams(JSON.parse(live))}` : "";
    source = new EventSource(`${root}/events${query}`);
    source.addEventListener("open", () => {
      state(true);
      ask(poll !== undefined); // a run changes also between its checkpoints
    });
    source.addEventListener("checkpoint", news);
    source.addEventListener("reset", news);
    source.addEventListener("error", () => {
      state(false);
      if (!timer) ask(true);
    });
  }

  function stop() {
    source?.close();
    source = null;
    ask(false);
  }

  // A browser has few connections for each server: a hidden page gives its own back.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) stop();
    else if (!source) { start(); news(); }
  });
  if (!document.hidden) start();
}
