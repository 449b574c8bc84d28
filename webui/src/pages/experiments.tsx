// The first page: all experiments, one line each.

import { useDeferredValue, useEffect, useMemo } from "react";
import { Link } from "wouter";
import { experimentActions } from "../api/actions";
import { useExperiments, useSession } from "../api/queries";
import type { Experiment, ExperimentStatus } from "../api/schema";
import { Actions } from "../components/actions";
import { ExperimentMenu } from "../components/experiment_menu";
import { Ago, Empty, Scroll, Waiting } from "../components/parts";
import { Progress, Status } from "../components/status";
import { formatDuration, formatNumber, statusWord } from "../format";
import { serverTimeAt, useNow } from "../state/clock";
import { MOST_COMPARED } from "../state/compared";
import { elapsedSeconds, timeLeft } from "../state/progress";
import { useUrlList, useUrlState } from "../state/url";

const STATUSES: ExperimentStatus[] = ["RUNNING", "PAUSED", "DONE", "STOPPED", "ERROR"];

export function Experiments() {
  const [name, setName] = useUrlState("q");
  const [status, setStatus] = useUrlState("status");
  const [archived, setArchived] = useUrlState("archived");
  const [tags, setTags] = useUrlList("tags");
  const [selected, setSelected] = useUrlList("selected");
  const chosen = STATUSES.find((each) => each === status);
  const found = useExperiments({
    status: chosen && [chosen],
    tag: tags.length ? tags : undefined,
    archived: archived === "true" ? "true" : "false",
  });
  const wanted = useDeferredValue(name).trim().toLowerCase();
  const all = useMemo(() => found.data?.pages.flatMap((page) => page.items) ?? [], [found.data]);
  const items = all.filter((item) => searchedText(item).includes(wanted));
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
          aria-label="Search by name, id or tag"
          placeholder="Search by name, id or tag"
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
        <button
          type="button"
          className="chip"
          aria-pressed={archived === "true"}
          onClick={() => setArchived(archived === "true" ? "" : "true")}
        >
          archived
        </button>
        {tags.map((tag) => (
          <button
            key={tag}
            type="button"
            className="chip tag"
            aria-pressed="true"
            title={`Not only those tagged ${tag}`}
            onClick={() => setTags(tags.filter((each) => each !== tag))}
          >
            {tag} <span aria-hidden="true">×</span>
          </button>
        ))}
      </div>
      {selected.length > 0 && <Selected ids={selected} onClear={() => setSelected([])} />}
      {found.data ? (
        <ExperimentTable
          items={items}
          isFiltered={Boolean(name || chosen || tags.length || archived)}
          readAt={serverTimeAt(found.dataUpdatedAt)}
          selected={selected}
          onSelect={(id) => setSelected(toggled(selected, id))}
          onTag={(tag) => setTags(toggled(tags, tag))}
        />
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

function searchedText({ name, id, tags }: Experiment): string {
  return [name, id, ...(tags ?? [])].join(" ").toLowerCase();
}

function toggled(list: string[], item: string): string[] {
  return list.includes(item) ? list.filter((each) => each !== item) : [...list, item];
}

/** How many are selected, and the way to where they are compared. */
function Selected({ ids, onClear }: { ids: string[]; onClear: () => void }) {
  const canCompare = ids.length > 1 && ids.length <= MOST_COMPARED;
  return (
    <section className="bar" aria-label="Selected experiments">
      <strong>{ids.length} selected</strong>
      {canCompare ? (
        <Link href={`/compare?experiments=${ids.map(encodeURIComponent).join(",")}`} data-keys="a m">
          Compare
        </Link>
      ) : (
        <span className="soft">{ids.length > 1 ? `compare up to ${MOST_COMPARED}` : "compare with another one"}</span>
      )}
      <button type="button" className="link" data-keys="a x" onClick={onClear}>
        Clear
      </button>
    </section>
  );
}

interface TableProps {
  items: Experiment[];
  isFiltered: boolean;
  readAt: number;
  selected: string[];
  onSelect: (id: string) => void;
  onTag: (tag: string) => void;
}

function ExperimentTable({ items, isFiltered, readAt, selected, onSelect, onTag }: TableProps) {
  const mayChange = useSession().data?.access === "full";
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
            <th scope="col">
              <span className="hidden">Select</span>
            </th>
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
            <th scope="col">Tags</th>
            <th scope="col" className="rest">
              Reason
            </th>
            {mayChange && (
              <th scope="col">
                <span className="hidden">Actions</span>
              </th>
            )}
          </tr>
        </thead>
        <tbody>
          {items.map((item) => (
            <ExperimentLine
              key={item.id}
              item={item}
              readAt={readAt}
              isSelected={selected.includes(item.id)}
              mayChange={mayChange}
              onSelect={() => onSelect(item.id)}
              onTag={onTag}
            />
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

interface LineProps {
  item: Experiment;
  readAt: number;
  isSelected: boolean;
  mayChange: boolean;
  onSelect: () => void;
  onTag: (tag: string) => void;
}

function ExperimentLine({ item, readAt, isSelected, mayChange, onSelect, onTag }: LineProps) {
  const { best } = item;
  const reason = item.failure || item.reason;
  return (
    <tr className={isSelected ? "chosen" : ""}>
      <td className="box">
        <input
          type="checkbox"
          data-row-box
          aria-label={`Select ${item.name}`}
          checked={isSelected}
          onChange={onSelect}
        />
      </td>
      <th scope="row" className="name" title={item.name}>
        <Link href={`/experiments/${item.id}`} data-row>
          {item.name}
        </Link>{" "}
        <small>{item.id}</small>
      </th>
      <td>
        <Status status={item.status} />
      </td>
      <Progress item={item} />
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
      <td className="tags" title={item.tags?.join(", ")}>
        {item.tags?.map((tag) => (
          <button
            key={tag}
            type="button"
            className="chip tag"
            title={`Only those tagged ${tag}`}
            onClick={() => onTag(tag)}
          >
            {tag}
          </button>
        ))}
      </td>
      <td className={`rest ${item.failure || item.status === "ERROR" ? "failure" : "soft"}`} title={reason}>
        {item.archived && <span className="soft">archived{reason && " · "}</span>}
        {reason}
      </td>
      {mayChange && (
        <td className="row-actions">
          <Actions actions={rowActions(item)}>
            <ExperimentMenu experiment={item} />
          </Actions>
        </td>
      )}
    </tr>
  );
}

/** Without the keys that they have on the page of an experiment: here there are many. */
function rowActions(item: Experiment) {
  return experimentActions(item).map(({ word, question, run }) => ({ word, question, run }));
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
