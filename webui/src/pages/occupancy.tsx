// Who held which GPU of a node when, and how busy the node was.

import { useMemo } from "react";
import { Link } from "wouter";
import { useOccupancy } from "../api/queries";
import type { Node, NodeOccupancy } from "../api/schema";
import { CurveChart } from "../charts/lines";
import { Waiting } from "../components/parts";
import { formatDuration, formatTime, toSeconds } from "../format";
import { type Bar, heldShare, lanesOf } from "../state/occupancy";

const CHART_PIXELS = 110;
const POINTS = 240;

/** The timeline and the charts of one node. */
export function NodeHistory({ node, hours }: { node: Node; hours: number }) {
  const { data, error } = useOccupancy(node.id, hours, POINTS);
  if (!data) return <Waiting error={error} what="who used it" />;
  return (
    <div className="history">
      <Timeline found={data} label={`Who held what on ${node.id}`} />
      <Charts found={data} nodeId={node.id} />
    </div>
  );
}

function Timeline({ found, label }: { found: NodeOccupancy; label: string }) {
  const lanes = useMemo(() => lanesOf(found), [found]);
  if (!found.jobs.length) return <p className="soft">No trial ran on it in this time.</p>;
  return (
    <section className="timeline" aria-label={label}>
      {lanes.map((lane) => (
        <div key={lane.key} className="lane">
          <span className="lane-name" title={lane.key}>
            {lane.name}
          </span>
          <span className="lane-bars">
            {lane.bars.map((bar) => (
              <Link
                key={bar.job.job_id}
                href={`/trials/${bar.job.trial_id}`}
                className={`bar-job ${bar.job.ended_at ? "" : "now"} tint-${tintOf(bar.job.experiment_id)}`}
                title={describe(bar)}
                aria-label={describe(bar)}
                ref={(element) => place(element, bar)}
              >
                {bar.to - bar.from > 0.03 ? bar.job.sequence_id : ""}
              </Link>
            ))}
          </span>
          <span className="lane-share number">{Math.round(heldShare(lane) * 100)} %</span>
        </div>
      ))}
      {found.complete_since && (
        <p className="soft">Jobs that ended before {formatTime(toSeconds(found.complete_since))} are left out.</p>
      )}
    </section>
  );
}

/** Where a bar is in its row. */
function place(element: HTMLElement | null, bar: Bar): void {
  if (!element) return;
  element.style.left = `${bar.from * 100}%`;
  element.style.width = `${Math.max(0.2, (bar.to - bar.from) * 100)}%`;
}

function describe({ job }: Bar): string {
  const from = toSeconds(job.started_at);
  const lasted = job.ended_at ? `, ${formatDuration(Math.max(0, toSeconds(job.ended_at) - from))}` : ", runs";
  const how = job.end_reason ? `, ${job.end_reason.replaceAll("_", " ").toLowerCase()}` : "";
  return `Trial ${job.sequence_id} of ${job.experiment_id}: from ${formatTime(from)}${lasted}${how}`;
}

/** One of four tints for an experiment, so that neighbors of different experiments differ. */
function tintOf(experimentId: string): number {
  let sum = 0;
  for (const letter of experimentId) sum = (sum * 31 + (letter.codePointAt(0) ?? 0)) % 1009;
  return sum % 4;
}

function Charts({ found, nodeId }: { found: NodeOccupancy; nodeId: string }) {
  const minutes = useMemo(() => {
    const end = toSeconds(found.until);
    return found.times.map((time) => (toSeconds(time) - end) / 60);
  }, [found]);
  const memory = useMemo(() => found.memory_used_mb.map((used) => (used === null ? null : used / 1024)), [found]);
  const gpus = useMemo(() => meansOf(found), [found]);
  if (minutes.length < 2) return <p className="soft">Load and memory appear after some samples, one every 10 s.</p>;
  const total = found.memory_total_mb === null ? "" : ` of ${(found.memory_total_mb / 1024).toFixed(1)}`;
  const charts: [string, (number | null)[]][] = [
    [`Load${found.cpus === null ? "" : `, ${found.cpus} processors`}`, found.load],
    [`Memory, GiB${total}`, memory],
    ["GPU load, mean, %", gpus.load],
    ["GPU memory, sum, GiB", gpus.memory],
  ];
  return (
    <div className="small-charts">
      {charts
        .filter(([, values]) => values.some((value) => value !== null))
        .map(([title, values]) => (
          <figure key={title}>
            <figcaption>{title}</figcaption>
            <CurveChart x={minutes} y={values} xLabel="min" height={CHART_PIXELS} label={`${title}, of ${nodeId}`} />
          </figure>
        ))}
    </div>
  );
}

function meansOf(found: NodeOccupancy): { load: (number | null)[]; memory: (number | null)[] } {
  const at = (values: (number | null)[]) => values.filter((value) => value !== null);
  const sum = (values: number[]) => values.reduce((total, value) => total + value, 0);
  const load: (number | null)[] = [];
  const memory: (number | null)[] = [];
  for (let i = 0; i < found.times.length; i++) {
    const loads = at(found.gpus.map((gpu) => gpu.utilization[i] ?? null));
    const used = at(found.gpus.map((gpu) => gpu.memory_used_mb[i] ?? null));
    load.push(loads.length ? sum(loads) / loads.length : null);
    memory.push(used.length ? sum(used) / 1024 : null);
  }
  return { load, memory };
}

/** How much of the last hour the jobs of an experiment held the GPUs, or the machine, of a node. */
export function MiniTimeline({ nodeId, experimentId }: { nodeId: string; experimentId: string }) {
  const { data } = useOccupancy(nodeId, 1, 1);
  const lanes = useMemo(() => (data ? lanesOf(data) : []), [data]);
  if (!lanes.length) return null;
  const mean = lanes.reduce((sum, lane) => sum + heldShare(lane, experimentId), 0) / lanes.length;
  return (
    <span className="soft" title="How much of the last hour its trials held the GPUs or slots of this machine">
      {Math.round(mean * 100)} % of 1 h
    </span>
  );
}
