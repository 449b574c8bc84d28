// Addresses of a saved file: they follow the "#", because a file has one path.

import { useSyncExternalStore } from "react";
import type { BaseLocationHook, BaseSearchHook } from "wouter";

let last = "/";

/** The address in the page, query included. A "#" without a slash is a place on the same page. */
function currentAddress(): string {
  const hash = window.location.hash.slice(1);
  if (hash.startsWith("/")) last = hash;
  return last;
}

export function hashSearch(): string {
  return currentAddress().split("?")[1] ?? "";
}

function subscribe(listener: () => void): () => void {
  window.addEventListener("hashchange", listener);
  return () => window.removeEventListener("hashchange", listener);
}

function navigate(to: string, options?: { replace?: boolean }): void {
  if (options?.replace) window.location.replace(`#${to}`);
  else window.location.assign(`#${to}`);
}

export const useHashLocation: BaseLocationHook = () => [
  useSyncExternalStore(subscribe, () => currentAddress().split("?")[0] ?? "/"),
  navigate,
];

export const useHashSearch: BaseSearchHook = () => useSyncExternalStore(subscribe, hashSearch);
