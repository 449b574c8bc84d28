// The page as a file that someone has saved: everything that it shows is in the file, and nothing is asked of a manager.
//
// `proctor experiment export --type html` writes what the calls below answer, compressed, into the element `snapshot`.

import { setServerTime } from "../state/clock";
import { SAVED } from "../state/root";
import type { Column, Table } from "./columns";
import type { Cause, components, Experiment, Failures, Trial } from "./schema";

interface Snapshot {
  version: number;
  /** RFC 3339. */
  saved_at: string;
  experiment: Experiment;
  best_curve: unknown[];
  trials: Trial[];
  table: components["schemas"]["Table"];
  /** By the number of the trial: its visible curve as steps and values; null is no finite number. */
  curves: Record<string, [steps: number[], values: (number | null)[]]>;
  /** Whether points of long curves were left out. */
  is_thinned: boolean;
}

const VERSION = 1;
let opened: Snapshot | undefined;
let trials = new Map<string, Trial>();

/** What the file holds; only where `SAVED`. */
export function snapshot(): Snapshot {
  if (!opened) throw new Error("the data of this file were not read");
  return opened;
}

/** Reads the data in the file, before anything is shown. */
export async function openSnapshot(): Promise<void> {
  const packed = Uint8Array.from(atob(SAVED?.textContent?.trim() ?? ""), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const found = (await new Response(stream).json()) as Snapshot;
  if (found.version !== VERSION) throw new Error(`this file has version ${found.version} of the data, not ${VERSION}`);
  opened = found;
  trials = new Map(found.trials.map((trial) => [trial.id, trial]));
  setServerTime(Date.parse(found.saved_at) / 1000);
}

/** What the manager would answer. A call for what is not in the file fails with 404. */
export async function answerFromSnapshot(request: Request): Promise<Response> {
  const url = new URL(request.url);
  const path = url.pathname
    .replace(/^\/api\/v1\//, "")
    .split("/")
    .map(decodeURIComponent);
  const found = request.method === "GET" ? lookUp(path, url.searchParams) : undefined;
  if (found !== undefined) return Response.json(found);
  return Response.json({ status: 404, title: "Not found", detail: "This is not in the saved file." }, { status: 404 });
}

function lookUp(path: string[], query: URLSearchParams): unknown {
  const { experiment, best_curve } = snapshot();
  const [collection, id, part] = path;
  if (path.length === 1) {
    if (collection === "session")
      return { access: "read-only", version: "", url_prefix: "", limits: {}, export_formats: [] };
    if (collection === "health") return { status: "ok", reason: "" };
    if (collection === "nodes") return listOf([]);
    return undefined;
  }
  if (collection === "experiments" && id === experiment.id) {
    if (part === undefined) return experiment;
    if (part === "curve") return listOf(best_curve);
    if (part === "trials") return listOf(newestIn(query));
    if (part === "failures") return failuresOf(snapshot().trials, Number(query.get("limit") ?? 100));
  }
  const trial = collection === "trials" && id !== undefined ? trials.get(id) : undefined;
  if (trial === undefined) return undefined;
  if (part === undefined) return trial;
  if (part === "curve") return listOf(pointsOf(trial));
  if (part === "jobs" || part === "checkpoints") return listOf([]);
  return undefined;
}

function listOf(items: unknown[]) {
  return { items, next_cursor: null };
}

function newestIn(query: URLSearchParams): Trial[] {
  const statuses = query.getAll("status");
  const numbers = /^no in \(([\d, ]+)\)$/
    .exec(query.get("filter") ?? "")?.[1]
    ?.split(", ")
    .map(Number);
  const found = snapshot().trials.filter(
    (trial) =>
      (!statuses.length || statuses.includes(trial.status)) && (!numbers || numbers.includes(trial.sequence_id)),
  );
  return found.slice(-Number(query.get("limit") ?? found.length)).reverse();
}

function pointsOf(trial: Trial) {
  const [steps, values] = snapshot().curves[trial.sequence_id] ?? [[], []];
  return steps.map((step, place) => ({ step, value: values[place] ?? null }));
}

function groupBy<T, K>(items: readonly T[], key: (item: T) => K): Map<K, T[]> {
  const found = new Map<K, T[]>();
  for (const item of items) found.set(key(item), [...(found.get(key(item)) ?? []), item]);
  return found;
}

/** As the manager counts them, but for causes that differ only in numbers and paths. */
function failuresOf(all: Trial[], limit: number): Failures {
  const failed = all.filter((trial) => trial.status === "FAILED" || trial.status === "SYS_CANCELED").reverse();
  const byDetail = groupBy(failed, (trial) => (trial.reason ?? "").split("\n", 1)[0] ?? "");
  const causes = [...byDetail].flatMap(([detail, found]): Cause[] => {
    const [newest] = found;
    if (!newest) return [];
    const byNode = groupBy(found, (trial) => trial.node_id ?? null);
    const nodes = [...byNode].map(([node_id, there]) => ({ node_id, trials: there.length }));
    const example = { trial_id: newest.id, sequence_id: newest.sequence_id, reason: newest.reason ?? "" };
    nodes.sort((a, b) => b.trials - a.trials);
    return [{ end_reason: null, detail, trials: found.length, nodes, example }];
  });
  causes.sort((a, b) => b.trials - a.trials);
  return {
    failed: failed.length,
    counted: failed.length,
    cause_count: causes.length,
    causes: causes.slice(0, limit),
  };
}

/** The table in the order of one column; `filter` is empty, or begins with one status or several. */
export function tableOfSnapshot(filter: string, sort: string): Table {
  const { columns, rows, total, revision } = snapshot().table;
  const status = /^status = (\w+)/.exec(filter)?.[1];
  const ofStatus = columns.findIndex((column) => column.name === "status");
  const shown = status ? rows.filter((row) => row[ofStatus] === status) : [...rows];
  const [name, factor] = sort.startsWith("-") ? [sort.slice(1), -1] : [sort, 1];
  const place = columns.findIndex((column) => column.name === name);
  if (place >= 0) shown.sort((a, b) => compare(a[place], b[place], factor));
  return {
    rows: shown.length,
    total,
    matched: shown.length,
    revision,
    columns: columns.map((column, at) => ({
      name: column.name,
      type: column.type as Column["type"],
      varies: column.varies,
      at: (row) => cellOf(shown[row]?.[at], column.type),
    })),
  };
}

/** Numbers before texts, nothing at the end in both directions. */
function compare(a: unknown, b: unknown, factor: number): number {
  const missing = Number(a == null) - Number(b == null);
  if (missing || a == null) return missing;
  if (typeof a === "number" && typeof b === "number") return factor * (a - b);
  if (typeof a !== typeof b) return factor * (typeof a === "number" ? -1 : typeof b === "number" ? 1 : 0);
  const [left, right] = [String(a), String(b)];
  return factor * (left < right ? -1 : left > right ? 1 : 0);
}

function cellOf(value: unknown, type: string): number | string | null {
  if (value === null || value === undefined) return null;
  if (type === "time") return Date.parse(String(value)) / 1000;
  return typeof value === "number" || typeof value === "string" ? value : JSON.stringify(value);
}
