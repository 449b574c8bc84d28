// The value of each trial, in the order of their ends, and the best until then.

import { useCallback, useMemo, useRef } from "react";
import uPlot from "uplot";
import { formatNumber } from "../format";
import type { BestPoint } from "../state/best";
import { color, transparent } from "./colors";
import { Plot, type PlotData, type PlotOptions } from "./plot";
import { rangeOf } from "./ranges";

/** More than these are drawn small and pale, so that their density shows. */
const MANY_POINTS = 2000;

interface BestChartProps {
  points: BestPoint[];
  height: number;
}

/** The points that are drawn now. */
type Newest = { current: BestPoint[] };

export function BestChart({ points, height }: BestChartProps) {
  const data = useMemo(() => toData(points), [points]);
  const newest = useRef(points);
  newest.current = points;
  const many = points.length > MANY_POINTS;
  const options = useCallback((): PlotOptions => bestOptions(newest, many), [many]);
  const last = points.at(-1);
  const label = last ? `Best value so far: ${formatNumber(last.best)} after ${points.length} trials with a value` : "";
  return <Plot data={data} options={options} height={height} label={label} />;
}

function toData(points: BestPoint[]): PlotData {
  return [points.map((_, index) => index + 1), points.map((p) => p.value), points.map((p) => p.best)];
}

function bestOptions(newest: Newest, many: boolean): PlotOptions {
  const [busy, good] = [color("--busy"), color("--good")];
  return {
    xLabel: "trials in the order of their ends",
    scales: { x: { time: false }, y: { range: robustRange(newest) } },
    cursor: { y: false, points: { size: 7 }, drag: { x: true, y: false } },
    series: [
      {},
      {
        label: "value",
        paths: () => null,
        points: many
          ? { show: true, size: 2.5, width: 0, fill: transparent(busy, 0.3), stroke: busy }
          : { show: true, size: 4, width: 0, fill: transparent(busy, 0.6), stroke: busy },
      },
      { label: "best", stroke: good, width: 2, points: { show: false }, paths: uPlot.paths.stepped?.({ align: 1 }) },
    ],
    hooks: { init: [(plot) => showHover(plot, newest)] },
  };
}

/** The range of the values without outliers: one diverged trial must not flatten the rest. */
function robustRange(newest: Newest): uPlot.Range.Function {
  return () => {
    const found = newest.current.map((p) => p.value).sort((a, b) => a - b);
    return rangeOf(found);
  };
}

/** A line of text about the trial at the cursor. */
function showHover(plot: uPlot, newest: Newest): void {
  const note = document.createElement("div");
  note.className = "plot-note";
  note.hidden = true;
  plot.over.append(note);
  const point = () => newest.current[plot.cursor.idx ?? -1];
  plot.over.addEventListener("mousemove", () => {
    const found = point();
    note.hidden = !found;
    if (!found) return;
    note.textContent = `trial ${found.number}: ${formatNumber(found.value)} · best ${formatNumber(found.best)}`;
    const isLeft = (plot.cursor.left ?? 0) > plot.over.clientWidth / 2;
    note.style.left = isLeft ? "4px" : "";
    note.style.right = isLeft ? "" : "4px";
  });
  plot.over.addEventListener("mouseleave", () => {
    note.hidden = true;
  });
}
