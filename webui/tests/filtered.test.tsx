import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { act, renderHook, waitFor } from "@testing-library/react";
import type { ReactNode } from "react";
import { afterEach, expect, test, vi } from "vitest";
import type { Table } from "../src/api/columns";

const STATUSES = ["FAILED", "SUCCEEDED", "FAILED", "SUCCEEDED"];

/** The manager's binary table of whole numbers and texts. */
function encode(numbers: number[], columns: string): ArrayBuffer {
  const bytes = new Uint8Array(4 * (numbers.length + (numbers.length % 2)) + 8);
  new Int32Array(bytes.buffer, 0, numbers.length).set(numbers);
  const statuses = bytes.length - 8;
  bytes.set(
    numbers.map((number) => (STATUSES[number] === "FAILED" ? 0 : 1)),
    statuses,
  );
  const described = [
    { name: "no", type: "number", encoding: "i32", varies: true, at: 0 },
    { name: "status", type: "text", encoding: "u8", values: ["FAILED", "SUCCEEDED"], varies: true, at: statuses },
  ];
  const counts = { version: 1, rows: numbers.length, matched: numbers.length, total: STATUSES.length, revision: 7 };
  const head = JSON.stringify({ ...counts, columns: columns === "no" ? described.slice(0, 1) : described });
  const padded = new TextEncoder().encode(head.padEnd(Math.ceil(head.length / 8) * 8));
  const length = new Uint8Array(new Uint32Array([padded.length]).buffer);
  return new Uint8Array([...new TextEncoder().encode("PCOL"), ...length, ...padded, ...bytes]).buffer;
}

const asked: string[] = [];

/** What a manager answers whose trials 0 and 2 have failed. */
async function answer(input: RequestInfo | URL): Promise<Response> {
  const url = new URL(input instanceof Request ? input.url : String(input));
  const [filter, columns] = [url.searchParams.get("filter") ?? "", url.searchParams.get("columns") ?? ""];
  const part = url.pathname.split("/").at(-1);
  if (part === "changes") return Response.json({ revision: 7, reset: false, rows: null, filtered_out: [], points: [] });
  asked.push(`${columns} ${filter}`.trim());
  if (filter === "statu") return Response.json({ status: 422, title: "Refused" }, { status: 422 });
  return new Response(encode(filter ? [0, 2] : [0, 1, 2, 3], columns));
}

afterEach(() => {
  vi.unstubAllGlobals();
  asked.length = 0;
});

test("a filter reads the numbers of its trials, and shows those rows of the table that is there", async () => {
  vi.stubGlobal("fetch", answer);
  const { useTable } = await import("../src/api/queries"); // which keeps the `fetch` that it finds
  const queries = new QueryClient({
    defaultOptions: { queries: { retry: false, staleTime: Number.POSITIVE_INFINITY } },
  });
  const wrapper = ({ children }: { children: ReactNode }) => (
    <QueryClientProvider client={queries}>{children}</QueryClientProvider>
  );
  const hook = renderHook(({ filter, sort }) => useTable("A", { filter, sort: [sort] }), {
    initialProps: { filter: "", sort: "no" },
    wrapper,
  });
  const numbers = (table: Table | undefined) =>
    table && Array.from({ length: table.rows }, (_, row) => table.columns[0]?.at(row));
  const shows = async (expected: number[]) => {
    await waitFor(() => expect(hook.result.current.isPlaceholderData).toBe(false));
    expect(numbers(hook.result.current.data)).toEqual(expected);
  };
  await shows([0, 1, 2, 3]);

  act(() => hook.rerender({ filter: "status = FAILED", sort: "-no" }));
  expect([hook.result.current.isPlaceholderData, hook.result.current.data?.rows]).toEqual([true, 4]);
  await shows([2, 0]);
  expect(hook.result.current.data?.columns.map(({ name, varies }) => [name, varies])).toEqual([
    ["no", true],
    ["status", false],
  ]);

  act(() => hook.rerender({ filter: "statu", sort: "-no" }));
  await waitFor(() => expect(hook.result.current.error).toMatchObject({ status: 422 }));
  expect(hook.result.current.data).toBeUndefined();

  act(() => hook.rerender({ filter: "", sort: "-no" }));
  await shows([3, 2, 1, 0]);
  expect(asked).toEqual(["*,time", "no status = FAILED", "no statu"]);
});
