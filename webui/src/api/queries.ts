// What the pages read. The first part of a key is the subject whose changes make it stale (see live.ts).

import { keepPreviousData, queryOptions, useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { serverNow } from "../state/clock";
import { apiUrl, SAVED } from "../state/root";
import { client, read, send } from "./client";
import { decodeTable, MEDIA_TYPE } from "./columns";
import type { ExperimentStatus, Metric, TrialStatus } from "./schema";
import { tableOfSnapshot } from "./snapshot";

const MOST_SHOWN = 100;
const EVENTS_OF_A_PAGE = 200;
const FOUND_LINES = 200;

/** The experiments, the newest first, page by page. */
export function useExperiments(status: ExperimentStatus[] | undefined) {
  return useInfiniteQuery({
    queryKey: ["experiments", "list", status],
    queryFn: ({ pageParam, signal }) =>
      read(
        client.GET("/api/v1/experiments", {
          params: { query: { status, cursor: pageParam || undefined, limit: MOST_SHOWN } },
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

/** The value of each trial that has ended with one, and the best until then. */
export function useBestCurve(id: string) {
  return useQuery({
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
export function useTrialCurve(id: string) {
  return useQuery({
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
}

const MOST_ROWS = 100_000;

/** All trials that the filter lets through, by columns. A filter that is wrong is an ApiProblem with its place. */
export function useTable(id: string, query: TableQuery) {
  return useQuery({
    queryKey: [`experiment ${id}`, "table", query],
    queryFn: async ({ signal }) => {
      if (SAVED) return tableOfSnapshot(query.filter, query.sort[0] ?? "no");
      const answer = await send(tableUrl(id, query), { signal, headers: { Accept: MEDIA_TYPE } });
      return decodeTable(await answer.arrayBuffer());
    },
    placeholderData: keepPreviousData,
    structuralSharing: false,
  });
}

/** The address of the same table as JSON. */
export function tableUrl(id: string, { filter, sort }: TableQuery): string {
  const url = new URL(
    apiUrl(`experiments/${id}/table`, { columns: "*,time", filter: filter || undefined, limit: MOST_ROWS }),
  );
  for (const column of sort) url.searchParams.append("sort", column);
  return url.href;
}

/** Which value the importance of parameters is about. */
export interface ImportanceQuery {
  /** A key of the final metric; undefined: its number. */
  key?: string;
  direction?: "minimize" | "maximize";
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
