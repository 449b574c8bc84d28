// Saved views: which page of an experiment an address shows, with which query.

/** Pages that can be saved as a view, and what a person calls them. */
const WORDS = { trials: "Trials", curves: "Curves", relations: "Relations" } as const;

export type ViewPage = keyof typeof WORDS;

export function pageWord(page: ViewPage): string {
  return WORDS[page];
}

/** The page that a path shows, if it can be saved. `root`: the path of the experiment. */
export function pageAt(path: string, root: string): ViewPage | null {
  const page = path.slice(root.length + 1);
  return path.startsWith(`${root}/`) && Object.hasOwn(WORDS, page) ? (page as ViewPage) : null;
}

/** A query string in one form, so that equal ones are equal texts; in ASCII. */
export function canonicalQuery(query: string): string {
  return new URLSearchParams(query).toString();
}

/** The address of a view. */
export function viewPath(root: string, view: { page: ViewPage; query: string }): string {
  return `${root}/${view.page}${view.query ? `?${view.query}` : ""}`;
}
