// What the pages read. The first part of a key is the subject whose changes make it stale (see live.ts).

import {
  keepPreviousData,
  queryOptions,
  useInfiniteQuery,
  useQueries,
  useQuery,
  useQueryClient,
} from "@tanstack/react-query";
import { useMemo, useRef } from "react";
import { serverNow } from "../state/clock";
import { apiUrl, SAVED } from "../state/root";
import { inOrderOf, isWhole, onlyRowsOf, withChanges } from "../table/merge";
import { client, read, send } from "./client";
import { decodeTable, MEDIA_TYPE, type Table } from "./columns";
import type { ClientSession, ExperimentStatus, Metric, Trial, TrialStatus } from "./schema";
import { tableOfSnapshot } from "./snapshot";

const MOST_SHOWN = 100;
const EVENTS_OF_A_PAGE = 200;
const FOUND_LINES = 200;

/** Which experiments. */
export interface ExperimentsQuery {
  status?: ExperimentStatus[];
  /** They have all of these. */
  tag?: string[];
  /** Only those that are, or none of them. */
  archived: "true" | "false";
}

/** The experiments, the newest first, page by page. */
export function useExperiments(query: ExperimentsQuery) {
  return useInfiniteQuery({
    queryKey: ["experiments", "list", query],
    queryFn: ({ pageParam, signal }) =>
      read(
        client.GET("/api/v1/experiments", {
          params: { query: { ...query, cursor: pageParam || undefined, limit: MOST_SHOWN } },
          signal,
        }),
      ),
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor,
    placeholderData: keepPreviousData,
  });
}

export function experimentQuery(id: string) {
  return queryOptions({
    queryKey: [`experiment ${id}`, "itself"],
    queryFn: ({ signal }) =>
      read(client.GET("/api/v1/experiments/{experiment_id}", { params: { path: { experiment_id: id } }, signal })),
  });
}

export function useExperiment(id: string) {
  return useQuery(experimentQuery(id));
}

/** Its saved views, by name. */
export function useViews(id: string) {
  return useQuery({
    queryKey: [`statuses ${id}`, "views"],
    queryFn: ({ signal }) =>
      read(
        client.GET("/api/v1/experiments/{experiment_id}/views", { params: { path: { experiment_id: id } }, signal }),
      ),
  });
}

/** The value of each trial that has ended with one, and the best until then. */
export function bestCurveQuery(id: string) {
  return queryOptions({
    queryKey: [`experiment ${id}`, "best curve"],
    queryFn: ({ signal }) =>
      read(
        client.GET("/api/v1/experiments/{experiment_id}/curve", { params: { path: { experiment_id: id } }, signal }),
      ),
  });
}

/** Its newest trials in some statuses. */
export function useTrialsIn(id: string, status: TrialStatus[]) {
  return useQuery({
    queryKey: [`experiment ${id}`, "trials in", ...status],
    queryFn: ({ signal }) =>
      read(
        client.GET("/api/v1/experiments/{experiment_id}/trials", {
          params: { path: { experiment_id: id }, query: { status, sort: "-sequence_id", limit: MOST_SHOWN } },
          signal,
        }),
      ),
  });
}

export function useNodes() {
  return useQuery({
    queryKey: ["nodes", "list"],
    queryFn: ({ signal }) => read(client.GET("/api/v1/nodes", { signal })),
    refetchInterval: 15_000, // load, memory and disk change without an event
  });
}

/** Who held what on a node over the last hours, and how busy it was. */
export function useOccupancy(id: string, hours: number, points: number) {
  return useQuery({
    queryKey: ["nodes", "occupancy", id, hours, points],
    queryFn: ({ signal }) => {
      const since = new Date((serverNow() - hours * 3600) * 1000).toISOString();
      const params = { path: { node_id: id }, query: { since, points } };
      return read(client.GET("/api/v1/nodes/{node_id}/occupancy", { params, signal }));
    },
    placeholderData: keepPreviousData,
    refetchInterval: 30_000,
  });
}

/** What has happened in an experiment, the newest first, page by page. */
export function useEvents(id: string, kind: string[], text: string) {
  return useInfiniteQuery({
    queryKey: [`experiment ${id}`, "events", kind, text],
    queryFn: ({ pageParam, signal }) => {
      const query = { kind, text, cursor: pageParam || undefined, limit: EVENTS_OF_A_PAGE };
      const params = { path: { experiment_id: id }, query };
      return read(client.GET("/api/v1/experiments/{experiment_id}/events", { params, signal }));
    },
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor,
    placeholderData: keepPreviousData,
  });
}

/** Whose output is searched. */
export type Searched = { experiment: string; trial?: undefined } | { trial: string };

/** Lines with a text in the output of an experiment's trials, or of one trial; more with each page. Read once. */
export function useLogSearch(of: Searched, text: string, ignoresCase: boolean) {
  return useInfiniteQuery({
    queryKey: ["log search", of, text, ignoresCase],
    enabled: text !== "",
    queryFn: ({ pageParam, signal }) => {
      const query = { q: text, ignore_case: ignoresCase, cursor: pageParam || undefined, limit: FOUND_LINES };
      if (of.trial !== undefined) {
        const params = { path: { trial_id: of.trial }, query };
        return read(client.GET("/api/v1/trials/{trial_id}/logs/search", { params, signal }));
      }
      const params = { path: { experiment_id: of.experiment }, query };
      return read(client.GET("/api/v1/experiments/{experiment_id}/logs/search", { params, signal }));
    },
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor,
    staleTime: Number.POSITIVE_INFINITY,
  });
}

/** What the reader may do, and which manager answers. */
export function useSession() {
  return useQuery({
    queryKey: ["session"],
    queryFn: ({ signal }) => read(client.GET("/api/v1/session", { signal })),
  });
}

export function useHealth() {
  return useQuery({
    queryKey: ["health"],
    queryFn: ({ signal }) => read(client.GET("/api/v1/health", { signal })),
    refetchInterval: 15_000,
  });
}

export function useTrial(id: string) {
  return useQuery({
    queryKey: [`trial ${id}`, "itself"],
    queryFn: ({ signal }) =>
      read(client.GET("/api/v1/trials/{trial_id}", { params: { path: { trial_id: id } }, signal })),
  });
}

/** Every attempt to run a trial, the first one first. */
export function useJobs(id: string) {
  return useQuery({
    queryKey: [`trial ${id}`, "jobs"],
    queryFn: ({ signal }) =>
      read(client.GET("/api/v1/trials/{trial_id}/jobs", { params: { path: { trial_id: id } }, signal })),
  });
}

const MOST_PAGES = 50;

/** The visible curve of a trial. */
function curveQuery(id: string) {
  return queryOptions({
    queryKey: [`trial ${id}`, "curve"],
    queryFn: async ({ signal }) => {
      const points: Metric[] = [];
      let cursor: string | undefined;
      for (let page = 0; page < MOST_PAGES; page++) {
        const query = { cursor, limit: 1000 };
        const params = { path: { trial_id: id }, query };
        const found = await read(client.GET("/api/v1/trials/{trial_id}/curve", { params, signal }));
        points.push(...found.items);
        if (!found.next_cursor) break;
        cursor = found.next_cursor;
      }
      return points;
    },
  });
}

export function useTrialCurve(id: string) {
  return useQuery(curveQuery(id));
}

/** The visible curves of some trials, in their order; undefined while one is read. */
export function useTrialCurves(ids: readonly string[]): (Metric[] | undefined)[] {
  return useQueries({ queries: ids.map(curveQuery), combine: (found) => found.map(({ data }) => data) });
}

/** What its ranks have reported in its newest job. */
export function useRanks(id: string) {
  return useQuery({
    queryKey: [`trial ${id}`, "ranks"],
    enabled: !SAVED,
    queryFn: ({ signal }) =>
      read(client.GET("/api/v1/trials/{trial_id}/ranks", { params: { path: { trial_id: id } }, signal })),
  });
}

/** Its reports that were lost, and lines of them that cannot be read; the first ones. */
export function useLosses(id: string) {
  return useQuery({
    queryKey: [`trial ${id}`, "losses"],
    enabled: !SAVED,
    queryFn: async ({ signal }) => {
      const found = (["lost", "unreadable"] as const).map(async (kind) => {
        const params = { path: { trial_id: id }, query: { kind, limit: MOST_SHOWN } };
        return (await read(client.GET("/api/v1/trials/{trial_id}/metrics", { params, signal }))).items;
      });
      return (await Promise.all(found)).flat();
    },
  });
}

/** The checkpoints of a trial that were not deleted. */
export function useCheckpoints(id: string) {
  return useQuery({
    queryKey: [`trial ${id}`, "checkpoints"],
    queryFn: ({ signal }) =>
      read(
        client.GET("/api/v1/trials/{trial_id}/checkpoints", {
          params: { path: { trial_id: id }, query: { limit: MOST_SHOWN } },
          signal,
        }),
      ),
  });
}

/** The files of a job; of platforms whose files can be read. */
export function useFiles(id: string, job: number | undefined) {
  return useQuery({
    queryKey: [`trial ${id}`, "files", job],
    enabled: job !== undefined,
    queryFn: ({ signal }) =>
      read(
        client.GET("/api/v1/trials/{trial_id}/files", { params: { path: { trial_id: id }, query: { job } }, signal }),
      ),
  });
}

/** Which trials, and in which order. */
export interface TableQuery {
  filter: string;
  /** Columns, with "-" for the greatest first. */
  sort: string[];
  /** Names, with commas; those that are stored, if not given. */
  columns?: string;
}

export type ExportFormat = ClientSession["export_formats"][number];

const MOST_ROWS = 100_000;
/** Those that are stored, and the one that costs nothing. */
export const ALL_COLUMNS = "*,time";

/**
 * All trials that the filter lets through, by columns. A filter that is wrong is an ApiProblem with its place.
 *
 * All trials are read once, for all filters and orders; of those that a filter lets through only the numbers are. Where there
 * are more trials than can be read at once, the manager filters them and puts them in order. Until the rows of a new filter
 * are known, those of the last one are `data`.
 */
export function useTable(id: string, wanted: TableQuery) {
  const queries = useQueryClient();
  const { filter, columns } = wanted;
  const whole: TableQuery = { filter: "", sort: [], columns };
  const known = queries.getQueryData<Table>(["table", id, whole]);
  const isReadByParts = SAVED !== null || (known !== undefined && !isWhole(known));
  const isFiltered = filter !== "" && !isReadByParts;
  const found = useCurrentTable(id, isReadByParts ? wanted : whole);
  const matching = useCurrentTable(id, { filter, sort: [], columns: "no" }, isFiltered);
  const sort = wanted.sort[0] ?? "no";
  const ordered = useMemo(
    () => found.data && (isReadByParts ? found.data : inOrderOf(found.data, sort)),
    [found.data, sort, isReadByParts],
  );
  const rows = isFiltered ? matching.data : null;
  const data = useMemo(() => ordered && (rows === null ? ordered : rows && onlyRowsOf(ordered, rows)), [ordered, rows]);
  const error = found.error ?? (isFiltered ? matching.error : null);
  const last = useRef<Table | undefined>(undefined);
  if (data) last.current = data;
  return {
    data: data ?? (error ? undefined : last.current),
    error,
    isPlaceholderData: !data || found.isPlaceholderData || (isFiltered && matching.isPlaceholderData),
  };
}

/** A table as it was read, and then with the rows that have changed since. */
function useCurrentTable(id: string, query: TableQuery, isWanted = true) {
  const queries = useQueryClient();
  const queryKey = ["table", id, query];
  const found = useQuery({
    queryKey,
    enabled: isWanted,
    queryFn: async ({ signal }) => {
      if (SAVED) return tableOfSnapshot(query.filter, query.sort[0] ?? "no");
      const answer = await send(tableUrl(id, query), { signal, headers: { Accept: MEDIA_TYPE } });
      return decodeTable(await answer.arrayBuffer());
    },
    placeholderData: keepPreviousData,
    structuralSharing: false,
  });
  useQuery({
    queryKey: [`experiment ${id}`, "changes", query],
    enabled: !SAVED && isWanted && found.data !== undefined && !found.isPlaceholderData,
    gcTime: 0,
    queryFn: async ({ signal }) => {
      const table = queries.getQueryData<Table>(queryKey);
      if (!table) return null;
      const changes = await read(
        client.GET("/api/v1/experiments/{experiment_id}/changes", {
          params: {
            path: { experiment_id: id },
            query: { after: table.revision, columns: query.columns ?? ALL_COLUMNS, filter: query.filter || undefined },
          },
          signal,
        }),
      );
      const itself = experimentQuery(id).queryKey;
      if (changes.experiment) queries.setQueryData(itself, changes.experiment);
      else if (changes.reset) await queries.invalidateQueries({ queryKey: itself });
      if (changes.reset || !isWhole(table)) await queries.invalidateQueries({ queryKey });
      else if (changes.revision !== table.revision) {
        // Where the table was read again meanwhile, it is newer than what these changes follow.
        queries.setQueryData<Table>(queryKey, (now) =>
          now?.revision === table.revision ? withChanges(now, changes, query.sort[0] ?? "no") : now,
        );
      }
      return changes.revision;
    },
  });
  return found;
}

/** The address of the same table as JSON, or as a file. */
export function tableUrl(id: string, query: TableQuery, format?: ExportFormat): string {
  const { filter, sort, columns } = query;
  const url = new URL(
    apiUrl(`experiments/${id}/table`, {
      columns: columns ?? ALL_COLUMNS,
      filter: filter || undefined,
      limit: MOST_ROWS,
      format,
    }),
  );
  for (const column of sort) url.searchParams.append("sort", column);
  return url.href;
}

/** Which value the importance of parameters is about. */
export interface ImportanceQuery {
  /** A key of the final metric; undefined: its number. */
  key?: string;
  direction?: "minimize" | "maximize";
  /** The share of the trials that are the best. */
  quantile?: number;
}

const COMPUTING_MILLISECONDS = 700;
const OUTDATED_MILLISECONDS = 10_000;

/** How much each parameter matters; asked for again until it is of the trials as they are. */
export function useImportance(id: string, query: ImportanceQuery) {
  return useQuery({
    queryKey: [`experiment ${id}`, "importance", query],
    queryFn: ({ signal }) =>
      read(
        client.GET("/api/v1/experiments/{experiment_id}/importance", {
          params: { path: { experiment_id: id }, query },
          signal,
        }),
      ),
    placeholderData: keepPreviousData,
    refetchInterval: ({ state }) =>
      state.data?.state === "COMPUTING"
        ? COMPUTING_MILLISECONDS
        : state.data?.state === "OUTDATED" && OUTDATED_MILLISECONDS,
  });
}

const SCHEDULER_MILLISECONDS = 3000;

/** What its trial scheduler shows: asked for every now and then, for it changes without an event. */
export function useScheduler(id: string, isOver: boolean) {
  return useQuery({
    queryKey: [`experiment ${id}`, "scheduler"],
    enabled: !SAVED,
    queryFn: ({ signal }) =>
      read(
        client.GET("/api/v1/experiments/{experiment_id}/scheduler", {
          params: { path: { experiment_id: id } },
          signal,
        }),
      ),
    refetchInterval: ({ state }) => {
      if (!state.data?.name) return false;
      return isOver ? 10 * SCHEDULER_MILLISECONDS : SCHEDULER_MILLISECONDS;
    },
  });
}

/** By which causes its trials have failed, the most frequent first. */
export function useFailures(id: string, limit: number) {
  return useQuery({
    queryKey: [`statuses ${id}`, "failures", limit],
    queryFn: ({ signal }) =>
      read(
        client.GET("/api/v1/experiments/{experiment_id}/failures", {
          params: { path: { experiment_id: id }, query: { limit } },
          signal,
        }),
      ),
  });
}

const NUMBERS_AT_ONCE = 100; // of one filter

/** The trials of an experiment with these numbers, in their order. */
export async function readTrials(id: string, numbers: readonly number[], signal?: AbortSignal): Promise<Trial[]> {
  const found: Trial[] = [];
  for (let at = 0; at < numbers.length; at += NUMBERS_AT_ONCE) {
    const filter = `no in (${numbers.slice(at, at + NUMBERS_AT_ONCE).join(", ")})`;
    const query = { filter, limit: NUMBERS_AT_ONCE };
    const params = { path: { experiment_id: id }, query };
    found.push(...(await read(client.GET("/api/v1/experiments/{experiment_id}/trials", { params, signal }))).items);
  }
  const places = new Map(numbers.map((number, place) => [number, place]));
  return found.sort((a, b) => (places.get(a.sequence_id) ?? 0) - (places.get(b.sequence_id) ?? 0));
}

export function useTrialsNamed(id: string, numbers: readonly number[]) {
  return useQuery({
    queryKey: [`experiment ${id}`, "trials named", numbers],
    queryFn: ({ signal }) => readTrials(id, numbers, signal),
    placeholderData: keepPreviousData,
  });
}
