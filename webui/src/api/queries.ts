// What the pages read. The first part of a key is the subject whose changes make it stale (see live.ts).

import { keepPreviousData, queryOptions, useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { client, read } from "./client";
import type { ExperimentStatus, TrialStatus } from "./schema";

const MOST_SHOWN = 100;

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

export function useHealth() {
  return useQuery({
    queryKey: ["health"],
    queryFn: ({ signal }) => read(client.GET("/api/v1/health", { signal })),
    refetchInterval: 15_000,
  });
}
