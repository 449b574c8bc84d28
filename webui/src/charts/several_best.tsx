// The best values so far of several experiments in one chart, told apart by color and dashes.

import { useCallback, useMemo, useRef } from "react";
import uPlot from "uplot";
import { formatNumber } from "../format";
import { aligned, type BestLine } from "../state/compared";
import { color } from "./colors";
import { Plot, type PlotData, type PlotOptions } from "./plot";
import { rangeWith } from "./ranges";
import { strokeOf } from "./several";

interface SeveralBestProps {
  names: string[];
  lines: BestLine[];
  /** What `x` of a line is divided by. */
  unit: number;
  xLabel: string;
  height: number;
}

export function SeveralBest({ names, lines, unit, xLabel, height }: SeveralBestProps) {
  const data = useMemo((): PlotData => {
    const { x, best } = aligned(lines);
    return [x.map((place) => place / unit), ...best];
  }, [lines, unit]);
  const newest = useRef(names);
  newest.current = names;
  const count = lines.length;
  const options = useCallback(
    (): PlotOptions => ({
      xLabel,
      scales: { x: { time: false }, y: { range: (plot) => rangeOfBest(plot.data) } },
      cursor: { y: false, points: { size: 7 }, drag: { x: true, y: false } },
      series: [
        {},
        ...Array.from({ length: count }, (_, place) => {
          const { name, dash } = strokeOf(place);
          const paths = uPlot.paths.stepped?.({ align: 1 });
          return { stroke: color(name), dash, width: 2, points: { show: isAlone, size: 6 }, paths };
        }),
      ],
      hooks: { init: [(plot) => showValues(plot, newest, xLabel)] },
    }),
    [count, xLabel],
  );
  const label = `Best value so far of ${names.join(", ")}; the table has the newest`;
  return <Plot data={data} options={options} height={height} label={label} />;
}

/** Without the first poor values, but with the newest best value of each. */
function rangeOfBest([, ...lines]: PlotData): [number, number] {
  const values = lines.map((line) => [...line].filter((value) => typeof value === "number"));
  return rangeWith(
    values.flat().sort((a, b) => a - b),
    values.flatMap((each) => each.at(-1) ?? []),
  );
}

/** A line of one value would not be seen. */
function isAlone(plot: uPlot, series: number): boolean {
  return (plot.data[series] ?? []).filter((value) => typeof value === "number").length === 1;
}

/** The best of each at the cursor. */
function showValues(plot: uPlot, names: { current: string[] }, xLabel: string): void {
  const note = document.createElement("div");
  note.className = "plot-note lined";
  note.hidden = true;
  plot.over.append(note);
  plot.over.addEventListener("mousemove", () => {
    const at = plot.cursor.idx ?? -1;
    const x = plot.data[0][at];
    const found = names.current.flatMap((name, place) => {
      const value = plot.data[place + 1]?.[at];
      return typeof value === "number" ? [`${name}: ${formatNumber(value)}`] : [];
    });
    note.hidden = x === undefined || found.length === 0;
    note.textContent = [`${formatNumber(x)} ${xLabel}`, ...found].join("\n");
    const isLeft = (plot.cursor.left ?? 0) > plot.over.clientWidth / 2;
    note.style.left = isLeft ? "4px" : "";
    note.style.right = isLeft ? "auto" : "4px";
  });
  plot.over.addEventListener("mouseleave", () => {
    note.hidden = true;
  });
}
