import { QueryClient, QueryObserver } from "@tanstack/react-query";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { concerns, Refresher, refreshQueries, subjectsOf } from "../src/api/live";
import { type Change, ChangeStream, type Connection } from "../src/api/stream";

const change = (values: Partial<Change>): Change => ({
  id: 1,
  kind: "metrics",
  experimentId: null,
  trialId: null,
  ...values,
});

beforeEach(() => {
  vi.useFakeTimers();
});
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

test("a change concerns its experiment, its trial and, where jobs move, the nodes", () => {
  const subjects = subjectsOf([change({ kind: "job.status", experimentId: "A", trialId: "t" })]);
  expect(subjects).toEqual(new Set(["experiment A", "statuses A", "trial t", "nodes"]));
  expect(subjectsOf([change({ experimentId: "A" })])).toEqual(new Set(["experiment A"])); // only metrics
  expect(concerns("experiments", subjects)).toBe(true);
  expect(concerns("experiment B", subjects)).toBe(false);
  expect(concerns("experiment B", subjectsOf([change({ kind: "reset" })]))).toBe(true);
  expect(concerns("table", subjectsOf([change({ kind: "reset" })]))).toBe(false); // the query of its changes decides
});

test("an experiment is not read itself where its changes are, which say what it is", async () => {
  const queries = new QueryClient();
  const read: string[] = [];
  const show = (...queryKey: string[]) => {
    const queryFn = async () => read.push(queryKey.join(" "));
    return new QueryObserver(queries, { queryKey, queryFn, staleTime: Number.POSITIVE_INFINITY }).subscribe(
      () => undefined,
    );
  };
  const refresh = async (subject: string) => {
    read.length = 0;
    await refreshQueries(queries, new Set([subject]));
    return [...read].sort();
  };
  show("experiment A", "itself");
  await vi.advanceTimersByTimeAsync(1);
  expect(await refresh("experiment A")).toEqual(["experiment A itself"]);
  const leave = show("experiment A", "changes");
  show("experiment B", "itself");
  await vi.advanceTimersByTimeAsync(1);
  expect(await refresh("experiment A")).toEqual(["experiment A changes"]);
  expect(await refresh("*")).toEqual(["experiment A changes", "experiment A itself", "experiment B itself"]);
  leave();
  expect(await refresh("experiment A")).toEqual(["experiment A itself"]);
});

test("what changes during a refresh is read once more, after a pause", async () => {
  const asked: string[][] = [];
  let finish: () => void = () => undefined;
  const refresher = new Refresher(
    (subjects) => {
      asked.push([...subjects]);
      return new Promise((resolve) => {
        finish = resolve;
      });
    },
    () => Date.now(),
  );
  refresher.add(["a"]);
  await vi.advanceTimersByTimeAsync(1);
  refresher.add(["b"]);
  refresher.add(["c", "b"]);
  await vi.advanceTimersByTimeAsync(999);
  expect(asked).toEqual([["a"]]);
  finish();
  await vi.advanceTimersByTimeAsync(4900); // five times as long as the reading took
  expect(asked).toEqual([["a"]]);
  await vi.advanceTimersByTimeAsync(200);
  expect(asked).toEqual([["a"], ["b", "c"]]);
  refresher.close();
});

test("after one slow refresh the next one comes soon", async () => {
  let asked = 0;
  const refresher = new Refresher(
    () => {
      asked++;
      return new Promise((resolve) => setTimeout(resolve, 20_000));
    },
    () => Date.now(),
  );
  refresher.add(["a"]);
  await vi.advanceTimersByTimeAsync(1);
  refresher.add(["b"]);
  await vi.advanceTimersByTimeAsync(25_001);
  expect(asked).toBe(2);
  refresher.close();
});

/** Stands for the browser's EventSource; the test plays the manager. */
class FakeSource extends EventTarget {
  static readonly CLOSED = 2;
  static made: FakeSource[] = [];
  readyState = 0;
  onopen: () => void = () => undefined;
  onerror: () => void = () => undefined;
  constructor(readonly url: string) {
    super();
    FakeSource.made.push(this);
  }
  close(): void {
    this.readyState = FakeSource.CLOSED;
  }
  send(kind: string, id: number, data: object): void {
    this.dispatchEvent(new MessageEvent(kind, { data: JSON.stringify(data), lastEventId: String(id) }));
  }
}

/** Channels by name: what one posts, the others of its name receive. */
class FakeChannel {
  static all: FakeChannel[] = [];
  onmessage: (event: { data: unknown }) => void = () => undefined;
  constructor(readonly name: string) {
    FakeChannel.all.push(this);
  }
  postMessage(data: unknown): void {
    for (const other of FakeChannel.all) if (other !== this && other.name === this.name) other.onmessage({ data });
  }
  close(): void {
    FakeChannel.all = FakeChannel.all.filter((other) => other !== this);
  }
}

/** Locks as a browser has them: the next one waits until the holder's promise is settled. */
function fakeLocks() {
  let last: Promise<unknown> = Promise.resolve();
  return {
    request: (_: string, __: object, held: () => Promise<void>) => {
      last = last.then(held);
      return last;
    },
  };
}

class Tab {
  readonly changes: number[] = [];
  connection: Connection | undefined;
  readonly stream = new ChangeStream({
    onChanges: (found) => this.changes.push(...found.map(({ id }) => id)),
    onConnection: (found) => {
      this.connection = found;
    },
  });
}

test("two tabs share one stream, and the second continues where the first has ended", async () => {
  vi.stubGlobal("EventSource", FakeSource);
  vi.stubGlobal("BroadcastChannel", FakeChannel);
  vi.stubGlobal("navigator", { locks: fakeLocks() });
  FakeSource.made = [];
  const first = new Tab();
  await vi.advanceTimersByTimeAsync(0);
  FakeSource.made[0]?.onopen();
  const second = new Tab();
  await vi.advanceTimersByTimeAsync(0);
  expect(FakeSource.made).toHaveLength(1);
  expect(second.connection).toEqual({ state: "live" });

  FakeSource.made[0]?.send("trial.status", 41, { experiment_id: "A", trial_id: "t" });
  await vi.advanceTimersByTimeAsync(300);
  expect([first.changes, second.changes]).toEqual([[41], [41]]);

  first.stream.close();
  await vi.advanceTimersByTimeAsync(0);
  expect(FakeSource.made).toHaveLength(2);
  expect(FakeSource.made[1]?.url).toContain("after=41");
  second.stream.close();
});

test("a stream that the browser has given up is opened again", async () => {
  vi.stubGlobal("EventSource", FakeSource);
  vi.stubGlobal("BroadcastChannel", FakeChannel);
  vi.stubGlobal("navigator", {});
  FakeSource.made = [];
  const tab = new Tab();
  const [source] = FakeSource.made;
  source?.onopen();
  source?.close();
  source?.onerror();
  expect(tab.connection?.state).toBe("lost");
  await vi.advanceTimersByTimeAsync(2500);
  expect(FakeSource.made).toHaveLength(2);
  FakeSource.made[1]?.onopen();
  expect(tab.connection).toEqual({ state: "live" });
  tab.stream.close();
});
