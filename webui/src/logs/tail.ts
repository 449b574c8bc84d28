// The end of a text file on the manager, read in pieces by byte offset, and what is written to it later.

import { send } from "../api/client";

const FIRST_BYTES = 256 * 1024;
const NEXT_OFFSET = "X-Next-Offset";

/** A part of a file. `start`, `end`: its place in bytes; `lines`: whole ones, but for the last while it is written. */
export interface Tail {
  start: number;
  end: number;
  lines: string[];
}

/** Reads a part of a file: bytes from `offset` (negative: from the end), `limit` at most. */
export type ReadPart = (
  offset: number,
  limit: number,
  signal?: AbortSignal,
) => Promise<{ bytes: Uint8Array<ArrayBuffer>; next: number }>;

/** Reads parts at an address of the API that answers with text and X-Next-Offset. Raises ApiProblem. */
export function partsOf(address: (offset: number, limit: number) => string): ReadPart {
  return async (offset, limit, signal) => {
    const answer = await send(address(offset, limit), { signal });
    const bytes = new Uint8Array(await answer.arrayBuffer());
    return { bytes, next: Number(answer.headers.get(NEXT_OFFSET) ?? bytes.length) };
  };
}

/** The end of the file. */
export async function readEnd(read: ReadPart, signal?: AbortSignal): Promise<Tail> {
  const { bytes, next } = await read(-FIRST_BYTES, FIRST_BYTES, signal);
  return toTail(bytes, next);
}

/** What is around a byte. */
export async function readAround(read: ReadPart, place: number, signal?: AbortSignal): Promise<Tail> {
  const { bytes, next } = await read(Math.max(0, place - FIRST_BYTES / 2), FIRST_BYTES, signal);
  return toTail(bytes, next);
}

/** Which line of a part a byte of the file is in. */
export function lineAt(tail: Tail, place: number): number | undefined {
  const encoder = new TextEncoder();
  let begin = tail.start;
  for (const [index, line] of tail.lines.entries()) {
    begin += encoder.encode(line).length + 1;
    if (place < begin) return index;
  }
  return undefined;
}

/** What was written after `tail`. The same object where nothing was. */
export async function readOn(read: ReadPart, tail: Tail, signal?: AbortSignal): Promise<Tail> {
  // From the beginning of the last line: it may have been cut in the middle of a character.
  const last = tail.lines.at(-1) ?? "";
  const from = tail.end - new TextEncoder().encode(last).length;
  const { bytes, next } = await read(Math.max(tail.start, from), FIRST_BYTES, signal);
  if (next < tail.end) return readEnd(read, signal); // it was replaced by a shorter one
  if (next === tail.end) return tail;
  return { start: tail.start, end: next, lines: [...tail.lines.slice(0, -1), ...split(bytes)] };
}

/** The piece before `tail`, and it. */
export async function readBefore(read: ReadPart, tail: Tail, signal?: AbortSignal): Promise<Tail> {
  const from = Math.max(0, tail.start - FIRST_BYTES);
  const { bytes } = await read(from, tail.start - from, signal);
  const before = toTail(bytes, tail.start);
  return { start: before.start, end: tail.end, lines: [...before.lines.slice(0, -1), ...tail.lines] };
}

/** Begins at the first whole line, unless the file does. */
function toTail(bytes: Uint8Array, next: number): Tail {
  const start = next - bytes.length;
  const firstLine = start > 0 ? bytes.indexOf(10) + 1 : 0;
  return { start: start + firstLine, end: next, lines: split(bytes.subarray(firstLine)) };
}

function split(bytes: Uint8Array): string[] {
  return new TextDecoder().decode(bytes).split("\n");
}
