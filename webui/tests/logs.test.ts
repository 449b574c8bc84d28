import { describe, expect, test } from "vitest";
import { overwritten, pieces, plain } from "../src/logs/ansi";
import { readAll } from "../src/logs/download";
import { readable } from "../src/logs/entries";
import { type ReadPart, readBefore, readEnd, readOn } from "../src/logs/tail";
import { findLines } from "../src/logs/viewer";

describe("lines of a terminal", () => {
  test("colors and weights become classes, other sequences are left out", () => {
    const line = "\x1b[1;31merror\x1b[0m in \x1b]8;;file\x07x.py\x1b[K\x1b[92m ok\x1b[39m.";
    expect(pieces(line)).toEqual([
      { text: "error", style: "bold fg1" },
      { text: " in ", style: "" },
      { text: "x.py", style: "" },
      { text: " ok", style: "fg10" },
      { text: ".", style: "" },
    ]);
    expect(plain(line)).toBe("error in x.py ok.");
  });

  test("a color of the palette of 256 does not eat what follows it", () => {
    expect(pieces("\x1b[38;5;4;1ma\x1b[38;2;1;2;3;4mb")).toEqual([
      { text: "a", style: "fg4 bold" },
      { text: "b", style: "fg4 bold underline" },
    ]);
  });

  test("a progress bar shows its last state, and a line may end in a carriage return", () => {
    expect(overwritten("10%\r50%\r100%")).toBe("100%");
    expect(overwritten("windows\r")).toBe("windows");
  });

  test("characters that turn the order of text around are not shown", () => {
    expect(plain("a\u202eb\x00c")).toBe("abc");
  });

  test("lines are found by what is shown of them", () => {
    expect(findLines(["\x1b[31mEr\x1b[0mror", "fine"], "error")).toEqual([0]);
    expect(findLines(["a"], "")).toEqual([]);
  });
});

/** A file that grows, read as the manager does. */
class File {
  bytes: Uint8Array<ArrayBuffer> = new Uint8Array();
  readonly read: ReadPart = async (offset, limit) => {
    const begin = offset < 0 ? Math.max(0, this.bytes.length + offset) : Math.min(offset, this.bytes.length);
    const bytes = this.bytes.slice(begin, begin + limit);
    return { bytes, next: begin + bytes.length };
  };
  write(text: string): void {
    this.bytes = new Uint8Array([...this.bytes, ...new TextEncoder().encode(text)]);
  }
}

describe("the end of a file", () => {
  test("what is written later is added, also in the middle of a line", async () => {
    const file = new File();
    file.write("one\ntw");
    const first = await readEnd(file.read);
    expect(first.lines).toEqual(["one", "tw"]);
    expect(await readOn(file.read, first)).toBe(first);
    file.write("ö\nthree");
    const second = await readOn(file.read, first);
    expect(second.lines).toEqual(["one", "twö", "three"]);
    expect(second.end).toBe(file.bytes.length);
  });

  test("a long file is shown from its first whole line, and the part before joins without a gap", async () => {
    const file = new File();
    const lines = Array.from({ length: 40_000 }, (_, i) => `line ${i}`);
    file.write(lines.join("\n"));
    const end = await readEnd(file.read);
    expect(end.start).toBeGreaterThan(0);
    expect(lines).toContain(end.lines[0]);
    let all = end;
    while (all.start > 0) all = await readBefore(file.read, all);
    expect(all.lines).toEqual(lines);
  });

  test("a file that was replaced by a shorter one is read anew", async () => {
    const file = new File();
    file.write("a long text\n");
    const tail = await readEnd(file.read);
    file.bytes = new TextEncoder().encode("new");
    expect((await readOn(file.read, tail)).lines).toEqual(["new"]);
  });

  test("a download has every byte", async () => {
    const file = new File();
    file.bytes = new Uint8Array(9 * 1024 * 1024).fill(7);
    const progress: number[] = [];
    expect((await readAll(file.read, (bytes) => progress.push(bytes))).size).toBe(file.bytes.length);
    expect(progress).toHaveLength(3);
  });
});

test("a line of the manager's log is read as time, level, message and what it is about", () => {
  const entry = {
    time: "2026-11-24T04:00:00.123Z",
    level: "warning",
    message: "slow",
    trial_id: "t1",
    exception: "a\nb: c",
  };
  expect(plain(readable(JSON.stringify(entry)))).toBe("2026-11-24 04:00:00.123Z warning slow  b: c  trial t1");
  expect(readable('{"time": "20')).toBe('{"time": "20');
});
