// What is on the screen stays current: changes of the stream make the queries that they concern stale.

import { type QueryClient, useQueryClient } from "@tanstack/react-query";
import { useEffect, useSyncExternalStore } from "react";
import { SAVED } from "../state/root";
import { type Change, ChangeStream, type Connection } from "./stream";

const LEAST_PAUSE_MILLISECONDS = 500;
const LARGEST_SHARE = 1 / 5; // of the time spent on reading again, where the manager is slow
const MOST_PAUSE_MILLISECONDS = 5000; // a manager that has just started may be slow only once
const POLL_MILLISECONDS = 5000; // while there is no stream: a proxy may keep it back until it ends
const OF_NODES = new Set(["node", "job.status", "reset"]);

/** Reads again what has changed, at a bounded rate: the next time not before the last one is over. */
export class Refresher {
  private readonly dirty = new Set<string>();
  private running = false;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private notBefore = 0;

  /** `refresh`: reads everything that is shown and concerns one of the subjects. */
  constructor(
    private readonly refresh: (subjects: ReadonlySet<string>) => Promise<void>,
    private readonly now: () => number = () => performance.now(),
  ) {}

  /** Something has changed. */
  add(subjects: Iterable<string>): void {
    for (const subject of subjects) this.dirty.add(subject);
    if (this.dirty.size && !this.running && this.timer === undefined) {
      this.timer = setTimeout(() => void this.run(), Math.max(0, this.notBefore - this.now()));
    }
  }

  close(): void {
    clearTimeout(this.timer);
    this.dirty.clear();
  }

  private async run(): Promise<void> {
    this.timer = undefined;
    this.running = true;
    const subjects = new Set(this.dirty);
    this.dirty.clear();
    const began = this.now();
    try {
      await this.refresh(subjects);
    } finally {
      const ended = this.now();
      const pause = Math.max(LEAST_PAUSE_MILLISECONDS, (ended - began) / LARGEST_SHARE);
      this.notBefore = ended + Math.min(pause, MOST_PAUSE_MILLISECONDS);
      this.running = false;
      this.add([]);
    }
  }
}

/** What changes concern: "*" is everything; else experiments, what is not only metrics in them, trials and "nodes". */
export function subjectsOf(changes: readonly Change[]): Set<string> {
  const subjects = new Set<string>();
  for (const change of changes) {
    if (change.kind === "reset") subjects.add("*");
    if (change.experimentId) subjects.add(`experiment ${change.experimentId}`);
    if (change.experimentId && change.kind !== "metrics") subjects.add(`statuses ${change.experimentId}`);
    if (change.trialId) subjects.add(`trial ${change.trialId}`);
    if (OF_NODES.has(change.kind)) subjects.add("nodes");
  }
  return subjects;
}

/**
 * Whether a query's data depends on one of the subjects. `about` is a subject, or "experiments" for all of them. A "table"
 * is kept up to date by the query of its changes, which knows whether it has to be read again.
 */
export function concerns(about: unknown, subjects: ReadonlySet<string>): boolean {
  if (typeof about !== "string" || about === "table") return false;
  if (subjects.has("*") || subjects.has(about)) return true;
  return about === "experiments" && [...subjects].some((subject) => subject.startsWith("experiment "));
}

/** Reads again what is shown and concerns one of the subjects. */
export async function refreshQueries(queries: QueryClient, subjects: ReadonlySet<string>): Promise<void> {
  // Whoever asks for the changes of an experiment receives what it is itself now.
  const asksForChanges = ({ queryKey }: { queryKey: readonly unknown[] }) => queryKey[1] === "changes";
  const asking = queries.getQueryCache().findAll({ type: "active", predicate: asksForChanges });
  const followed = new Set(asking.map(({ queryKey }) => queryKey[0]));
  const predicate = ({ queryKey: [about, what] }: { queryKey: readonly unknown[] }) =>
    concerns(about, subjects) && !(what === "itself" && followed.has(about) && !subjects.has("*"));
  await queries.invalidateQueries({ predicate, refetchType: "active" }, { cancelRefetch: false });
}

let connection: Connection = { state: "connecting", since: Date.now() };
const watchers = new Set<() => void>();

/** Whether what is shown is current. */
export function useConnection(): Connection {
  return useSyncExternalStore(
    (watcher) => {
      watchers.add(watcher);
      return () => watchers.delete(watcher);
    },
    () => connection,
  );
}

/** Follows the stream as long as the component is shown. */
export function useLiveQueries(): void {
  const queries = useQueryClient();
  useEffect(() => {
    if (SAVED) return;
    const refresher = new Refresher((subjects) => refreshQueries(queries, subjects));
    const stream = new ChangeStream({
      onChanges: (changes) => refresher.add(subjectsOf(changes)),
      onConnection: (found) => {
        // What was read before the stream was open may have changed since.
        if (found.state === "live" && connection.state !== "live") refresher.add(["*"]);
        connection = found;
        for (const watcher of watchers) watcher();
      },
    });
    const poll = setInterval(() => {
      if (connection.state !== "live") refresher.add(["*"]);
    }, POLL_MILLISECONDS);
    return () => {
      clearInterval(poll);
      refresher.close();
      stream.close();
    };
  }, [queries]);
}
