// Small pieces that several pages show.

import type { ReactNode } from "react";
import { ApiProblem } from "../api/client";
import { capitalized, formatAgo, formatDuration, formatParameter, formatTime, toSeconds } from "../format";
import { useNow } from "../state/clock";
import { FORMATS, type Format } from "../state/copies";
import { flatParameters } from "../state/parameters";
import { ranSeconds } from "../state/progress";

/** A titled part of a page. `aside`: what stands at the right of the title. */
export function Panel(props: { title: string; aside?: ReactNode; className?: string; children: ReactNode }) {
  const id = `panel-${props.title.toLowerCase().replace(/[^a-z]+/g, "-")}`;
  return (
    <section className={`panel ${props.className ?? ""}`} aria-labelledby={id}>
      <header>
        <h2 id={id}>{props.title}</h2>
        {props.aside && <div className="aside">{props.aside}</div>}
      </header>
      {props.children}
    </section>
  );
}

/** A number that matters, with its name above and a line below. */
export function Figure(props: { name: string; children: ReactNode; below?: ReactNode }) {
  return (
    <div className="figure">
      <dt>{props.name}</dt>
      <dd>
        <span className="big">{props.children}</span>
        {props.below && <span className="below">{props.below}</span>}
      </dd>
    </div>
  );
}

/** A moment as "5 min ago"; the exact one as its title. */
export function Ago({ time }: { time: string | null | undefined }) {
  const now = useNow();
  const seconds = toSeconds(time);
  if (seconds === null) return <>–</>;
  return (
    <time dateTime={time ?? undefined} title={formatTime(seconds)}>
      {formatAgo(seconds, now)}
    </time>
  );
}

/** How long a trial or a job has run. `readAt`: when it was read, on the manager's clock. */
export function Elapsed({ run, readAt }: { run: Parameters<typeof ranSeconds>[0]; readAt: number }) {
  const seconds = ranSeconds(run, readAt, useNow());
  return <>{seconds === null ? "–" : formatDuration(Math.round(seconds))}</>;
}

/** Parameters on one line. */
export function ParameterLine({ parameters }: { parameters: unknown }) {
  const flat = flatParameters(parameters);
  return (
    <span className="parameters" title={flat.map(([name, value]) => `${name} = ${formatParameter(value)}`).join("\n")}>
      {flat.map(([name, value]) => (
        <span key={name}>
          <i>{name}</i> {formatParameter(value)}
        </span>
      ))}
    </span>
  );
}

/** What went wrong, or that something is on its way. `isPage`: it is all that the page shows. */
export function Waiting({ error, what, isPage = false }: { error: Error | null; what: string; isPage?: boolean }) {
  if (!error) return <p className="empty">Reading {what} …</p>;
  const title = capitalized(error instanceof ApiProblem ? error.title : "This page has a fault");
  return (
    <div className="problem" role="alert">
      {isPage ? <h1>{title}</h1> : <strong>{title}</strong>}
      <p>{error.message}</p>
    </div>
  );
}

/** A sentence where there is nothing to show. */
export function Empty({ children }: { children: ReactNode }) {
  return <p className="empty">{children}</p>;
}

/** What may be wider or higher than its place. It can be scrolled with the keyboard, too. */
export function Scroll({
  label,
  className = "",
  children,
}: {
  label: string;
  className?: string;
  children: ReactNode;
}) {
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by the keyboard
    <section className={`scroll ${className}`} tabIndex={0} aria-label={label}>
      {children}
    </section>
  );
}

/** The buttons at the end of a form in a dialog. */
export function FormEnd(props: { word: string; isPending: boolean; onCancel: () => void }) {
  return (
    <div className="bar">
      <button type="button" onClick={props.onCancel}>
        Cancel
      </button>
      <button type="submit" className="strong" disabled={props.isPending}>
        {props.word}
      </button>
    </div>
  );
}

/** A button for each format in which parameters can be copied. */
export function CopyButtons({ onCopy }: { onCopy: (format: Format) => void }) {
  return FORMATS.map((format, place) => (
    <button key={format} type="button" className="link" data-keys={`y ${"yjl"[place]}`} onClick={() => onCopy(format)}>
      {format}
    </button>
  ));
}

/** Heads of columns of numbers. */
export function NumberHeads({ names }: { names: readonly string[] }) {
  return names.map((name) => (
    <th key={name} scope="col" className="number">
      {name}
    </th>
  ));
}
