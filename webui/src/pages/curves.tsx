// The curves of the best trials, of those that run and of selected ones, over the density of all, beside a table of them.

import { useEffect, useMemo, useRef } from "react";
import { Link, useLocation } from "wouter";
import type { Experiment } from "../api/schema";
import {
  type CurvesOf,
  useAttempts,
  useDensity,
  useMetricKeys,
  useParameters,
  useShownCurves,
  type XKind,
} from "../api/shown-curves";
import { CurvesChart, type Line } from "../charts/curves";
import { type Range, rangeOfX, rangeOfY, rescaled, smooth } from "../charts/geometry";
import { lineStyle } from "../charts/styles";
import { Empty, NumberHeads, Scroll, Waiting } from "../components/parts";
import { useRestOfScreen } from "../components/screen";
import { Status } from "../components/status";
import { countOf, formatNumber, formatParameter, statusWord } from "../format";
import { useDraft } from "../state/draft";
import { Hover, useIsPointedAt } from "../state/hover";
import { marksOf } from "../state/marks";
import { isOver } from "../state/progress";
import { assignStyles, parseNumbers, type ShownTrial, TOP_CHOICES, varyingParameters } from "../state/shown";
import { useUrlState } from "../state/url";
import { ExperimentPage } from "./experiment";

const DEFAULT_TOP = "10";
const X_KINDS: [XKind, string][] = [
  ["step", "step"],
  ["seconds", "time since start"],
  ["time", "wall-clock time"],
];
const TYPING_MILLISECONDS = 350;

export function Curves({ id }: { id: string }) {
  return <ExperimentPage id={id}>{(experiment) => <CurvesOfTrials experiment={experiment} />}</ExperimentPage>;
}

/** What the address says is to be shown. */
function useSettings() {
  const [topText, setTop] = useUrlState("top", DEFAULT_TOP);
  const [runningText, setRunning] = useUrlState("running", "yes");
  const [trialsText, setTrials] = useUrlState("trials");
  const [key, setKey] = useUrlState("key");
  const [xText, setX] = useUrlState("x", "step");
  const [log, setLog] = useUrlState("log");
  const [smoothText, setSmooth] = useUrlState("smooth", "0");
  const [all, setAll] = useUrlState("all", "yes");
  const [viewText, setView] = useUrlState("view");
  const x = X_KINDS.find(([kind]) => kind === xText)?.[0] ?? "step";
  const top = TOP_CHOICES.find((choice) => String(choice) === topText) ?? Number(DEFAULT_TOP);
  const selected = useMemo(() => parseNumbers(trialsText), [trialsText]);
  const view = useMemo(() => parseView(viewText), [viewText]);
  const weight = Math.min(0.99, Math.max(0, Number(smoothText) || 0));
  return {
    ...{ top, isRunning: runningText !== "no", trialsText, selected, key, x, weight, isAll: all !== "no", view },
    // There is no logarithm of a date.
    logX: log.includes("x") && x !== "time",
    logY: log.includes("y"),
    log,
    set: { top: setTop, running: setRunning, trials: setTrials, key: setKey, x: setX, log: setLog },
    setSmooth,
    setAll,
    setView,
  };
}

type Settings = ReturnType<typeof useSettings>;

function viewText([x, y]: [x: Range, y: Range]): string {
  return [...x, ...y].map((each) => each.toPrecision(12)).join(",");
}

/** The part of the chart that is enlarged: "x0,x1,y0,y1". */
function parseView(text: string): [x: Range, y: Range] | null {
  const [x0, x1, y0, y1] = text.split(",").map(Number);
  if (x0 === undefined || x1 === undefined || y0 === undefined || y1 === undefined) return null;
  return x0 < x1 && y0 < y1
    ? [
        [x0, x1],
        [y0, y1],
      ]
    : null;
}

function CurvesOfTrials({ experiment }: { experiment: Experiment }) {
  const settings = useSettings();
  const { top, isRunning, selected, key, x, logX, logY, isAll } = settings;
  const maximize = experiment.objective.direction === "maximize";
  const choice = useMemo(() => ({ top, running: isRunning, selected, maximize }), [top, isRunning, selected, maximize]);
  const of = useMemo((): CurvesOf => ({ key, x }), [key, x]);
  const found = useShownCurves(experiment.id, choice, of);
  const density = useDensity(experiment.id, of, { logX, logY }, { isShown: isAll, isOver: isOver(experiment) });
  const trials = found.data?.trials ?? NONE;
  const lines = useLines(trials, found.data?.curves, settings);
  const hover = useMemo(() => new Hover(), []);
  const [, navigate] = useLocation();
  const [place, height] = useRestOfScreen();
  const shownDensity = isAll ? (density.data ?? null) : null;
  const ranges = useRanges(lines, shownDensity, settings);
  const missing =
    found.data && !found.isPlaceholderData ? selected.filter((no) => !trials.some((t) => t.no === no)) : [];
  const hidden = (found.data?.running ?? 0) - trials.filter((each) => each.status === "RUNNING").length;
  const points = lines.reduce((sum, line) => sum + line.raw.x.length, 0);
  const label = `${countOf(lines.length, "curve")} of ${countOf(points, "point")}${shownDensity ? ` over the density of ${shownDensity.curves}` : ""}`;
  return (
    <>
      <Controls experiment={experiment} settings={settings} ranges={ranges} />
      <p className="soft curves-notes" role="status">
        {found.data && `${countOf(trials.length, "trial")} shown`}
        {shownDensity && ` over the density of ${countOf(shownDensity.curves, "curve")}`}
        {isRunning && hidden > 0 && `; ${hidden} more run`}
        {missing.length > 0 && `; there is no trial ${missing.join(", ")}`}
        {lines.some((line) => line.marks.length) && "; ○ another attempt begins, □ a clone"}
        {density.error && isAll && `; no density: ${density.error.message}`}
      </p>
      {!found.data ? (
        <Waiting error={found.error} what="the curves" />
      ) : (
        <div className={`curves ${found.isPlaceholderData ? "pending" : ""}`} ref={place}>
          <div className="panel">
            {ranges ? (
              <CurvesChart
                lines={lines}
                density={shownDensity}
                x={ranges[0]}
                y={ranges[1]}
                xKind={x}
                logX={logX}
                logY={logY}
                hover={hover}
                height={Math.max(260, Math.min(height - 20, 720))}
                label={label}
                onZoom={(onX, onY) => settings.setView(viewText([onX, onY]))}
                onReset={() => settings.setView("")}
                onOpen={(no) => navigate(`/trials/${trials.find((each) => each.no === no)?.id}`)}
              />
            ) : (
              <Empty>{nothingToDraw(settings, trials)}</Empty>
            )}
          </div>
          <ShownTable
            id={experiment.id}
            trials={trials}
            lines={lines}
            hover={hover}
            settings={settings}
            height={Math.min(height, 740)}
          />
        </div>
      )}
    </>
  );
}

const NONE: ShownTrial[] = [];

function nothingToDraw({ logX, logY, key }: Settings, trials: ShownTrial[]): string {
  if (!trials.length) return "No trial is shown: none has ended with a value or runs, and none is selected.";
  if (logX || logY) return "No point has a place on the logarithmic axes.";
  return key
    ? `None of these trials has reported numbers as ${key}.`
    : "None of these trials has reported a number yet.";
}

function useLines(
  trials: readonly ShownTrial[],
  curves: ReadonlyMap<number, { x: ArrayLike<number>; y: ArrayLike<number> }> | undefined,
  { weight, x }: Settings,
): Line[] {
  const styles = useRef<ReadonlyMap<number, number>>(new Map());
  const attempts = useAttempts(trials);
  return useMemo(() => {
    const drawn = trials.filter(({ no }) => curves?.get(no)?.x.length);
    styles.current = assignStyles(
      drawn.map(({ no }) => no),
      styles.current,
    );
    return drawn.flatMap((trial) => {
      const raw = curves?.get(trial.no);
      if (!raw) return [];
      const smoothed = weight > 0 ? { x: raw.x, y: smooth(raw.y, weight) } : raw;
      const marks = marksOf(raw, x, attempts.get(trial.no) ?? []);
      const name = `trial ${trial.no}, ${statusWord(trial.status)}`;
      return [{ no: trial.no, name, style: styles.current.get(trial.no) ?? 0, raw, smoothed, marks }];
    });
  }, [trials, curves, weight, x, attempts]);
}

type Spans = { x: { from: number | null; to: number | null }; y: { from: number | null; to: number | null } };

/** What the axes span: what was enlarged, or all of the curves and of the density. Null: there is nothing to draw. */
function useRanges(lines: Line[], density: Spans | null, { logX, logY, view }: Settings): [Range, Range] | null {
  return useMemo(() => {
    const fits = view && !(logX && view[0][0] <= 0) && !(logY && view[1][0] <= 0);
    const curves = lines.map((line) => line.raw);
    const x = union(rangeOfX(curves, logX), density?.x);
    const y = union(rangeOfY(curves, logY), density?.y);
    if (!x || !y) return null;
    return fits ? view : [x, y];
  }, [lines, density, logX, logY, view]);
}

function union(range: Range | null, span: Spans["x"] | undefined): Range | null {
  if (span?.from == null || span.to == null) return range;
  return range ? [Math.min(range[0], span.from), Math.max(range[1], span.to)] : [span.from, span.to];
}

interface ControlsProps {
  experiment: Experiment;
  settings: Settings;
  ranges: [x: Range, y: Range] | null;
}

function Controls({ experiment, settings, ranges }: ControlsProps) {
  const { set, key, x, log, logX, logY, isRunning, isAll } = settings;
  const keys = useMetricKeys(experiment.id, isOver(experiment));
  const offered = key && !keys.includes(key) ? [...keys, key] : keys;
  const toggle = (axis: string) => set.log(log.includes(axis) ? log.replace(axis, "") : [...log, axis].sort().join(""));
  return (
    <div className="bar curves-bar">
      <label>
        best
        <select value={settings.top} onChange={(event) => set.top(event.target.value)}>
          {TOP_CHOICES.map((choice) => (
            <option key={choice} value={choice}>
              {choice || "none"}
            </option>
          ))}
        </select>
      </label>
      <Check label="running" isOn={isRunning} onChange={(isOn) => set.running(isOn ? "yes" : "no")} />
      <TrialsField text={settings.trialsText} onChange={set.trials} />
      <Check label="density of all" isOn={isAll} onChange={(isOn) => settings.setAll(isOn ? "yes" : "no")} />
      {offered.length > 0 && (
        <label>
          metric
          <select value={key} onChange={(event) => set.key(event.target.value)}>
            <option value="">default</option>
            {offered.map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        </label>
      )}
      <label>
        over
        <select value={x} onChange={(event) => set.x(event.target.value)}>
          {X_KINDS.map(([kind, word]) => (
            <option key={kind} value={kind}>
              {word}
            </option>
          ))}
        </select>
      </label>
      <Check label="log x" keys="l x" isOn={logX} onChange={() => toggle("x")} isDisabled={x === "time"} />
      <Check label="log y" keys="l y" isOn={logY} onChange={() => toggle("y")} />
      <Smoothing weight={settings.weight} onChange={settings.setSmooth} />
      {ranges && <Zoom settings={settings} ranges={ranges} />}
    </div>
  );
}

/** How much of the range is shown next: by what it is multiplied, and by how much of itself it moves right and up. */
const ZOOMS: [sign: string, name: string, keys: string, scale: number, right: number, up: number][] = [
  ["+", "Enlarge", "+", 0.5, 0, 0],
  ["−", "Show more", "-", 2, 0, 0],
  ["←", "Move left", "Shift+ArrowLeft", 1, -0.25, 0],
  ["→", "Move right", "Shift+ArrowRight", 1, 0.25, 0],
  ["↑", "Move up", "Shift+ArrowUp", 1, 0, 0.25],
  ["↓", "Move down", "Shift+ArrowDown", 1, 0, -0.25],
];

/** The part of the chart that is enlarged, for the keyboard. */
function Zoom({ settings, ranges: [x, y] }: { settings: Settings; ranges: [x: Range, y: Range] }) {
  const { view, setView, logX, logY } = settings;
  return (
    <span className="zoom">
      {ZOOMS.filter(([, , , scale]) => view || scale < 1).map(([sign, name, keys, scale, right, up]) => (
        <button
          key={keys}
          type="button"
          aria-label={name}
          title={name}
          data-keys={keys}
          onClick={() => setView(viewText([rescaled(x, logX, scale, right), rescaled(y, logY, scale, up)]))}
        >
          {sign}
        </button>
      ))}
      {view && (
        <button type="button" data-keys="0" onClick={() => setView("")}>
          Show all
        </button>
      )}
    </span>
  );
}

function Check(props: {
  label: string;
  isOn: boolean;
  onChange: (isOn: boolean) => void;
  isDisabled?: boolean;
  keys?: string;
}) {
  return (
    <label>
      <input
        type="checkbox"
        data-keys={props.keys}
        checked={props.isOn}
        disabled={props.isDisabled}
        onChange={(event) => props.onChange(event.target.checked)}
      />
      {props.label}
    </label>
  );
}

function TrialsField({ text, onChange }: { text: string; onChange: (text: string) => void }) {
  const [draft, setDraft] = useDraft(text, onChange, TYPING_MILLISECONDS);
  return (
    <label>
      trials
      <input
        className="numbers"
        inputMode="numeric"
        placeholder="17, 4, 20-22"
        autoComplete="off"
        value={draft}
        onChange={(event) => setDraft(event.target.value)}
      />
    </label>
  );
}

const SLIDING_MILLISECONDS = 60; // a browser refuses to change the address much more often

function Smoothing({ weight, onChange }: { weight: number; onChange: (text: string) => void }) {
  const [draft, setDraft] = useDraft(String(weight), onChange, SLIDING_MILLISECONDS);
  return (
    <label>
      smoothing
      <input
        type="range"
        min={0}
        max={0.99}
        step={0.01}
        value={draft}
        onChange={(event) => setDraft(event.target.value)}
      />
      <output>{Number(draft).toFixed(2)}</output>
    </label>
  );
}

interface TableProps {
  id: string;
  trials: ShownTrial[];
  lines: Line[];
  hover: Hover;
  settings: Settings;
}

function ShownTable({ id, trials, lines, hover, settings, height }: TableProps & { height: number }) {
  const parameters = useParameters(id, trials);
  const varying = useMemo(() => varyingParameters(parameters), [parameters]);
  const styles = useMemo(() => new Map(lines.map((line) => [line.no, line.style])), [lines]);
  const { selected, set } = settings;
  const select = (no: number) => {
    const next = selected.includes(no) ? selected.filter((each) => each !== no) : [...selected, no];
    set.trials(next.join(","));
  };
  return (
    <div className="curves-table" style={{ maxHeight: height }}>
      <Scroll label="Shown trials">
        <table className="lines">
          <thead>
            <tr>
              <th scope="col" className="number">
                Trial
              </th>
              <th scope="col">
                <span className="hidden">Selected</span>
              </th>
              <th scope="col">Status</th>
              <NumberHeads names={["Value", "Latest", "Points"]} />
              {varying.map((name) => (
                <th key={name} scope="col" title={name}>
                  {name}
                </th>
              ))}
              <th scope="col">Source</th>
            </tr>
          </thead>
          <tbody>
            {trials.map((trial) => (
              <ShownRow
                key={trial.no}
                trial={trial}
                style={styles.get(trial.no)}
                parameters={varying.map((name) => parameters.get(trial.no)?.get(name))}
                names={varying}
                hover={hover}
                isSelected={selected.includes(trial.no)}
                onSelect={() => select(trial.no)}
              />
            ))}
          </tbody>
        </table>
      </Scroll>
    </div>
  );
}

interface RowProps {
  trial: ShownTrial;
  style: number | undefined;
  /** The values of those in which the shown trials differ. */
  parameters: unknown[];
  names: string[];
  hover: Hover;
  isSelected: boolean;
  onSelect: () => void;
}

function ShownRow({ trial, style, parameters, names, hover, isSelected, onSelect }: RowProps) {
  const isPointedAt = useIsPointedAt(hover, trial.no);
  const row = useRef<HTMLTableRowElement>(null);
  useEffect(() => {
    const [element, box] = [row.current, row.current?.closest<HTMLElement>(".scroll")];
    if (!isPointedAt || !hover.isFromChart || !element || !box) return;
    const [top, bottom] = [element.offsetTop - element.offsetHeight, element.offsetTop + element.offsetHeight];
    if (top < box.scrollTop) box.scrollTop = top;
    else if (bottom > box.scrollTop + box.clientHeight) box.scrollTop = bottom - box.clientHeight;
  }, [isPointedAt, hover]);
  const [point, leave] = [() => hover.point(trial.no), () => hover.point(null)];
  return (
    <tr ref={row} className={isPointedAt ? "lit" : undefined} onMouseEnter={point} onMouseLeave={leave}>
      <th scope="row" className="number">
        <Swatch style={style} />
        <Link href={`/trials/${trial.id}`} data-row onFocus={point} onBlur={leave}>
          {trial.no}
        </Link>
      </th>
      <td>
        <input
          type="checkbox"
          aria-label={`Keep trial ${trial.no} selected`}
          checked={isSelected}
          onChange={onSelect}
        />
      </td>
      <td>
        <Status status={trial.status} />
      </td>
      <td className="number">{formatNumber(trial.value)}</td>
      <td className="number">{formatNumber(trial.latest)}</td>
      <td className="number">{formatNumber(trial.reports)}</td>
      {parameters.map((value, i) => (
        <td key={names[i]} className="name" title={formatParameter(value)}>
          {value === undefined ? "" : formatParameter(value)}
        </td>
      ))}
      <td>
        {trial.source === "algorithm" ? "" : trial.source} {trial.origin}
        {trial.jobs > 1 && ` ${countOf(trial.jobs, "attempt")}`}
      </td>
    </tr>
  );
}

/** How the curve of a trial is drawn. */
function Swatch({ style }: { style: number | undefined }) {
  if (style === undefined) return null;
  const { color, dash } = lineStyle(style);
  return (
    <svg className="swatch" viewBox="0 0 24 4" aria-hidden="true">
      <path d="M0 2h24" stroke={`var(${color})`} strokeDasharray={dash.join(" ") || undefined} />
    </svg>
  );
}
