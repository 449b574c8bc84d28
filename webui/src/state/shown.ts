// Which trials a chart of curves shows: the best ones, those that run, and those that were selected.

import type { Table } from "../api/schema";

export const TOP_CHOICES = [0, 5, 10, 20, 50];
export const MOST_RUNNING = 50;
export const MOST_SELECTED = 100;

/** What is known of a trial that is shown. */
export interface ShownTrial {
  no: number;
  id: string;
  status: string;
  value: number | null;
  latest: number | null;
  reports: number;
  jobs: number;
  source: string;
  /** The trial that it was cloned or retried from, or a job of it. */
  origin: string | null;
}

export interface Choice {
  top: number;
  running: boolean;
  selected: readonly number[];
  maximize: boolean;
}

/** The columns of the table that `rowsOf` reads. */
export const COLUMNS = "no,id,status,value,latest,reports,jobs,source,origin";

/** The rows of a table with `COLUMNS`. */
export function rowsOf(table: Pick<Table, "columns" | "rows">): ShownTrial[] {
  const at = new Map(table.columns.map(({ name }, i) => [name, i]));
  return table.rows.map((row) => {
    const cell = <T>(name: string) => row[at.get(name) ?? -1] as T;
    return {
      no: cell<number>("no"),
      id: cell<string>("id"),
      status: cell<string>("status"),
      value: cell<number | null>("value"),
      latest: cell<number | null>("latest"),
      reports: cell<number>("reports"),
      jobs: cell<number>("jobs"),
      source: cell<string>("source"),
      origin: cell<string | null>("origin"),
    };
  });
}

/** Numbers of trials as people write them: "17, 4 20-22". Each once, in that order; what is no number is left out. */
export function parseNumbers(text: string): number[] {
  const found = new Set<number>();
  for (const word of text.split(/[\s,]+/)) {
    const [, first, last] = /^(\d{1,9})(?:-(\d{1,9}))?$/.exec(word) ?? [];
    if (first === undefined) continue;
    const end = Math.min(Number(last ?? first), Number(first) + MOST_SELECTED);
    for (let no = Number(first); no <= end && found.size < MOST_SELECTED; no++) found.add(no);
  }
  return [...found];
}

/** The best trials in their order, then those that run, then those that were selected; each once. */
export function chooseShown(trials: Iterable<ShownTrial>, choice: Choice): ShownTrial[] {
  const byNumber = new Map([...trials].map((each) => [each.no, each]));
  const all = [...byNumber.values()];
  const sign = choice.maximize ? -1 : 1;
  const best = all
    .filter((each) => each.value !== null)
    .sort((a, b) => sign * ((a.value ?? 0) - (b.value ?? 0)) || a.no - b.no)
    .slice(0, choice.top);
  const running = all
    .filter((each) => choice.running && each.status === "RUNNING")
    .sort((a, b) => b.no - a.no)
    .slice(0, MOST_RUNNING);
  const selected = choice.selected.flatMap((no) => byNumber.get(no) ?? []);
  return [...new Set([...best, ...running, ...selected])];
}

/** Whether, after some trials have changed, others may be shown than before. */
export function mayShowOthers(shown: readonly ShownTrial[], changed: readonly ShownTrial[], choice: Choice): boolean {
  const before = new Map(shown.map((each) => [each.no, each]));
  const values = shown.flatMap((each) => (each.value === null ? [] : [choice.maximize ? each.value : -each.value]));
  const worst = values.length < choice.top ? Number.NEGATIVE_INFINITY : values.sort((a, b) => b - a)[choice.top - 1];
  const running = shown.filter((each) => each.status === "RUNNING");
  const oldest = running.length < MOST_RUNNING ? -1 : Math.min(...running.map((each) => each.no));
  return changed.some((each) => {
    const known = before.get(each.no);
    if (known) return known.status !== each.status || known.value !== each.value;
    if (choice.selected.includes(each.no)) return true;
    if (each.status === "RUNNING") return choice.running && each.no > oldest;
    if (each.value === null || choice.top === 0) return false;
    return (choice.maximize ? each.value : -each.value) > (worst ?? Number.NEGATIVE_INFINITY);
  });
}

/** Parameters of trials by their numbers. */
export type Parameters = ReadonlyMap<number, ReadonlyMap<string, unknown>>;

/** The names of the parameters in which some trials differ. */
export function varyingParameters(parameters: Parameters): string[] {
  const all = [...parameters.values()];
  const names = new Set(all.flatMap((each) => [...each.keys()]));
  return [...names].filter((name) => new Set(all.map((each) => JSON.stringify(each.get(name)))).size > 1);
}

/** A style for each trial: the least that no other one has. Those that were shown before keep theirs. */
export function assignStyles(numbers: readonly number[], before: ReadonlyMap<number, number>): Map<number, number> {
  const found = new Map<number, number>();
  const taken = new Set<number>();
  for (const no of numbers) {
    const style = before.get(no);
    if (style === undefined || taken.has(style)) continue;
    found.set(no, style);
    taken.add(style);
  }
  let next = 0;
  for (const no of numbers) {
    if (found.has(no)) continue;
    while (taken.has(next)) next++;
    taken.add(next);
    found.set(no, next);
  }
  return found;
}
