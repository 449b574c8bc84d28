// Curves over steps.

import { useCallback, useMemo } from "react";
import { formatNumber } from "../format";
import { color } from "./colors";
import { Plot, type PlotData, type PlotOptions } from "./plot";

interface CurveChartProps {
  x: number[];
  y: (number | null)[];
  xLabel: string;
  height: number;
  label: string;
}

/** One curve. */
export function CurveChart({ x, y, xLabel, height, label }: CurveChartProps) {
  const data = useMemo((): PlotData => [x, y], [x, y]);
  const options = useCallback(
    (): PlotOptions => ({
      xLabel,
      scales: { x: { time: false } },
      cursor: { y: false, points: { size: 7 } },
      series: [{}, { stroke: color("--busy"), width: 1.6, points: { size: 4 } }],
      hooks: { init: [(plot) => showValue(plot, xLabel)] },
    }),
    [xLabel],
  );
  return <Plot data={data} options={options} height={height} label={label} />;
}

/** The value at the cursor as text. */
function showValue(plot: uPlot, xLabel: string): void {
  const note = document.createElement("div");
  note.className = "plot-note";
  note.hidden = true;
  plot.over.append(note);
  plot.over.addEventListener("mousemove", () => {
    const { idx, left } = plot.cursor;
    const [x, y] = [plot.data[0][idx ?? -1], plot.data[1]?.[idx ?? -1]];
    note.hidden = x === undefined;
    note.textContent = `${xLabel} ${formatNumber(x)}: ${formatNumber(y)}`;
    const isRight = (left ?? 0) > plot.over.clientWidth / 2;
    note.style.left = isRight ? "4px" : "";
    note.style.right = isRight ? "" : "4px";
  });
  plot.over.addEventListener("mouseleave", () => {
    note.hidden = true;
  });
}
