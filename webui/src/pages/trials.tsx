// All trials of an experiment: filtered, in any order, with the columns in which they differ.

import { useMemo, useRef, useState } from "react";
import { ApiProblem } from "../api/client";
import type { Column, Table } from "../api/columns";
import { ALL_COLUMNS, type ExportFormat, type TableQuery, tableUrl, useSession, useTable } from "../api/queries";
import type { Experiment } from "../api/schema";
import type { TrialRow } from "../api/trial_actions";
import { Empty, Waiting } from "../components/parts";
import { useRestOfScreen } from "../components/screen";
import { SelectedTrials } from "../components/selected";
import { Status } from "../components/status";
import { TrialForm } from "../components/trial_form";
import { capitalized, countOf, statusWord } from "../format";
import { saveFile } from "../logs/download";
import { useDraft } from "../state/draft";
import { isOver } from "../state/progress";
import { SAVED } from "../state/root";
import type { Selection } from "../state/selection";
import { useUrlState } from "../state/url";
import { columnsOnDemand, headOf, nextSort, ON_DEMAND, shownColumns, toCsv } from "../state/view";
import { Grid } from "../table/grid";
import { ExperimentPage } from "./experiment";

const TYPING_MILLISECONDS = 350;

export function Trials({ id }: { id: string }) {
  const [chosen] = useUrlState("columns");
  const [sort] = useUrlState("sort");
  useTable(id, { filter: "", sort: [], columns: readColumns(chosen, sort) }); // beside the experiment, not after it
  return <ExperimentPage id={id}>{(experiment) => <TrialTable experiment={experiment} />}</ExperimentPage>;
}

/** What is read; undefined: what is always. */
function readColumns(chosen: string, sort: string): string | undefined {
  const more = SAVED ? [] : columnsOnDemand(chosen, sort);
  return more.length ? [ALL_COLUMNS, ...more].join(",") : undefined;
}

function TrialTable({ experiment }: { experiment: Experiment }) {
  const [filter, setFilter] = useUrlState("filter");
  const [chosenSort, setSort] = useUrlState("sort");
  const [chosen, setChosen] = useUrlState("columns");
  const sort = chosenSort || (experiment.objective.direction === "maximize" ? "-value" : "value");
  const query = { filter, sort: [sort], columns: readColumns(chosen, sort) };
  const found = useTable(experiment.id, query);
  const { error } = found;
  // While a filter is being written it is wrong now and then: the rows of the last good one stay.
  const last = useRef<Table | undefined>(undefined);
  if (found.data) last.current = found.data;
  const table = found.data ?? last.current;
  const isOld = found.isPlaceholderData || !found.data;
  const columns = useMemo(() => (table ? shownColumns(table, chosen) : []), [table, chosen]);
  const [place, height] = useRestOfScreen();
  const [selection, setSelection] = useState<Selection>(new Set());
  const selected = useMemo(() => (table ? selectedRows(table, selection) : []), [table, selection]);
  const [form, setForm] = useState<{ from: TrialRow | null; clone: boolean } | null>(null);
  const session = useSession().data;
  return (
    <>
      {!SAVED && <FilterField filter={filter} onFilter={setFilter} error={error} />}
      <div className="bar chips">
        <StatusChips experiment={experiment} filter={filter} onFilter={setFilter} />
        <span className="spring" />
        {table && (
          <>
            <span className="soft" role="status">
              {table.matched === table.total || !filter
                ? countOf(table.total, "trial")
                : `${table.matched.toLocaleString("en-US")} of ${countOf(table.total, "trial")}`}
            </span>
            <ColumnChoice table={table} shown={columns} chosen={chosen} onChoose={setChosen} />
            <Exports experiment={experiment} query={query} shown={columns} formats={session?.export_formats ?? []} />
            {session?.access === "full" && !isOver(experiment) && !selected.length && (
              <button type="button" data-keys="a n" onClick={() => setForm({ from: null, clone: false })}>
                Add a trial
              </button>
            )}
            {SAVED && (
              <button
                type="button"
                className="link"
                onClick={() =>
                  saveFile(`${experiment.id}.csv`, new Blob([toCsv(table, columns)], { type: "text/csv" }))
                }
              >
                CSV
              </button>
            )}
          </>
        )}
      </div>
      {selected.length > 0 && (
        <SelectedTrials
          experimentId={experiment.id}
          rows={selected}
          onClear={() => setSelection(new Set())}
          onAdd={(from, clone) => setForm({ from, clone })}
        />
      )}
      {form && <TrialForm experiment={experiment} {...form} onClose={() => setForm(null)} />}
      <div ref={place} className={table && isOld ? "pending" : undefined}>
        {!table ? (
          !isFilterProblem(error) && <Waiting error={error} what="the trials" />
        ) : table.rows === 0 ? (
          <Empty>{table.total ? "No trial matches the filter." : "No trials yet."}</Empty>
        ) : (
          <Grid
            table={table}
            columns={columns}
            sort={sort}
            onSort={(column) => setSort(nextSort(sort, column))}
            height={height}
            selection={selection}
            onSelect={setSelection}
          />
        )}
      </div>
    </>
  );
}

function isFilterProblem(error: Error | null): error is ApiProblem {
  return error instanceof ApiProblem && error.status === 422;
}

/** A field for the filter, and what is wrong with it, with its place. */
function FilterField(props: { filter: string; onFilter: (filter: string) => void; error: Error | null }) {
  const { filter, onFilter, error } = props;
  const [text, setText, applyNow] = useDraft(filter, onFilter, TYPING_MILLISECONDS);
  const problem = isFilterProblem(error) ? error.problem?.problems?.[0] : undefined;
  return (
    <div className="filter">
      <input
        type="search"
        aria-label="Filter"
        aria-invalid={problem !== undefined}
        aria-describedby={problem ? "filter-problem" : undefined}
        placeholder="Filter: status = SUCCEEDED and lr < 1e-3 and value > 0.9"
        spellCheck={false}
        autoComplete="off"
        value={text}
        onChange={(event) => setText(event.target.value)}
        onKeyDown={(event) => event.key === "Enter" && applyNow()}
      />
      {isFilterProblem(error) && (
        <p id="filter-problem" className="failure" role="alert">
          {problem?.position != null && text === filter && (
            <code>
              {[...text].slice(Math.max(0, problem.position - 24), problem.position).join("")}
              <mark>{[...text].slice(problem.position, problem.position + 12).join("") || "␣"}</mark>
            </code>
          )}{" "}
          {capitalized(problem?.message ?? error.message)}
        </p>
      )}
    </div>
  );
}

/** Counts of the statuses, which filter by it. */
function StatusChips(props: { experiment: Experiment; filter: string; onFilter: (filter: string) => void }) {
  const { experiment, filter, onFilter } = props;
  const counts = Object.entries(experiment.trial_counts).filter(([, count]) => count);
  return counts.map(([status, count]) => {
    const own = `status = ${status}`;
    const isOn = filter === own;
    return (
      <button
        key={status}
        type="button"
        className="chip"
        aria-pressed={isOn}
        aria-label={`${statusWord(status)}: ${count}`}
        onClick={() => onFilter(isOn ? "" : own)}
      >
        <Status status={status} /> {count?.toLocaleString("en-US")}
      </button>
    );
  });
}

function ColumnChoice(props: { table: Table; shown: Column[]; chosen: string; onChoose: (columns: string) => void }) {
  const { table, shown, chosen, onChoose } = props;
  const names = chosen ? chosen.split(",") : shown.map((column) => column.name);
  const constant = new Set(table.columns.filter(({ varies }) => !varies).map(({ name }) => name));
  const more = SAVED ? [] : ON_DEMAND.filter((name) => !table.columns.some((column) => column.name === name));
  const toggle = (name: string) => {
    const next = names.includes(name) ? names.filter((each) => each !== name) : [...names, name];
    onChoose(next.join(","));
  };
  return (
    <details className="files">
      <summary>columns</summary>
      <div>
        {chosen && (
          <button type="button" className="link" onClick={() => onChoose("")}>
            those that vary
          </button>
        )}
        <ul>
          {[...table.columns.map(({ name }) => name), ...more].map((name) => (
            <li key={name}>
              <label>
                <input type="checkbox" checked={names.includes(name)} onChange={() => toggle(name)} /> {headOf(name)}
              </label>
              {constant.has(name) && <span className="soft">one value</span>}
            </li>
          ))}
        </ul>
      </div>
    </details>
  );
}

/** The selected trials that the table has: what is not shown is not acted upon. */
function selectedRows(table: Table, selection: Selection): TrialRow[] {
  const [numbers, ids, statuses] = ["no", "id", "status"].map((name) =>
    table.columns.find((column) => column.name === name),
  );
  const rows: TrialRow[] = [];
  for (let row = 0; selection.size && row < table.rows; row++) {
    const number = Number(numbers?.at(row));
    if (selection.has(number)) rows.push({ number, id: String(ids?.at(row)), status: String(statuses?.at(row)) });
  }
  return rows;
}

const FORMAT_WORDS: Record<ExportFormat, string> = { json: "JSON", csv: "CSV", parquet: "Parquet" };

/** All rows of the filter as a file, which the manager writes: the shown columns as CSV, else all. */
function Exports(props: { experiment: Experiment; query: TableQuery; shown: Column[]; formats: ExportFormat[] }) {
  const shown = props.shown.map((column) => column.name).join(",");
  return props.formats.map((format) => (
    <a
      key={format}
      href={tableUrl(props.experiment.id, format === "csv" ? { ...props.query, columns: shown } : props.query, format)}
      download={`${props.experiment.id}.${format}`}
    >
      {FORMAT_WORDS[format]}
    </a>
  ));
}
