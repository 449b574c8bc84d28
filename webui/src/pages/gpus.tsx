// The GPUs of a node: who holds which, at a glance.

import type { Node } from "../api/schema";

/** A GPU as its keeper reported it. */
export interface Gpu {
  uuid: string;
  index: number;
  name: string;
  utilization: number | null;
  memoryUsed: number | null;
  memoryTotal: number | null;
  /** What holds it, the last ones are processes that are not of trials. */
  heldBy: string[];
  /** The last ones of `heldBy`, in short. */
  foreign: string[];
}

/** The GPUs among what a node's keeper reported; none where it has reported none. */
export function gpusOf(node: Node): Gpu[] {
  const devices = node.facts?.devices;
  return Array.isArray(devices) ? devices.map(toGpu) : [];
}

function toGpu(reported: unknown): Gpu {
  const device = (typeof reported === "object" && reported !== null ? reported : {}) as Record<string, unknown>;
  const number = (name: string) => (typeof device[name] === "number" ? (device[name] as number) : null);
  const holders = device.held_by;
  const foreign = Array.isArray(device.foreign) ? device.foreign : [];
  return {
    uuid: String(device.uuid ?? ""),
    index: number("index") ?? 0,
    name: String(device.name ?? ""),
    utilization: number("utilization"),
    memoryUsed: number("memory_used_mb"),
    memoryTotal: number("memory_total_mb"),
    heldBy: Array.isArray(holders) ? holders.map(String) : [],
    foreign: foreign.map((process) => `pid ${process?.pid}, ${process?.memory_mb} MiB`),
  };
}

/** One cell for each GPU: filled where this experiment holds it, half where something else does. */
export function GpuCells({ gpus, experimentId }: { gpus: Gpu[]; experimentId: string }) {
  return (
    <span className="cells">
      {gpus.map((gpu) => (
        <span key={gpu.uuid} className={`cell ${usage(gpu, experimentId)}`} title={describe(gpu)}>
          <span className="hidden">{describe(gpu)}</span>
        </span>
      ))}
    </span>
  );
}

function usage(gpu: Gpu, experimentId: string): "ours" | "taken" | "free" {
  if (gpu.heldBy.some((holder) => holder.includes(experimentId))) return "ours";
  return gpu.heldBy.length ? "taken" : "free";
}

function describe(gpu: Gpu): string {
  const load = gpu.utilization === null ? "" : `, load ${gpu.utilization} %`;
  return `GPU ${gpu.index} (${gpu.name}): ${gpu.heldBy.join("; ") || "no trial"}${load}`;
}
