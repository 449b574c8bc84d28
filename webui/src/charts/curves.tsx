// The curves of several trials, over the density of all of them.

import { useCallback, useMemo, useRef } from "react";
import type uPlot from "uplot";
import type { Curve, Density } from "../api/curves";
import type { XKind } from "../api/shown-curves";
import { formatDuration, formatNumber } from "../format";
import type { Hover } from "../state/hover";
import { color } from "./colors";
import { type Axis, nearest, project, type Range, toPixel } from "./geometry";
import { Plot, type PlotData, type PlotOptions } from "./plot";
import { lineStyle } from "./styles";

/** A curve as it is drawn. */
export interface Line {
  no: number;
  /** What it is called when it is pointed at. */
  name: string;
  style: number;
  raw: Curve;
  /** The same smoothed, or itself. */
  smoothed: Curve;
  /** The places of points with which another attempt begins, and with a clone another trial's. */
  marks: { point: number; isClone: boolean }[];
}

export interface CurvesView {
  lines: Line[];
  density: Density | null;
  x: Range;
  y: Range;
}

interface CurvesChartProps extends CurvesView {
  xKind: XKind;
  logX: boolean;
  logY: boolean;
  hover: Hover;
  height: number;
  label: string;
  onZoom: (x: Range, y: Range) => void;
  onReset: () => void;
  onOpen: (no: number) => void;
}

const X_LABELS: Record<XKind, string> = { step: "step", seconds: "time since the start", time: "time" };
const REACH_PIXELS = 40;
const CLICK_PIXELS = 4;
const ROOM_FOR_LABELS = 44;

/** The newest properties, and what was computed from them for the present size. */
interface Scene {
  props: CurvesChartProps;
  image: { of: Density; canvas: HTMLCanvasElement } | null;
  paths: { smoothed: Float32Array[] };
}

export function CurvesChart(props: CurvesChartProps) {
  const { xKind, logX, logY, hover, height, label, x, y } = props;
  const scene = useRef<Scene>({ props, image: null, paths: { smoothed: [] } });
  scene.current.props = props;
  // Made anew with each change of what is drawn: then uPlot draws again.
  // biome-ignore lint/correctness/useExhaustiveDependencies: as it says
  const data = useMemo((): PlotData => [[...x], [...y]], [x, y, props.lines, props.density]);
  const options = useCallback(
    (): PlotOptions => curvesOptions(scene.current, hover, { xKind, logX, logY }),
    [hover, xKind, logX, logY],
  );
  return <Plot data={data} options={options} height={height} label={label} />;
}

interface Axes {
  xKind: XKind;
  logX: boolean;
  logY: boolean;
}

function curvesOptions(scene: Scene, hover: Hover, { xKind, logX, logY }: Axes): PlotOptions {
  const colors = {
    card: color("--card"),
    text: color("--text"),
    density: color("--soft"),
    lines: Array.from({ length: 8 }, (_, i) => color(lineStyle(i).color)),
  };
  return {
    xLabel: X_LABELS[xKind],
    xText: xKind === "seconds" ? durationText : xKind === "time" ? timeText : undefined,
    xSteps: xKind === "seconds" ? WHOLE_DURATIONS : undefined,
    padding: [8, ROOM_FOR_LABELS, 0, 0],
    scales: {
      x: { time: xKind === "time", distr: logX ? 3 : 1, range: () => scene.props.x },
      y: { distr: logY ? 3 : 1, range: () => scene.props.y },
    },
    cursor: { x: false, y: false, points: { show: false }, drag: { x: true, y: true, uni: 24, setScale: false } },
    series: [{}, { show: true, paths: () => null, points: { show: false } }],
    hooks: {
      drawClear: [(plot) => drawDensity(plot, scene, colors.density)],
      draw: [(plot) => drawLines(plot, scene, colors)],
      setSelect: [(plot) => zoom(plot, scene)],
      init: [(plot) => followCursor(plot, scene, hover, colors)],
    },
  };
}

interface Colors {
  card: string;
  text: string;
  lines: string[];
}

function axesOf(plot: uPlot, { props }: Scene): [x: Axis, y: Axis] {
  const { left, top, width, height } = plot.bbox;
  return [
    { range: props.x, isLog: props.logX, pixels: [left, left + width] },
    { range: props.y, isLog: props.logY, pixels: [top + height, top] },
  ];
}

/** The density as a picture: the more curves pass, the darker; on a logarithmic scale, so that a few show, too. */
function pictureOf(density: Density, rgb: string): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  canvas.width = density.width;
  canvas.height = density.height;
  const context = canvas.getContext("2d");
  if (!context) return canvas;
  const [red = 0, green = 0, blue = 0] = rgb.match(/\d+/g)?.map(Number) ?? [];
  const picture = context.createImageData(density.width, density.height);
  const pixels = new Uint32Array(picture.data.buffer);
  const tone = (blue << 16) | (green << 8) | red;
  const scale = 150 / Math.log(density.most + 1);
  for (let i = 0; i < pixels.length; i++) {
    const count = density.counts[i] ?? 0;
    if (count) pixels[i] = (Math.round(20 + Math.log(count + 1) * scale) << 24) | tone;
  }
  context.putImageData(picture, 0, 0);
  return canvas;
}

function drawDensity(plot: uPlot, scene: Scene, rgb: string): void {
  const { density } = scene.props;
  const [from, to, low, high] = [density?.x.from, density?.x.to, density?.y.from, density?.y.to];
  if (!density || from == null || to == null || low == null || high == null) return;
  if (scene.image?.of !== density) scene.image = { of: density, canvas: pictureOf(density, rgb) };
  const [toX, toY] = axesOf(plot, scene).map(toPixel) as [(x: number) => number, (y: number) => number];
  const [x, y] = [toX(from), toY(high)];
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.drawImage(scene.image.canvas, x, y, toX(to) - x, toY(low) - y);
  ctx.restore();
}

function drawLines(plot: uPlot, scene: Scene, colors: Colors): void {
  const { lines } = scene.props;
  const [xAxis, yAxis] = axesOf(plot, scene);
  const { ctx, bbox } = plot;
  scene.paths.smoothed = lines.map((line) => project(line.smoothed, xAxis, yAxis));
  ctx.save();
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  // The best trials are first: they are drawn last, above the others.
  for (let i = lines.length - 1; i >= 0; i--) {
    const line = lines[i] as Line;
    if (line.raw !== line.smoothed) {
      ctx.globalAlpha = 0.22;
      strokeLine(ctx, line, project(line.raw, xAxis, yAxis), colors, 1);
      ctx.globalAlpha = 1;
    }
    strokeLine(ctx, line, scene.paths.smoothed[i] as Float32Array, colors, 1.5);
  }
  ctx.restore();
  labelEnds(plot, scene, colors);
  ctx.restore();
}

function strokeLine(
  ctx: CanvasRenderingContext2D,
  line: Line,
  points: Float32Array,
  colors: Colors,
  width: number,
): void {
  const ratio = devicePixelRatio;
  ctx.strokeStyle = colorOf(line, colors);
  ctx.fillStyle = ctx.strokeStyle;
  ctx.lineWidth = width * ratio;
  ctx.lineJoin = "round";
  ctx.setLineDash(lineStyle(line.style).dash.map((length) => length * ratio));
  ctx.beginPath();
  let isOpen = false;
  for (let i = 0; i + 1 < points.length; i += 2) {
    const [x, y] = [points[i] as number, points[i + 1] as number];
    if (Number.isNaN(x + y)) {
      isOpen = false;
      continue;
    }
    if (isOpen) ctx.lineTo(x, y);
    else ctx.moveTo(x, y);
    // A point with gaps on both sides would not show as a line.
    if (!isOpen && Number.isNaN((points[i + 2] ?? Number.NaN) + (points[i + 3] ?? Number.NaN))) ctx.lineTo(x + 0.1, y);
    isOpen = true;
  }
  ctx.lineCap = "round";
  ctx.stroke();
  ctx.lineCap = "butt";
  ctx.setLineDash([]);
  for (const mark of line.marks) drawMark(ctx, points, mark, colors, (width + 2) * ratio);
}

/** A circle where another attempt begins, a square where a clone does. */
function drawMark(
  ctx: CanvasRenderingContext2D,
  points: Float32Array,
  { point, isClone }: Line["marks"][number],
  colors: Colors,
  size: number,
): void {
  const [x, y] = [points[2 * point] ?? Number.NaN, points[2 * point + 1] ?? Number.NaN];
  if (Number.isNaN(x + y)) return;
  ctx.beginPath();
  if (isClone) ctx.rect(x - size, y - size, 2 * size, 2 * size);
  else ctx.arc(x, y, size, 0, 2 * Math.PI);
  ctx.fillStyle = colors.card;
  ctx.fill();
  ctx.lineWidth = 1.5 * devicePixelRatio;
  ctx.stroke();
}

const LABEL_PIXELS = 11;
const MOST_MOVED_PIXELS = 66;

/** The numbers of the trials at the ends of their curves; those of curves that end together below each other. */
function labelEnds(plot: uPlot, scene: Scene, colors: Colors): void {
  const { ctx, bbox } = plot;
  const ratio = devicePixelRatio;
  const [right, bottom] = [bbox.left + bbox.width, bbox.top + bbox.height];
  ctx.font = `${LABEL_PIXELS * ratio}px system-ui, sans-serif`;
  ctx.textAlign = "left";
  ctx.textBaseline = "middle";
  const ends = scene.props.lines.flatMap((line, i) => {
    const points = scene.paths.smoothed[i] as Float32Array;
    let last = points.length - 2;
    while (last >= 0 && !((points[last] as number) <= right + 0.5 && !Number.isNaN(points[last + 1]))) last -= 2;
    const [x, y] = [points[last] ?? Number.NaN, points[last + 1] ?? Number.NaN];
    return x >= bbox.left && y >= bbox.top && y <= bottom ? [{ line, x: x + 4 * ratio, y }] : [];
  });
  const placed: { x: number; y: number; width: number }[] = [];
  for (const { line, x, y } of ends.sort((a, b) => a.y - b.y)) {
    const text = String(line.no);
    const width = ctx.measureText(text).width;
    const beside = placed.filter((other) => other.x < x + width && x < other.x + other.width);
    const free = Math.max(y, ...beside.map((other) => other.y + LABEL_PIXELS * ratio));
    if (free - y > MOST_MOVED_PIXELS * ratio || free > bottom) continue;
    placed.push({ x, y: free, width });
    ctx.lineWidth = 3 * ratio;
    ctx.strokeStyle = colors.card;
    ctx.strokeText(text, x, free);
    ctx.fillStyle = colorOf(line, colors);
    ctx.fillText(text, x, free);
  }
}

function colorOf(line: Line, colors: Colors): string {
  return colors.lines[line.style % colors.lines.length] ?? colors.text;
}

function zoom(plot: uPlot, { props }: Scene): void {
  const { left, top, width, height } = plot.select;
  if (width <= CLICK_PIXELS && height <= CLICK_PIXELS) return;
  // What spans the whole axis was dragged along the other one only.
  const x: Range = [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")];
  const y: Range = [plot.posToVal(top + height, "y"), plot.posToVal(top, "y")];
  plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  props.onZoom(x, y);
}

/** The nearest curve is highlighted, with its value as text; a click opens its trial. */
function followCursor(plot: uPlot, scene: Scene, hover: Hover, colors: Colors): void {
  const over = plot.over;
  const layer = document.createElement("canvas");
  layer.className = "plot-layer";
  const note = document.createElement("div");
  note.className = "plot-note";
  note.hidden = true;
  over.append(layer, note);
  let point: number | null = null;
  let pressed: [number, number] | null = null;

  const draw = () => highlight(plot, scene, hover.no, { layer, note, point, colors });
  const stopWatching = hover.watch(() => {
    if (!hover.isFromChart) point = null;
    draw();
  });
  const find = (event: MouseEvent) => {
    const box = over.getBoundingClientRect();
    const ratio = devicePixelRatio;
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const place = [x * ratio + plot.bbox.left, y * ratio + plot.bbox.top] as const;
    const found = nearest(scene.paths.smoothed, place[0], place[1], REACH_PIXELS * ratio);
    point = found?.point ?? null;
    const no = found ? (scene.props.lines[found.curve]?.no ?? null) : null;
    note.classList.toggle("left", x > over.clientWidth / 2);
    if (no === hover.no) draw();
    else hover.point(no, true);
    over.classList.toggle("points", no !== null);
  };
  over.addEventListener("mousemove", find);
  over.addEventListener("mouseleave", () => hover.point(null, true));
  over.addEventListener("mousedown", (event) => {
    pressed = [event.clientX, event.clientY];
  });
  over.addEventListener("click", (event) => {
    const moved = pressed ? Math.hypot(event.clientX - pressed[0], event.clientY - pressed[1]) : 0;
    if (moved <= CLICK_PIXELS && hover.no !== null) scene.props.onOpen(hover.no);
  });
  over.addEventListener("dblclick", () => scene.props.onReset());
  plot.hooks.draw?.push(draw);
  plot.hooks.destroy = [...(plot.hooks.destroy ?? []), stopWatching];
}

interface Highlight {
  layer: HTMLCanvasElement;
  note: HTMLElement;
  point: number | null;
  colors: Colors;
}

/** Draws one curve above the others, which are pale meanwhile. */
function highlight(plot: uPlot, scene: Scene, no: number | null, { layer, note, point, colors }: Highlight): void {
  const index = scene.props.lines.findIndex((line) => line.no === no);
  const [line, points] = [scene.props.lines[index], scene.paths.smoothed[index]];
  note.hidden = !line;
  const { left, top, width, height } = plot.bbox;
  if (layer.width !== width || layer.height !== height) [layer.width, layer.height] = [width, height];
  const ctx = layer.getContext("2d");
  if (!ctx) return;
  ctx.clearRect(0, 0, width, height);
  if (!line || !points) return;
  ctx.globalAlpha = 0.6;
  ctx.fillStyle = colors.card;
  ctx.fillRect(0, 0, width, height);
  ctx.globalAlpha = 1;
  ctx.save();
  ctx.translate(-left, -top);
  strokeLine(ctx, line, points, colors, 2.5);
  const place = point ?? line.raw.x.length - 1;
  const [x, y] = [points[2 * place] ?? Number.NaN, points[2 * place + 1] ?? Number.NaN];
  if (!Number.isNaN(x + y)) {
    ctx.beginPath();
    ctx.arc(x, y, 4 * devicePixelRatio, 0, 2 * Math.PI);
    ctx.fillStyle = colorOf(line, colors);
    ctx.fill();
  }
  ctx.restore();
  note.textContent = noteOf(line, place, scene.props.xKind);
}

function noteOf(line: Line, place: number, xKind: XKind): string {
  const [x, raw, smoothed] = [line.raw.x[place], line.raw.y[place], line.smoothed.y[place]];
  const value = line.raw === line.smoothed ? "" : ` · smoothed ${formatNumber(smoothed)}`;
  return `${line.name} · ${xText(x, xKind)}: ${formatNumber(raw)}${value}`;
}

/** Where a point is, in words. */
function xText(x: number | undefined, xKind: XKind): string {
  if (x === undefined || Number.isNaN(x)) return "–";
  if (xKind === "time") return new Date(x * 1000).toLocaleString();
  return xKind === "seconds" ? formatDuration(x) : `step ${formatNumber(x)}`;
}

const WHOLE_DURATIONS = [
  ...[0.001, 0.01, 0.1, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200],
  ...[1, 2, 5, 10, 20, 50, 100, 200, 500].map((days) => days * 86_400),
];

/** A length of time at the axis: 5 min, 1 h. */
function durationText(seconds: number): string {
  return formatDuration(seconds).replace(/\.0(?= s)| 00 (s|min)$| 0 h$/, "");
}

const DAY_SECONDS = 86_400;

/** A moment at the axis: the time of day, and the day where it begins. */
function timeText(seconds: number): string {
  const time = new Date(seconds * 1000);
  const isMidnight = (seconds - time.getTimezoneOffset() * 60) % DAY_SECONDS === 0;
  if (isMidnight) return time.toLocaleDateString(undefined, { month: "short", day: "numeric" });
  const second = time.getSeconds() ? "2-digit" : undefined;
  return time.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", second, hourCycle: "h23" });
}
