// The machines and their GPUs: who uses what, and whether new trials may come.

import { useEffect, useRef } from "react";
import { Link } from "wouter";
import { nodeActions } from "../api/actions";
import { useNodes } from "../api/queries";
import type { Node } from "../api/schema";
import { Actions } from "../components/actions";
import { Ago, Empty, Scroll, Waiting } from "../components/parts";
import { Status } from "../components/status";
import { capitalized, countOf, formatHours } from "../format";
import { useUrlState } from "../state/url";
import { type Gpu, gpusOf } from "./gpus";
import { NodeHistory } from "./occupancy";

export function Nodes() {
  const found = useNodes();
  const [hours, setHours] = useUrlState("hours", "1");
  useEffect(() => {
    document.title = "Nodes · Proctor";
  }, []);
  const nodes = found.data?.items ?? [];
  const gpus = nodes.flatMap(gpusOf);
  const busy = gpus.filter((gpu) => gpu.heldBy.length).length;
  return (
    <>
      <div className="bar">
        <h1>Nodes</h1>
        <span className="soft">
          {countOf(nodes.length, "node")}
          {gpus.length > 0 && `, ${busy} of ${countOf(gpus.length, "GPU")} in use`}
        </span>
        <span className="spring" />
        <label>
          the last{" "}
          <select value={hours} onChange={(event) => setHours(event.target.value)}>
            {["1", "6", "24"].map((each) => (
              <option key={each} value={each}>
                {each} h
              </option>
            ))}
          </select>
        </label>
      </div>
      {!found.data ? (
        <Waiting error={found.error} what="the nodes" />
      ) : nodes.length === 0 ? (
        <Empty>No nodes yet. They appear with the first experiment that names them.</Empty>
      ) : (
        <div className="stack">
          {nodes.map((node) => (
            <NodePanel key={node.id} node={node} hours={Number(hours) || 1} />
          ))}
        </div>
      )}
    </>
  );
}

function NodePanel({ node, hours }: { node: Node; hours: number }) {
  const place = useRef<HTMLElement>(null);
  useEffect(() => {
    if (window.location.hash === `#${encodeURIComponent(node.id)}`) place.current?.scrollIntoView();
  }, [node.id]);
  const facts = node.facts ?? {};
  const gpus = gpusOf(node);
  const disk = typeof facts.disk_free_mb === "number" ? `${(facts.disk_free_mb / 1024).toFixed(1)} GiB free` : null;
  const notes = Array.isArray(facts.notes) ? facts.notes.map(String) : [];
  return (
    <section ref={place} className="panel" id={node.id} aria-label={`Node ${node.id}`}>
      <div className="bar node">
        <h2>{node.id}</h2>
        <Status status={node.status} />
        {node.hold && <span className="status held">no new jobs: {node.hold}</span>}
        {node.reason && (
          <span className="soft reason" title={node.reason}>
            {capitalized(node.reason)}
          </span>
        )}
        <span className="spring" />
        <Actions actions={nodeActions(node)} />
      </div>
      <p className="facts soft">
        <span>{node.kind}</span>
        <span>{node.address || String(facts.hostname ?? "")}</span>
        <span>{countOf(node.reservations?.length ?? 0, "job")}</span>
        {disk && <span>{disk}</span>}
        <span>{formatHours(node.usage.gpu_hours)} GPU-hours</span>
        <span>{formatHours(node.usage.cpu_hours)} CPU-hours</span>
        {node.seen_at && (
          <span>
            last report <Ago time={node.seen_at} />
          </span>
        )}
        {node.experiments?.map((id) => (
          <Link key={id} href={`/experiments/${id}`}>
            {id}
          </Link>
        ))}
      </p>
      {notes.map((note) => (
        <p key={note} className="note">
          {note}
        </p>
      ))}
      {gpus.length ? (
        <GpuTable node={node} gpus={gpus} />
      ) : (
        <Jobs
          node={node}
          why={Array.isArray(facts.devices) ? String(facts.driver_note || "no GPUs") : "not reported yet"}
        />
      )}
      <NodeHistory node={node} hours={hours} />
    </section>
  );
}

function GpuTable({ node, gpus }: { node: Node; gpus: Gpu[] }) {
  return (
    <Scroll label={`GPUs of ${node.id}`}>
      <table className="lines">
        <thead>
          <tr>
            <th scope="col" className="number">
              GPU
            </th>
            <th scope="col">Name</th>
            <th scope="col">Memory</th>
            <th scope="col">Load</th>
            <th scope="col">Held by trials</th>
            <th scope="col" className="rest">
              Other processes
            </th>
          </tr>
        </thead>
        <tbody>
          {gpus.map((gpu) => (
            <tr key={gpu.uuid}>
              <th scope="row" className="number" title={gpu.uuid}>
                {gpu.index}
              </th>
              <td>{gpu.name}</td>
              <td>
                <Share value={gpu.memoryUsed} of={gpu.memoryTotal} />
                {memory(gpu)}
              </td>
              <td>
                <Share value={gpu.utilization} of={100} />
                {gpu.utilization === null ? "–" : `${gpu.utilization} %`}
              </td>
              <td className="name" title={trialsOf(gpu).join("\n")}>
                {trialsOf(gpu).join("; ") || <span className="soft">none</span>}
              </td>
              <td className="rest" title={gpu.foreign.join("\n")}>
                {gpu.foreign.join("; ") || <span className="soft">none</span>}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

function trialsOf({ heldBy, foreign }: Gpu): string[] {
  return heldBy.slice(0, heldBy.length - foreign.length);
}

function memory({ memoryUsed, memoryTotal }: Gpu): string {
  if (memoryUsed === null || memoryTotal === null) return "–";
  return `${(memoryUsed / 1024).toFixed(1)} of ${(memoryTotal / 1024).toFixed(1)} GiB`;
}

/** A short bar; the number stands beside it. */
function Share({ value, of }: { value: number | null; of: number | null }) {
  const share = value === null || !of ? 0 : Math.min(100, (value / of) * 100);
  return (
    <svg className="share" viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true">
      <rect className="busy" width={share} height="1" />
    </svg>
  );
}

/** The jobs of a node without GPUs. */
function Jobs({ node, why }: { node: Node; why: string }) {
  const held = node.reservations ?? [];
  return (
    <p className="facts soft">
      <span>{capitalized(why)}.</span>
      {held.map((each) => (
        <span key={each.job_id}>{each.holder}</span>
      ))}
    </p>
  );
}
