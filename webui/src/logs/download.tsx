// A whole file of the manager, which gives out at most 4 MiB at once.

import { useState } from "react";
import type { ReadPart } from "./tail";

const PIECE_BYTES = 4 * 1024 * 1024;

/** Every byte of a file. */
export async function readAll(read: ReadPart, onProgress: (bytes: number) => void): Promise<Blob> {
  const parts: Uint8Array<ArrayBuffer>[] = [];
  let offset = 0;
  for (;;) {
    const { bytes, next } = await read(offset, PIECE_BYTES);
    if (bytes.length === 0) return new Blob(parts);
    parts.push(bytes);
    offset = next;
    onProgress(offset);
  }
}

/** Save what the page has as a file. */
export function saveFile(name: string, content: Blob): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}

/** A button that saves a file; `name`: of the saved one. */
export function Download({ read, name, children }: { read: ReadPart; name: string; children: string }) {
  const [state, setState] = useState("");
  const save = async () => {
    try {
      const blob = await readAll(read, (bytes) => setState(` ${Math.round(bytes / 1024 / 1024)} MiB`));
      saveFile(name, blob);
      setState("");
    } catch (error) {
      setState(`: ${(error as Error).message}`);
    }
  };
  return (
    <button type="button" className="link" onClick={() => void save()}>
      {children}
      {state}
    </button>
  );
}
