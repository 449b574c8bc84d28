// What has happened in an experiment, the newest first.

import { useVirtualizer } from "@tanstack/react-virtual";
import { useEffect, useMemo, useRef } from "react";
import { Link } from "wouter";
import { useEvents } from "../api/queries";
import type { PastEvent } from "../api/schema";
import { Empty, Panel, Waiting } from "../components/parts";
import { useRestOfScreen } from "../components/screen";
import { countOf, formatClock, formatDay, toSeconds } from "../format";
import { actorOf, eventText, KINDS, nodeOf } from "../state/events";
import { useUrlState } from "../state/url";
import { ExperimentPage } from "./experiment";

const ROW_PIXELS = 24;

export function Events({ id }: { id: string }) {
  const [kind, setKind] = useUrlState("kind");
  const [text, setText] = useUrlState("text");
  const kinds = useMemo(() => (kind ? [kind] : [...KINDS]), [kind]);
  const found = useEvents(id, kinds, text);
  const events = useMemo(() => found.data?.pages.flatMap((page) => page.items) ?? [], [found.data]);
  return (
    <ExperimentPage id={id}>
      {() => (
        <Panel title="Events" aside={`${countOf(events.length, "event")}${found.hasNextPage ? " and more" : ""}`}>
          <div className="bar">
            <select aria-label="Kind" value={kind} onChange={(event) => setKind(event.target.value)}>
              <option value="">all kinds</option>
              {KINDS.map((each) => (
                <option key={each} value={each}>
                  {each}
                </option>
              ))}
            </select>
            <input
              type="search"
              aria-label="Search in events"
              placeholder="Text in events"
              value={text}
              onChange={(event) => setText(event.target.value)}
            />
          </div>
          {!found.data ? (
            <Waiting error={found.error} what="the events" />
          ) : events.length ? (
            <Rows
              events={events}
              onEnd={() => {
                if (found.hasNextPage && !found.isFetching) void found.fetchNextPage();
              }}
            />
          ) : (
            <Empty>No such event is kept.</Empty>
          )}
        </Panel>
      )}
    </ExperimentPage>
  );
}

function Rows({ events, onEnd }: { events: PastEvent[]; onEnd: () => void }) {
  const place = useRef<HTMLElement>(null);
  const [measured, height] = useRestOfScreen();
  const virtual = useVirtualizer({
    count: events.length,
    getScrollElement: () => place.current,
    estimateSize: () => ROW_PIXELS,
    overscan: 12,
  });
  const items = virtual.getVirtualItems();
  const last = items.at(-1)?.index ?? 0;
  useEffect(() => {
    if (last >= events.length - 1) onEnd();
  });
  return (
    <section
      ref={(element) => {
        place.current = element;
        measured(element);
      }}
      className="events"
      aria-label="Events, the newest first"
      // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by the keyboard
      tabIndex={0}
      style={{ height }}
    >
      <ul style={{ height: virtual.getTotalSize() }}>
        {items.map((item) => {
          const event = events[item.index];
          return event && <Row key={event.id} event={event} top={item.start} />;
        })}
      </ul>
    </section>
  );
}

function Row({ event, top }: { event: PastEvent; top: number }) {
  const text = eventText(event);
  const node = nodeOf(event);
  const seconds = toSeconds(event.time);
  return (
    <li style={{ transform: `translateY(${top}px)` }} title={text}>
      <time dateTime={event.time}>
        <span className="day">{formatDay(seconds)}, </span>
        {formatClock(seconds)}
      </time>
      <span className="soft">{event.kind}</span>
      <span>
        {event.trial_id && <Link href={`/trials/${event.trial_id}`}>trial {event.sequence_id ?? event.trial_id}</Link>}
      </span>
      <span className="what">
        {text} {node && <Link href={`/nodes#${encodeURIComponent(node)}`}>on {node}</Link>}{" "}
        {actorOf(event) && <span className="soft">by {actorOf(event)}</span>}
      </span>
    </li>
  );
}
