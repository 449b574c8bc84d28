// Which trial the reader points at, in a chart or in the table beside it. Only what belongs to that trial is drawn again.

import { useCallback, useSyncExternalStore } from "react";

export class Hover {
  private readonly watchers = new Set<() => void>();
  /** Its number. */
  no: number | null = null;
  /** Where it was pointed at. */
  isFromChart = false;

  point(no: number | null, isFromChart = false): void {
    if (no === this.no) return;
    this.no = no;
    this.isFromChart = isFromChart;
    for (const watcher of this.watchers) watcher();
  }

  readonly watch = (watcher: () => void): (() => void) => {
    this.watchers.add(watcher);
    return () => this.watchers.delete(watcher);
  };
}

/** Whether the reader points at a trial. */
export function useIsPointedAt(hover: Hover, no: number): boolean {
  return useSyncExternalStore(
    hover.watch,
    useCallback(() => hover.no === no, [hover, no]),
  );
}
