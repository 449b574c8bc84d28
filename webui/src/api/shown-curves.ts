// What the page of curves reads: everything once, and from then on what has changed (docs/decisions/0049).

import { keepPreviousData, useQuery, useQueryClient } from "@tanstack/react-query";
import { flatParameters } from "../state/parameters";
import { apiUrl } from "../state/root";
import {
  type Choice,
  COLUMNS,
  chooseShown,
  MOST_RUNNING,
  mayShowOthers,
  type Parameters,
  rowsOf,
  type ShownTrial,
} from "../state/shown";
import { client, read, send } from "./client";
import { type Curve, decodeCurves, decodeDensity, withNewPoints } from "./curves";
import type { CurveStretch, Job, Table } from "./schema";

export type XKind = "step" | "seconds" | "time";

/** What the curves are of. */
export interface CurvesOf {
  /** A key of what was reported; empty: its number. */
  key: string;
  x: XKind;
}

/** The trials that are shown, with their curves, as of the event `revision`. */
export interface ShownCurves {
  revision: number;
  trials: ShownTrial[];
  curves: ReadonlyMap<number, Curve>;
  /** Trials that run, also those that are not shown. */
  running: number;
}

/** The chosen trials of an experiment and their curves. */
export function useShownCurves(id: string, choice: Choice, of: CurvesOf) {
  const queries = useQueryClient();
  const queryKey = [`experiment ${id}`, "curves", choice, of];
  return useQuery({
    queryKey,
    queryFn: ({ signal }) => {
      const before = queries.getQueryData<ShownCurves>(queryKey);
      const source = new Source(id, choice, of, signal);
      return before ? source.follow(before) : source.readAll();
    },
    placeholderData: keepPreviousData,
    structuralSharing: false,
  });
}

class Source {
  constructor(
    private readonly id: string,
    private readonly choice: Choice,
    private readonly of: CurvesOf,
    private readonly signal: AbortSignal,
  ) {}

  async readAll(): Promise<ShownCurves> {
    const found = await this.readTrials();
    return { ...found, curves: await this.readCurves(found.trials.map(({ no }) => no)) };
  }

  /** The same after what has changed since then. */
  async follow(before: ShownCurves): Promise<ShownCurves> {
    const query = { after: before.revision, columns: COLUMNS };
    const params = { path: { experiment_id: this.id }, query };
    const changes = await read(
      client.GET("/api/v1/experiments/{experiment_id}/changes", { params, signal: this.signal }),
    );
    if (changes.reset) return this.readAll();
    const changed = changes.rows ? rowsOf(changes.rows) : [];
    if (!changed.length) return { ...before, revision: changes.revision };
    let { running } = before;
    let trials = withChanges(before.trials, changed);
    if (mayShowOthers(before.trials, changed, this.choice)) ({ trials, running } = await this.readTrials());
    const shown = new Set(trials.map(({ no }) => no));
    const [curves, again] = this.apply(before.curves, changes.points, shown);
    for (const no of shown) if (!curves.has(no)) again.add(no);
    for (const [no, curve] of await this.readCurves([...again])) curves.set(no, curve);
    return { revision: changes.revision, trials, running, curves };
  }

  /** The curves with new points, and the numbers of those that are to be read again: changes only have numbers over steps. */
  private apply(
    before: ShownCurves["curves"],
    points: CurveStretch[],
    shown: ReadonlySet<number>,
  ): [Map<number, Curve>, Set<number>] {
    const curves = new Map([...before].filter(([no]) => shown.has(no)));
    const again = new Set<number>();
    for (const stretch of points) {
      const curve = curves.get(stretch.no);
      if (!curve) continue;
      const longer = this.of.key || this.of.x !== "step" ? null : withNewPoints(curve, stretch);
      if (longer) curves.set(stretch.no, longer);
      else again.add(stretch.no);
    }
    return [curves, again];
  }

  private async readTrials(): Promise<Omit<ShownCurves, "curves">> {
    const { top, running, selected, maximize } = this.choice;
    const also = selected.length ? `status = RUNNING or no in (${selected.join(",")})` : "status = RUNNING";
    const [best, others] = await Promise.all([
      this.readTable("value is not null", maximize ? "-value" : "value", top),
      this.readTable(also, "-no", MOST_RUNNING + selected.length),
    ]);
    const rows = rowsOf(others);
    const trials = chooseShown([...rowsOf(best), ...rows], this.choice);
    const selectedAtRest = rows.filter((each) => each.status !== "RUNNING").length;
    return {
      revision: Math.min(best.revision, others.revision),
      trials,
      running: running ? others.matched - selectedAtRest : 0,
    };
  }

  private readTable(filter: string, sort: string, limit: number): Promise<Table> {
    const query = { columns: COLUMNS, filter, sort: [sort], limit: Math.max(1, limit) };
    const params = { path: { experiment_id: this.id }, query };
    const answer = client.GET("/api/v1/experiments/{experiment_id}/table", { params, signal: this.signal });
    return read(answer) as Promise<Table>; // as JSON, which the document does not tell from the binary format
  }

  private async readCurves(numbers: number[]): Promise<Map<number, Curve>> {
    if (!numbers.length) return new Map();
    const query = { ids: numbers.join(","), key: this.of.key || undefined, x: this.of.x };
    const answer = await send(apiUrl(`experiments/${this.id}/curves`, query), { signal: this.signal });
    return decodeCurves(await answer.arrayBuffer());
  }
}

/** Some trials as they are now. */
function withChanges(trials: ShownTrial[], changed: ShownTrial[]): ShownTrial[] {
  const byNumber = new Map(changed.map((each) => [each.no, each]));
  return trials.map((each) => byNumber.get(each.no) ?? each);
}

/** The parameters of trials. They do not change, and the chart does not wait for them. */
export function useParameters(id: string, trials: readonly ShownTrial[]): Parameters {
  const numbers = trials.map(({ no }) => no).sort((a, b) => a - b);
  const found = useQuery({
    queryKey: ["parameters", id, numbers],
    enabled: numbers.length > 0,
    queryFn: async ({ signal }) => {
      const query = { filter: `no in (${numbers.join(",")})`, limit: numbers.length };
      const params = { path: { experiment_id: id }, query };
      const { items } = await read(client.GET("/api/v1/experiments/{experiment_id}/trials", { params, signal }));
      return new Map(items.map((each) => [each.sequence_id, new Map(flatParameters(each.parameters))]));
    },
    placeholderData: keepPreviousData,
    structuralSharing: false,
  });
  return found.data ?? NO_PARAMETERS;
}

const NO_PARAMETERS: Parameters = new Map();

const DENSITY = { width: 1000, height: 400 };
const PAUSE_MILLISECONDS = 15_000;

/** Where the curves of all trials pass. It is read again now and then while trials run, not with each of their reports. */
export function useDensity(id: string, of: CurvesOf, axes: { logX: boolean; logY: boolean }, use: DensityUse) {
  return useQuery({
    queryKey: ["density", id, of, axes],
    enabled: use.isShown,
    queryFn: async ({ signal }) => {
      const query = { key: of.key || undefined, x: of.x, log_x: `${axes.logX}`, log_y: `${axes.logY}`, ...DENSITY };
      const answer = await send(apiUrl(`experiments/${id}/curves/density`, query), { signal });
      return decodeDensity(await answer.arrayBuffer());
    },
    refetchInterval: (query) => (use.isOver && query.state.data?.isCurrent ? false : PAUSE_MILLISECONDS),
    refetchOnMount: use.isOver ? true : "always",
    // No placeholder: the density of another metric, or of other axes, is not what lies behind these curves.
    structuralSharing: false,
  });
}

export interface DensityUse {
  isShown: boolean;
  /** Whether nothing is reported any more. */
  isOver: boolean;
}

/** The keys under which trials of an experiment have reported numbers, besides the one that counts. */
export function useMetricKeys(id: string, isOver: boolean): string[] {
  const found = useQuery({
    queryKey: ["keys of curves", id],
    queryFn: ({ signal }) => {
      const params = { path: { experiment_id: id } };
      return read(client.GET("/api/v1/experiments/{experiment_id}/curves/keys", { params, signal }));
    },
    refetchInterval: isOver ? false : PAUSE_MILLISECONDS,
  });
  return found.data?.items ?? NO_KEYS;
}

const NO_KEYS: string[] = [];

const MOST_WITH_ATTEMPTS = 30;

/** The attempts of those of the trials that were started more than once, by their numbers. */
export function useAttempts(trials: readonly ShownTrial[]): ReadonlyMap<number, Job[]> {
  const several = trials.filter((each) => each.jobs > 1 || each.source === "clone").slice(0, MOST_WITH_ATTEMPTS);
  const found = useQuery({
    queryKey: ["attempts", several.map(({ id, jobs }) => `${id}.${jobs}`)],
    enabled: several.length > 0,
    queryFn: async ({ signal }) => {
      const jobs = several.map(async ({ no, id }): Promise<[number, Job[]]> => {
        const params = { path: { trial_id: id } };
        return [no, (await read(client.GET("/api/v1/trials/{trial_id}/jobs", { params, signal }))).items];
      });
      return new Map(await Promise.all(jobs));
    },
    placeholderData: keepPreviousData,
    structuralSharing: false,
  });
  return found.data ?? NO_ATTEMPTS;
}

const NO_ATTEMPTS: ReadonlyMap<number, Job[]> = new Map();
