// Several curves in one chart, told apart by color and by dashes.

import { useCallback, useMemo } from "react";
import { color } from "./colors";
import { Plot, type PlotData, type PlotOptions } from "./plot";

const COLORS = ["--busy", "--held", "--good", "--bad", "--early"];
const DASHES = [[], [7, 4], [2, 3], [10, 3, 2, 3]];

/** The color and the dashes of the curve at this place. */
export function strokeOf(place: number): { name: string; dash: number[] } {
  const name = COLORS[place % COLORS.length] ?? "--busy";
  return { name, dash: DASHES[place % DASHES.length] ?? [] };
}

interface SeveralCurvesProps {
  steps: number[];
  /** Of each curve, at each step. */
  values: (number | null)[][];
  height: number;
  label: string;
}

export function SeveralCurves({ steps, values, height, label }: SeveralCurvesProps) {
  const data = useMemo(() => [steps, ...values] as PlotData, [steps, values]);
  const count = values.length;
  const options = useCallback(
    (): PlotOptions => ({
      xLabel: "step",
      scales: { x: { time: false } },
      cursor: { y: false, points: { size: 6 } },
      series: [
        {},
        ...Array.from({ length: count }, (_, place) => {
          const { name, dash } = strokeOf(place);
          return { stroke: color(name), dash, width: 1.6, spanGaps: true, points: { show: false } };
        }),
      ],
    }),
    [count],
  );
  return <Plot data={data} options={options} height={height} label={label} />;
}

/** A piece of the curve's line, for a table. */
export function LineSample({ place }: { place: number }) {
  const { name, dash } = strokeOf(place);
  return (
    <svg className="line-sample" viewBox="0 0 24 8" aria-hidden="true">
      <line x1="0" y1="4" x2="24" y2="4" stroke={`var(${name})`} strokeWidth="2" strokeDasharray={dash.join(" ")} />
    </svg>
  );
}
