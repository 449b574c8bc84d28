// uPlot as a component: as wide as its place, drawn again in the reader's colors.

import { useEffect, useRef } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { formatNumber } from "../format";
import { logTicks } from "../state/relations";
import { color, useDark } from "./colors";

export type PlotData = uPlot.AlignedData;

/** What a chart adds to the common options; made anew for each theme, because it names colors. */
export type PlotOptions = Pick<uPlot.Options, "series" | "scales" | "hooks" | "cursor" | "bands" | "padding"> & {
  xLabel: string;
  /** A number at the x axis as text. */
  xText?: (value: number) => string;
  /** The distances that numbers at the x axis may have. */
  xSteps?: number[];
};

interface PlotProps {
  data: PlotData;
  /** Makes the options; has to be the same function as long as they are the same. */
  options: () => PlotOptions;
  height: number;
  label: string;
}

/** A chart. `label` says what it shows to those who do not see it. */
export function Plot({ data, options, height, label }: PlotProps) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const newest = useRef(data);
  newest.current = data;
  const dark = useDark();

  useEffect(() => {
    const element = place.current;
    if (!element) return;
    void dark; // other colors
    const made = new uPlot(withDefaults(options(), element.clientWidth, height), newest.current, element);
    plot.current = made;
    const resize = new ResizeObserver(() => {
      if (element.clientWidth > 0) made.setSize({ width: element.clientWidth, height });
    });
    resize.observe(element);
    return () => {
      resize.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [options, height, dark]);

  useEffect(() => {
    if (plot.current && plot.current.data !== data) plot.current.setData(data);
  }, [data]);

  return <div className="plot" ref={place} role="img" aria-label={label} style={{ height }} />;
}

function withDefaults(options: PlotOptions, width: number, height: number): uPlot.Options {
  const grid = { stroke: color("--grid"), width: 1 };
  const axis = { stroke: color("--soft"), font: "11px system-ui, sans-serif", grid, ticks: { show: false } };
  const { xLabel, xText, xSteps, ...rest } = options;
  const xValues = xText && ((_: uPlot, found: (number | null)[]) => found.map((x) => (x === null ? "" : xText(x))));
  const splitsOf = (scale: "x" | "y") =>
    rest.scales?.[scale]?.distr === 3
      ? (_: uPlot, _axis: number, low: number, high: number) => logTicks(low, high)
      : undefined;
  return {
    width: Math.max(width, 80),
    height,
    padding: [8, 8, 0, 0],
    legend: { show: false },
    ...rest,
    axes: [
      {
        ...axis,
        label: xLabel,
        labelSize: 16,
        labelFont: "11px system-ui, sans-serif",
        labelGap: 0,
        size: 22,
        gap: 3,
        values: xValues,
        splits: splitsOf("x"),
        incrs: xSteps,
      },
      { ...axis, size: sizeOfNumbers, gap: 4, splits: splitsOf("y"), values: (_, found) => found.map(tickText) },
    ],
  };
}

/** The place that the numbers of the y axis need. */
function sizeOfNumbers(_: uPlot, values: string[] | null): number {
  const longest = Math.max(3, ...(values ?? []).map((text) => text.length));
  return longest * 6.4 + 10;
}

function tickText(value: number | null): string {
  if (value === null) return "";
  const text = formatNumber(Number(value.toPrecision(10)));
  return text.includes(".") && !text.includes("e") ? text.replace(/\.?0+$/, "") : text;
}
