// How the parameters of the trials and their values belong together.

import { type ReactNode, useCallback, useMemo } from "react";
import { Link, useLocation } from "wouter";
import type { Table } from "../api/columns";
import { type ImportanceQuery, useImportance, useTable } from "../api/queries";
import type { Experiment } from "../api/schema";
import { Parallel } from "../charts/parallel";
import { Scatter, valueText } from "../charts/scatter";
import { Empty, Panel, Scroll, Waiting } from "../components/parts";
import { capitalized, countOf, formatNumber } from "../format";
import {
  type Axis,
  axesOf,
  axesText,
  type Brush,
  bothFilters,
  drawingOrder,
  fromFilter,
  matchesOf,
  metricsOf,
  moved,
  ranksOf,
  type Shown,
  shownAxes,
  toFilter,
  wordText,
} from "../state/relations";
import { useUrlState } from "../state/url";
import { ExperimentPage } from "./experiment";

const PARALLEL_PIXELS = 340;
const SCATTER_PIXELS = 300;
const MOST_SHOWN = 16;
const QUANTILES = [0.05, 0.1, 0.2, 0.3, 0.5];
const DEFAULT_QUANTILE = 0.1;

export function Relations({ id }: { id: string }) {
  return <ExperimentPage id={id}>{(experiment) => <TrialRelations experiment={experiment} />}</ExperimentPage>;
}

function TrialRelations({ experiment }: { experiment: Experiment }) {
  const [filter, setFilter] = useUrlState("filter");
  const found = useTable(experiment.id, { filter, sort: [] });
  const table = found.data;
  if (!table && filter && found.error) {
    return (
      <>
        <Waiting error={found.error} what="the trials" />
        <button type="button" onClick={() => setFilter("")}>
          Remove the filter
        </button>
      </>
    );
  }
  if (!table) return <Waiting error={found.error} what="the trials" />;
  if (table.rows === 0) return <Empty>{table.total ? "No trial matches the filter." : "No trials yet."}</Empty>;
  return <Charts experiment={experiment} table={table} filter={filter} onFilter={setFilter} />;
}

interface ChartsProps {
  experiment: Experiment;
  table: Table;
  filter: string;
  onFilter: (filter: string) => void;
}

function Charts({ experiment, table, filter, onFilter }: ChartsProps) {
  const [metric, setMetric] = useUrlState("metric", "value");
  const [direction, setDirection] = useUrlState("direction", experiment.objective.direction);
  const [axesChosen, setAxes] = useUrlState("axes");
  const [brushText, setBrushText] = useUrlState("ranges");
  const metrics = useMemo(() => metricsOf(table), [table]);
  const axes = useMemo(() => axesOf(table, experiment.search_space, metric), [table, experiment.search_space, metric]);
  const { ranks, order } = useMemo(() => ranked(table, metric, direction === "maximize"), [table, metric, direction]);
  const shown = useMemo(() => chosenAxes(axes, axesChosen), [axes, axesChosen]);
  const brushes = useMemo(() => fromFilter(brushText, axes), [brushText, axes]);
  const matches = useMemo(() => matchesOf(axes, brushes, table.rows), [axes, brushes, table.rows]);
  const matching = useMemo(() => matches.reduce((sum, one) => sum + one, 0), [matches]);
  const onShown = useCallback((next: Shown[]) => setAxes(axesText(next)), [setAxes]);
  const onBrush = useCallback(
    (name: string, brush: Brush | null) => {
      const next = new Map(brushes);
      if (brush) next.set(name, brush);
      else next.delete(name);
      setBrushText(toFilter(next, axes));
    },
    [brushes, axes, setBrushText],
  );
  const onFirst = (name: string) => {
    const at = shown.findIndex(({ axis }) => axis.name === name);
    const axis = axes.find((each) => each.name === name);
    if (at >= 0) onShown(moved(shown, at, 0));
    else if (axis) onShown([{ axis, flipped: false }, ...shown]);
  };
  const tableFilter = bothFilters(filter, brushText);
  const href = `/experiments/${experiment.id}/trials${tableFilter ? `?filter=${encodeURIComponent(tableFilter)}` : ""}`;
  const best = direction === "maximize" ? "greatest" : "least";
  return (
    <>
      <div className="bar">
        {metrics.length > 1 && (
          <label>
            Value{" "}
            <select value={metric} onChange={(event) => setMetric(event.target.value)}>
              {metrics.map((name) => (
                <option key={name}>{name}</option>
              ))}
            </select>
          </label>
        )}
        <label>
          The best is the{" "}
          <select value={direction} onChange={(event) => setDirection(event.target.value)}>
            <option value="maximize">greatest</option>
            <option value="minimize">least</option>
          </select>
        </label>
        {filter && (
          <span className="soft reason">
            filter: <code>{filter}</code>{" "}
            <button type="button" className="link" onClick={() => onFilter("")}>
              remove
            </button>
          </span>
        )}
        <span className="spring" />
        <span className="soft" role="status">
          {matching === table.rows
            ? countOf(table.rows, "trial")
            : `${matching.toLocaleString("en-US")} of ${countOf(table.rows, "trial")}`}
        </span>
        {brushText && (
          <button type="button" className="link" onClick={() => setBrushText("")}>
            remove ranges
          </button>
        )}
        <Link href={href}>as a table</Link>
      </div>
      <Panel title="Parallel coordinates" aside={<AxisChoice axes={axes} shown={shown} onShown={onShown} />}>
        <Legend best={`the ${best} ${metric}`} />
        {shown.length ? (
          <Parallel
            shown={shown}
            order={order}
            ranks={ranks}
            matches={matches}
            brushes={brushes}
            onBrush={onBrush}
            onShown={onShown}
            height={PARALLEL_PIXELS}
            label={`A line for each of ${countOf(table.rows, "trial")} across ${shown.length} ${shown.length === 1 ? "axis" : "axes"}; the table has the same values`}
          />
        ) : (
          <Empty>No parameter differs between the trials.</Empty>
        )}
        <Ranges shown={shown} brushes={brushes} onBrush={onBrush} />
      </Panel>
      <Below
        experiment={experiment}
        table={table}
        axes={axes}
        metric={metric}
        direction={direction}
        draw={{ order, ranks, matches }}
        onFirst={onFirst}
      />
    </>
  );
}

function ranked(table: Table, metric: string, maximize: boolean) {
  const column = table.columns.find((each) => each.name === metric);
  const values = Array.from({ length: table.rows }, (_, row) => (column?.at(row) ?? null) as number | null);
  const ranks = ranksOf(values, maximize);
  return { ranks, order: drawingOrder(ranks) };
}

/** The axes of the address; by default the first ones of many, and the value. */
function chosenAxes(axes: Axis[], text: string): Shown[] {
  const shown = shownAxes(axes, text);
  return text || shown.length <= MOST_SHOWN ? shown : [...shown.slice(0, MOST_SHOWN - 1), ...shown.slice(-1)];
}

function Legend({ best }: { best: string }) {
  return (
    <p className="soft legend">
      <span className="scale" aria-hidden="true" /> worst to best ({best}); pale: no value. Drag along an axis to choose
      a range, click it to remove the range.
    </p>
  );
}

function AxisChoice({ axes, shown, onShown }: { axes: Axis[]; shown: Shown[]; onShown: (shown: Shown[]) => void }) {
  const names = new Set(shown.map(({ axis }) => axis.name));
  const toggle = (axis: Axis) =>
    onShown(
      names.has(axis.name) ? shown.filter((one) => one.axis.name !== axis.name) : [...shown, { axis, flipped: false }],
    );
  return (
    <details className="files">
      <summary>axes</summary>
      <div>
        <ul>
          {axes.map((axis) => (
            <li key={axis.name}>
              <label>
                <input
                  type="checkbox"
                  checked={names.has(axis.name)}
                  disabled={names.size === 1 && names.has(axis.name)}
                  onChange={() => toggle(axis)}
                />{" "}
                {axis.label}
              </label>
            </li>
          ))}
        </ul>
      </div>
    </details>
  );
}

/** The ranges as fields: what is dragged on the axes, by the keyboard. */
function Ranges(props: {
  shown: Shown[];
  brushes: ReadonlyMap<string, Brush>;
  onBrush: (axis: string, brush: Brush | null) => void;
}) {
  return (
    <details className="ranges">
      <summary>Ranges as fields</summary>
      <div>
        {props.shown.map(({ axis }) => (
          <fieldset key={axis.name}>
            <legend title={axis.label}>{axis.label}</legend>
            {axis.words ? <WordFields axis={axis} {...props} /> : <NumberFields axis={axis} {...props} />}
          </fieldset>
        ))}
      </div>
    </details>
  );
}

interface FieldsProps {
  axis: Axis;
  brushes: ReadonlyMap<string, Brush>;
  onBrush: (axis: string, brush: Brush | null) => void;
}

function NumberFields({ axis, brushes, onBrush }: FieldsProps) {
  const brush = brushes.get(axis.name);
  const now = brush && "from" in brush ? brush : { from: null, to: null };
  const set = (end: "from" | "to", text: string) => {
    const number = text.trim() === "" ? null : Number(text);
    if (Number.isNaN(number)) return;
    const next = { ...now, [end]: number };
    onBrush(axis.name, next.from === null && next.to === null ? null : next);
  };
  return (["from", "to"] as const).map((end) => (
    <input
      key={`${end} ${now[end]}`}
      aria-label={`${axis.label} ${end}`}
      placeholder={formatNumber(end === "from" ? axis.low : axis.high)}
      inputMode="decimal"
      defaultValue={now[end] ?? ""}
      onBlur={(event) => set(end, event.target.value)}
      onKeyDown={(event) => event.key === "Enter" && set(end, event.currentTarget.value)}
    />
  ));
}

function WordFields({ axis, brushes, onBrush }: FieldsProps) {
  const words = axis.words ?? [];
  const brush = brushes.get(axis.name);
  const chosen = brush && "words" in brush ? brush.words : words;
  const toggle = (word: string) => {
    const next = words.filter((each) => chosen.includes(each) !== (each === word));
    onBrush(axis.name, next.length === 0 || next.length === words.length ? null : { words: next });
  };
  return words.map((word) => (
    <label key={word}>
      <input type="checkbox" checked={chosen.includes(word)} onChange={() => toggle(word)} />{" "}
      {axis.json ? wordText(word) : word}
    </label>
  ));
}

// ---- importance, and two axes against each other ----

interface BelowProps {
  experiment: Experiment;
  table: Table;
  axes: Axis[];
  metric: string;
  direction: string;
  draw: { order: Uint32Array; ranks: Float64Array; matches: Uint8Array };
  onFirst: (axis: string) => void;
}

function Below({ experiment, table, axes, metric, direction, draw, onFirst }: BelowProps) {
  const [xName, setX] = useUrlState("x");
  const [yName, setY] = useUrlState("y");
  const [share, setShare] = useUrlState("best", String(DEFAULT_QUANTILE));
  const [, navigate] = useLocation();
  const query: ImportanceQuery = {
    key: metric === "value" ? undefined : metric.slice("value.".length),
    direction: direction === "maximize" ? "maximize" : "minimize",
    quantile: QUANTILES.find((each) => String(each) === share) ?? DEFAULT_QUANTILE,
  };
  const importance = useImportance(experiment.id, query);
  const most = importance.data?.parameters[0]?.name;
  const named = (name: string) => axes.find((axis) => axis.name === name);
  const x = named(xName) ?? named(`parameter.${most}`) ?? axes[0];
  const y = named(yName) ?? named(metric) ?? axes.at(-1);
  const [numbers, ids] = ["no", "id"].map((name) => table.columns.find((column) => column.name === name));
  const value = table.columns.find((column) => column.name === metric);
  const at = (axis: Axis | undefined, row: number) =>
    valueText(table.columns.find((column) => column.name === axis?.name)?.at(row) ?? null);
  const textOf = (row: number) => {
    const axesHere = [x, y].flatMap((axis) => (axis && axis.name !== metric ? [`${axis.label} ${at(axis, row)}`] : []));
    return [`trial ${numbers?.at(row)}: ${metric} ${valueText(value?.at(row) ?? null)}`, ...axesHere].join(" · ");
  };
  return (
    <div className="relations">
      <Panel
        title="Importance"
        aside={
          <>
            <ImportanceState importance={importance.data} />{" "}
            <label>
              best{" "}
              <select value={query.quantile} onChange={(event) => setShare(event.target.value)}>
                {QUANTILES.map((each) => (
                  <option key={each} value={each}>
                    {each * 100} %
                  </option>
                ))}
              </select>
            </label>
          </>
        }
      >
        <ImportanceBars
          found={importance}
          current={x?.name}
          onChoose={(name) => {
            onFirst(`parameter.${name}`);
            setX(`parameter.${name}`);
          }}
        />
      </Panel>
      <Panel
        title="Scatter"
        aside={
          <>
            <AxisSelect label="Horizontal" axes={axes} value={x?.name ?? ""} onChange={setX} />{" "}
            <AxisSelect label="Vertical" axes={axes} value={y?.name ?? ""} onChange={setY} />
          </>
        }
      >
        {x && y ? (
          <Scatter
            {...draw}
            x={x}
            y={y}
            height={SCATTER_PIXELS}
            label={`${y.label} against ${x.label}, a point for each trial; the table has the same values`}
            textOf={textOf}
            onOpen={(row) => navigate(`/trials/${ids?.at(row)}`)}
          />
        ) : (
          <Empty>No trial has a value or a parameter that differs.</Empty>
        )}
      </Panel>
    </div>
  );
}

function AxisSelect(props: { label: string; axes: Axis[]; value: string; onChange: (name: string) => void }) {
  return (
    <select aria-label={props.label} value={props.value} onChange={(event) => props.onChange(event.target.value)}>
      {props.axes.map((axis) => (
        <option key={axis.name} value={axis.name}>
          {axis.label}
        </option>
      ))}
    </select>
  );
}

type Found = ReturnType<typeof useImportance>;

function ImportanceState({ importance }: { importance: Found["data"] }): ReactNode {
  if (!importance) return null;
  const of = importance.revision === null ? "" : `of ${countOf(importance.trials, "trial")}`;
  return (
    <span className="soft" role="status">
      {importance.state === "COMPUTING" ? `computing …${of && ` meanwhile ${of}`}` : of}
    </span>
  );
}

function ImportanceBars(props: { found: Found; current?: string; onChoose: (name: string) => void }) {
  const { data, error } = props.found;
  if (!data) return <Waiting error={error} what="the importance" />;
  if (data.parameters.length === 0)
    return <Empty>{data.reason ? `${capitalized(data.reason)}.` : "Computing …"}</Empty>;
  const greatest = data.parameters[0]?.importance || 1;
  return (
    <>
      {data.reason && <p className="note">{capitalized(data.reason)}</p>}
      <p className="soft legend">
        For being among the best {formatNumber(data.quantile * 100)} % ({countOf(data.top, "trial")}), by PED-ANOVA
        {data.top < 5 && "; with so few of them, roughly"}
        {data.outside > 0 && `; ${countOf(data.outside, "trial")} outside of the search space left out`}.
      </p>
      <Scroll label="Importance of the parameters" className="tall-bars">
        <table className="lines importance">
          <thead>
            <tr>
              <th scope="col">parameter</th>
              <th scope="col" colSpan={2}>
                share
              </th>
            </tr>
          </thead>
          <tbody>
            {data.parameters.map(({ name, importance }) => (
              <tr key={name}>
                <th scope="row" className="name">
                  <button
                    type="button"
                    className="link"
                    title={name}
                    data-row
                    aria-pressed={props.current === `parameter.${name}`}
                    onClick={() => props.onChoose(name)}
                  >
                    {name}
                  </button>
                </th>
                <td className="number">{(importance * 100).toFixed(1)} %</td>
                <td className="rest">
                  <svg viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true" className="importance-bar">
                    <rect width={(importance / greatest) * 100} height="1" />
                  </svg>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
    </>
  );
}
