// A log on the page: its end first, following what is written, with search and the colors of a terminal.

import { useVirtualizer } from "@tanstack/react-virtual";
import { type ReactNode, useCallback, useEffect, useMemo, useRef, useState } from "react";
import { Link } from "wouter";
import { Empty, Waiting } from "../components/parts";
import { useRestOfScreen } from "../components/screen";
import { countOf } from "../format";
import { pieces, plain } from "./ansi";
import { Download } from "./download";
import { lineAt, type ReadPart, readAround, readBefore, readEnd, readOn, type Tail } from "./tail";

const LINE_PIXELS = 18;
const POLL_MILLISECONDS = 1000;
const SHOWN_LINES = 24;

interface LogViewerProps {
  /** Has to be the same function for the same file. */
  read: ReadPart;
  /** Makes a line for people of one of the file; the same function each time. */
  format?: (line: string) => string;
  /** Whether something may still be written. */
  isOpen: boolean;
  label: string;
  /** Whether it takes the rest of the screen. */
  fills?: boolean;
  /** The name of the downloaded file. */
  download: string;
  /** The byte of a line to begin with, instead of the end. */
  at?: number;
  /** Show the end again. */
  onLeaveAt?: () => void;
  /** The address of a search by the manager, in all that was written. */
  searchAll?: (wanted: string) => string;
  /** Other controls, at the left of the search. */
  children?: ReactNode;
}

export function LogViewer(props: LogViewerProps) {
  const { read, format, fills = false, isOpen, label, download, at: place, onLeaveAt, searchAll, children } = props;
  const { tail, error, readEarlier } = useTail(read, isOpen && place === undefined, place);
  const [wanted, setWanted] = useState("");
  const [at, setAt] = useState(0);
  const [follows, setFollows] = useState(true);
  const lines = useMemo(() => {
    const found = withoutLastEmpty(tail?.lines ?? []);
    return format ? found.map(format) : found;
  }, [tail, format]);
  const matches = useMemo(() => findLines(lines, wanted), [lines, wanted]);
  const chosen = useMemo(() => (tail && place !== undefined ? lineAt(tail, place) : undefined), [tail, place]);
  const shown = matches.length ? matches[Math.min(at, matches.length - 1)] : wanted ? undefined : chosen;
  const move = (by: number) => {
    setFollows(false);
    setAt((before) => (matches.length ? (before + by + matches.length) % matches.length : 0));
  };
  return (
    <div className="log">
      <div className="bar">
        {children}
        <input
          type="search"
          aria-label={`Search in ${label}`}
          placeholder="Search in what is loaded"
          value={wanted}
          onChange={(event) => {
            setWanted(event.target.value);
            setAt(0);
            setFollows(event.target.value === "");
          }}
          onKeyDown={(event) => event.key === "Enter" && move(event.shiftKey ? -1 : 1)}
        />
        {wanted && (
          <span className="soft" role="status">
            {matches.length
              ? `${Math.min(at, matches.length - 1) + 1} of ${countOf(matches.length, "line")}`
              : "not found"}
          </span>
        )}
        {wanted && searchAll && <Link href={searchAll(wanted)}>Search all output</Link>}
        <span className="spring" />
        {place !== undefined && (
          <button type="button" onClick={onLeaveAt}>
            To the end
          </button>
        )}
        <label>
          <input type="checkbox" checked={follows} onChange={(event) => setFollows(event.target.checked)} /> follow
        </label>
        <Download read={read} name={download}>
          Download
        </Download>
      </div>
      {!tail ? (
        <Waiting error={error} what={label} />
      ) : lines.length === 0 ? (
        <Empty>{isOpen ? "Nothing was written yet." : "Nothing was written."}</Empty>
      ) : (
        <Lines
          lines={lines}
          label={label}
          wanted={wanted}
          shown={shown}
          fills={fills}
          follows={follows}
          onScrolledAway={(isAway) => setFollows(!isAway)}
          before={
            tail.start > 0 && (
              <button type="button" onClick={readEarlier}>
                Earlier lines ({Math.ceil(tail.start / 1024).toLocaleString("en-US")} KiB)
              </button>
            )
          }
        />
      )}
    </div>
  );
}

function useTail(read: ReadPart, isOpen: boolean, place: number | undefined) {
  const [tail, setTail] = useState<Tail | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const newest = useRef<Tail | null>(null);
  const take = useCallback((found: Tail) => {
    newest.current = found;
    setTail(found);
    setError(null);
  }, []);
  useEffect(() => {
    const aborted = new AbortController();
    const { signal } = aborted;
    newest.current = null;
    setTail(null);
    setError(null);
    let timer: ReturnType<typeof setTimeout> | undefined;
    const look = async () => {
      try {
        if (!document.hidden || !newest.current) {
          const first = () => (place === undefined ? readEnd(read, signal) : readAround(read, place, signal));
          take(newest.current ? await readOn(read, newest.current, signal) : await first());
        }
      } catch (found) {
        if (signal.aborted) return;
        setError(found as Error);
      }
      if (!signal.aborted && isOpen) timer = setTimeout(look, POLL_MILLISECONDS);
    };
    void look();
    return () => {
      aborted.abort();
      clearTimeout(timer);
    };
  }, [read, isOpen, place, take]);
  const readEarlier = useCallback(() => {
    if (newest.current) readBefore(read, newest.current).then(take, setError);
  }, [read, take]);
  return { tail, error, readEarlier };
}

interface LinesProps {
  lines: string[];
  label: string;
  wanted: string;
  shown: number | undefined;
  fills: boolean;
  follows: boolean;
  onScrolledAway: (isAway: boolean) => void;
  before: ReactNode;
}

function Lines({ lines, label, wanted, shown, fills, follows, onScrolledAway, before }: LinesProps) {
  const place = useRef<HTMLElement>(null);
  const virtual = useVirtualizer({
    count: lines.length,
    getScrollElement: () => place.current,
    estimateSize: () => LINE_PIXELS,
    overscan: 20,
  });
  useEffect(() => {
    if (shown !== undefined) virtual.scrollToIndex(shown, { align: "center" });
  }, [shown, virtual]);
  useEffect(() => {
    if (follows && shown === undefined) virtual.scrollToIndex(lines.length - 1, { align: "end" });
  }, [follows, shown, lines.length, virtual]);
  const [measured, rest] = useRestOfScreen();
  const most = fills ? rest : SHOWN_LINES * LINE_PIXELS;
  const height = Math.min(most, (lines.length + 1) * LINE_PIXELS) + 12;
  return (
    <>
      {before}
      <section
        ref={(element) => {
          place.current = element;
          measured(element);
        }}
        className="log-lines"
        aria-label={label}
        // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by the keyboard
        tabIndex={0}
        style={{ height }}
        onWheel={(event) => event.deltaY < 0 && onScrolledAway(true)}
        onScroll={(event) => {
          const element = event.currentTarget;
          if (element.scrollTop + element.clientHeight >= element.scrollHeight - 2) onScrolledAway(false);
        }}
      >
        <div style={{ height: virtual.getTotalSize(), position: "relative" }}>
          {virtual.getVirtualItems().map((item) => (
            <div
              key={item.key}
              className={item.index === shown ? "line shown" : "line"}
              style={{ transform: `translateY(${item.start}px)` }}
            >
              <Line text={lines[item.index] ?? ""} wanted={wanted} />
            </div>
          ))}
        </div>
      </section>
    </>
  );
}

function Line({ text, wanted }: { text: string; wanted: string }) {
  return (
    <>
      {pieces(text).map((piece, index) => (
        <span key={index} className={piece.style}>
          {wanted ? marked(piece.text, wanted) : piece.text}
        </span>
      ))}
    </>
  );
}

/** The text with each place that is looked for marked. */
function marked(text: string, wanted: string): ReactNode[] {
  const found: ReactNode[] = [];
  const lower = text.toLowerCase();
  let from = 0;
  for (let at = lower.indexOf(wanted.toLowerCase()); at >= 0; at = lower.indexOf(wanted.toLowerCase(), from)) {
    found.push(text.slice(from, at), <mark key={at}>{text.slice(at, at + wanted.length)}</mark>);
    from = at + wanted.length;
  }
  found.push(text.slice(from));
  return found;
}

/** The places of the lines that hold a text, whatever its case. */
export function findLines(lines: readonly string[], wanted: string): number[] {
  const lower = wanted.toLowerCase();
  return lower ? lines.flatMap((line, index) => (plain(line).toLowerCase().includes(lower) ? [index] : [])) : [];
}

function withoutLastEmpty(lines: string[]): string[] {
  return lines.at(-1) === "" ? lines.slice(0, -1) : lines;
}
