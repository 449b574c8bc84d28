// The first page: all experiments, one line each.

import { useDeferredValue, useEffect } from "react";
import { Link } from "wouter";
import { useExperiments } from "../api/queries";
import type { Experiment, ExperimentStatus } from "../api/schema";
import { Ago, Empty, Scroll, Waiting } from "../components/parts";
import { Status, StatusBar } from "../components/status";
import { formatDuration, formatNumber, statusWord } from "../format";
import { useNow } from "../state/clock";
import { elapsedSeconds, endedTrials, timeLeft, totalTrials } from "../state/progress";
import { useUrlState } from "../state/url";

const STATUSES: ExperimentStatus[] = ["RUNNING", "PAUSED", "DONE", "STOPPED", "ERROR"];

export function Experiments() {
  const [name, setName] = useUrlState("q");
  const [status, setStatus] = useUrlState("status");
  const chosen = STATUSES.find((each) => each === status);
  const found = useExperiments(chosen ? [chosen] : undefined);
  const wanted = useDeferredValue(name).trim().toLowerCase();
  const all = found.data?.pages.flatMap((page) => page.items) ?? [];
  const items = all.filter((item) => `${item.name} ${item.id}`.toLowerCase().includes(wanted));
  const { hasNextPage, isFetching, fetchNextPage } = found;
  useEffect(() => {
    // A search is over all experiments, not only over those that were read so far.
    if (wanted && hasNextPage && !isFetching) void fetchNextPage();
  }, [wanted, hasNextPage, isFetching, fetchNextPage]);
  useEffect(() => {
    document.title = "Experiments · Proctor";
  }, []);
  return (
    <>
      <div className="bar">
        <h1>Experiments</h1>
        <input
          type="search"
          aria-label="Search by name or id"
          placeholder="Search by name or id"
          value={name}
          onChange={(event) => setName(event.target.value)}
        />
        <select aria-label="Status" value={chosen ?? ""} onChange={(event) => setStatus(event.target.value)}>
          <option value="">any status</option>
          {STATUSES.map((each) => (
            <option key={each} value={each}>
              {statusWord(each)}
            </option>
          ))}
        </select>
      </div>
      {found.data ? (
        <ExperimentTable items={items} isFiltered={Boolean(name || chosen)} readAt={found.dataUpdatedAt / 1000} />
      ) : (
        <Waiting error={found.error} what="the experiments" />
      )}
      {hasNextPage && !wanted && (
        <button type="button" onClick={() => void fetchNextPage()} disabled={found.isFetchingNextPage}>
          Older experiments
        </button>
      )}
    </>
  );
}

function ExperimentTable({ items, isFiltered, readAt }: { items: Experiment[]; isFiltered: boolean; readAt: number }) {
  if (items.length === 0) {
    return isFiltered ? (
      <Empty>No experiment matches.</Empty>
    ) : (
      <Empty>
        No experiments yet. Start one with <code>proctor create --config experiment.yml</code>.
      </Empty>
    );
  }
  return (
    <Scroll label="Experiments">
      <table className="lines experiments">
        <thead>
          <tr>
            <th scope="col">Experiment</th>
            <th scope="col">Status</th>
            <th scope="col">Trials</th>
            <th scope="col" className="number">
              Running
            </th>
            <th scope="col" className="number">
              Best
            </th>
            <th scope="col" className="number">
              Elapsed
            </th>
            <th scope="col" className="number">
              Left
            </th>
            <th scope="col">Created</th>
            <th scope="col" className="rest">
              Reason
            </th>
          </tr>
        </thead>
        <tbody>
          {items.map((item) => (
            <ExperimentLine key={item.id} item={item} readAt={readAt} />
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

function ExperimentLine({ item, readAt }: { item: Experiment; readAt: number }) {
  const ended = endedTrials(item);
  const { best } = item;
  const reason = item.failure || item.reason;
  return (
    <tr>
      <th scope="row" className="name" title={item.name}>
        <Link href={`/experiments/${item.id}`} data-row>
          {item.name}
        </Link>{" "}
        <small>{item.id}</small>
      </th>
      <td>
        <Status status={item.status} />
      </td>
      <td className="progress">
        <StatusBar counts={item.trial_counts} total={Math.max(item.max_trial_number ?? 0, totalTrials(item))} />
        <span className="count">
          {ended}
          {item.max_trial_number !== null && <small> / {item.max_trial_number}</small>}
        </span>
      </td>
      <td className="number">{item.trial_counts.RUNNING ?? 0}</td>
      <td className="number" title={`${item.objective.direction} ${item.objective.metric}`}>
        {best ? formatNumber(best.value) : "–"}
        <span className="direction" aria-hidden="true">
          {item.objective.direction === "maximize" ? "↑" : "↓"}
        </span>
      </td>
      <Times item={item} readAt={readAt} />
      <td>
        <Ago time={item.created_at} />
      </td>
      <td className={`rest ${item.failure || item.status === "ERROR" ? "failure" : "soft"}`} title={reason}>
        {reason}
      </td>
    </tr>
  );
}

function Times({ item, readAt }: { item: Experiment; readAt: number }) {
  const elapsed = elapsedSeconds(item, readAt, useNow());
  const left = timeLeft(item, elapsed);
  return (
    <>
      <td className="number">{formatDuration(Math.round(elapsed))}</td>
      <td className="number">{left === null ? "–" : formatDuration(Math.round(left.seconds))}</td>
    </>
  );
}
