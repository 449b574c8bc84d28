// Where the manager is. The index comes with the way from its own address to the manager's root, so that any prefix works.

/** The data of a saved file (`proctor experiment export --type html`), which asks no manager; null on a manager's page. */
export const SAVED = document.getElementById("snapshot");

const WAY = import.meta.env.DEV ? "/" : (document.documentElement.dataset.root ?? "./");

export const ROOT = SAVED ? new URL("http://saved.invalid/") : new URL(WAY, document.baseURI);

/** The path that every page's address begins with, for the router; without a slash at its end. */
export const BASE = ROOT.pathname.replace(/\/$/, "");

/** An address of the API for a link or a stream; calls go through `client`. */
export function apiUrl(path: string, query: Record<string, string | number | undefined> = {}): string {
  const url = new URL(`api/v1/${path}`, ROOT);
  for (const [name, value] of Object.entries(query)) if (value !== undefined) url.searchParams.set(name, String(value));
  return url.href;
}
