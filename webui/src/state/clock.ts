// The time on the manager, which may differ from this browser's, and a tick for what counts up on the screen.

import { useSyncExternalStore } from "react";

const TOLERANCE_SECONDS = 3; // the Date header has whole seconds, and answers take time
let offset = 0;
let stopped: number | undefined;

/** Learn the manager's time from the Date header of an answer. */
export function observeServerTime(date: string | null): undefined {
  const server = date ? Date.parse(date) / 1000 : Number.NaN;
  if (Number.isNaN(server)) return;
  const found = server - Date.now() / 1000;
  offset = Math.abs(found) > TOLERANCE_SECONDS ? found : 0;
}

/** Stop the clock: a saved file shows what was then. */
export function setServerTime(seconds: number): void {
  stopped = seconds;
  current = Math.floor(seconds);
}

/** Seconds since 1970 on the manager's clock. */
export function serverNow(): number {
  return stopped ?? Date.now() / 1000 + offset;
}

/** The manager's time when this browser's `Date.now()` was `time`. */
export function serverTimeAt(time: number): number {
  return stopped ?? time / 1000 + offset;
}

const listeners = new Set<() => void>();
let timer: ReturnType<typeof setInterval> | undefined;
let current = Math.floor(serverNow());

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  timer ??= setInterval(() => {
    current = Math.floor(serverNow());
    for (const each of listeners) each();
  }, 1000);
  return () => {
    listeners.delete(listener);
    if (listeners.size === 0) {
      clearInterval(timer);
      timer = undefined;
    }
  };
}

/** The manager's time in whole seconds; the component is drawn again each second. */
export function useNow(): number {
  return useSyncExternalStore(subscribe, () => current);
}
