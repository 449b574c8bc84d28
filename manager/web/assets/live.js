// Keeps the page fresh: the stream of changes says when, the server says what. Only parts that differ are replaced.
(() => {
  const main = document.querySelector("main[data-events]");
  const sign = document.getElementById("live");
  const kinds = ["experiment.status", "experiment.deleted", "trial.status", "job.status", "metrics", "limits", "notice", "node", "reset"];
  let source = null, timer = 0, pause = 1000, last = -1000, busy = false, dirty = false;

  const localTimes = (root) => root.querySelectorAll("time[datetime]").forEach((time) => {
    time.textContent = new Date(time.dateTime).toLocaleString();
  });

  function replace(fresh) {
    const next = document.getElementById(fresh.id);
    if (!next) return;
    localTimes(fresh);
    if (next.innerHTML === fresh.innerHTML) return;
    const focused = next.contains(document.activeElement) ? document.activeElement.id : "";
    const log = next.querySelector("pre.log");
    const atEnd = log && log.scrollTop + log.clientHeight >= log.scrollHeight - 4;
    next.innerHTML = fresh.innerHTML;
    if (atEnd) toEnd(next);
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  }

  const toEnd = (root) => root.querySelectorAll("pre.log").forEach((log) => { log.scrollTop = log.scrollHeight; });

  async function refresh() {
    timer = 0;
    dirty = false;
    busy = true;
    const began = performance.now();
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
      if (!answer.ok) return;
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      page.querySelectorAll("[data-live][id]").forEach(replace);
    } catch { /* the stream says when the manager is back */ } finally {
      last = performance.now();
      pause = Math.max(1000, 5 * (last - began));
      busy = false;
      if (dirty) changed();
    }
  }

  function changed() {
    dirty = true;
    if (!timer && !busy) timer = setTimeout(refresh, Math.max(100, pause - (performance.now() - last)));
  }

  function say(state, text) {
    sign.className = state;
    sign.textContent = text;
  }

  function listen() {
    source = new EventSource(main.dataset.events);
    source.onopen = () => { say("on", "live"); changed(); };
    source.onerror = () => say("off", "reconnecting");
    kinds.forEach((kind) => source.addEventListener(kind, changed));
  }

  localTimes(document);
  toEnd(document);
  if (!main) return;
  listen();
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { source?.close(); source = null; } else if (!source) { listen(); }
  });
})();
