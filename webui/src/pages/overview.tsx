// One experiment on one screen: how good, how far, what runs, what fails, and where.

import { type ReactNode, useMemo } from "react";
import { Link } from "wouter";
import { useFailures, useNodes, useTable, useTrialsIn } from "../api/queries";
import type { Cause, Experiment, Node, Trial } from "../api/schema";
import { BestChart } from "../charts/best";
import { Elapsed, Empty, Figure, Panel, ParameterLine, Scroll, Waiting } from "../components/parts";
import { Status, StatusBar } from "../components/status";
import {
  capitalized,
  countOf,
  formatCpuHours,
  formatDuration,
  formatHours,
  formatNumber,
  formatParameter,
  statusWord,
} from "../format";
import { BEST_TABLE, bestPoints } from "../state/best";
import { serverTimeAt, useNow } from "../state/clock";
import { flatParameters } from "../state/parameters";
import { elapsedSeconds, endedTrials, isOver, timeLeft, totalTrials } from "../state/progress";
import { SAVED } from "../state/root";
import { ExperimentPage } from "./experiment";
import { GpuCells, gpusOf } from "./gpus";
import { MiniTimeline } from "./occupancy";
import { Scheduler } from "./scheduler";

const CHART_HEIGHT = 300;
const MOST_RUNNING = 12;
const MOST_CAUSES = 6;
/** What ends the experiment first, by the names of `timeLeft`. */
const LIMITS = { trials: "at this pace", time: "until the time limit", gpuHours: "until the limit of GPU-hours" };

export function Overview({ id }: { id: string }) {
  return (
    <ExperimentPage id={id}>
      {(experiment, readAt) => (
        <>
          <Figures experiment={experiment} readAt={readAt} />
          <div className="overview">
            <div>
              <BestSoFar experiment={experiment} />
              <Running experiment={experiment} />
              <Scheduler experiment={experiment} />
            </div>
            <div>
              <BestTrial experiment={experiment} />
              <Failures experiment={experiment} />
              {!SAVED && <Machines experiment={experiment} />}
            </div>
          </div>
        </>
      )}
    </ExperimentPage>
  );
}

function Figures({ experiment, readAt }: { experiment: Experiment; readAt: number }) {
  const { best, objective } = experiment;
  const ended = endedTrials(experiment);
  const total = totalTrials(experiment);
  const running = experiment.trial_counts.RUNNING ?? 0;
  return (
    <dl className="figures">
      <Figure
        name={`best ${objective.metric === "default" ? "value" : objective.metric}, ${objective.direction}d`}
        below={best && <Link href={`/trials/${best.trial_id}`}>trial {best.sequence_id}</Link>}
      >
        {formatNumber(best?.value)}
      </Figure>
      <Figure
        name="trials ended"
        below={<StatusBar counts={experiment.trial_counts} total={Math.max(experiment.max_trial_number ?? 0, total)} />}
      >
        {ended.toLocaleString("en-US")} {of(experiment.max_trial_number?.toLocaleString("en-US"))}
      </Figure>
      <Figure name="running" below={`${formatNumber(experiment.trial_counts.WAITING ?? 0)} waiting`}>
        {running} {of(experiment.trial_concurrency)}
      </Figure>
      <Times experiment={experiment} readAt={readAt} />
      <Hours experiment={experiment} />
      <Figure name="in each status">
        <Counts experiment={experiment} />
      </Figure>
    </dl>
  );
}

function of(limit: number | string | null | undefined): ReactNode {
  return limit === null || limit === undefined ? null : <small>of {limit}</small>;
}

/** GPU time where there is any or a limit of it; else processor time. */
function Hours({ experiment }: { experiment: Experiment }) {
  const { gpu_hours } = experiment.usage;
  const limit = experiment.max_gpu_hours;
  const cpu = formatCpuHours(experiment.usage);
  if (!gpu_hours && (limit === null || limit === undefined)) return <Figure name="CPU-hours">{cpu}</Figure>;
  return (
    <Figure name="GPU-hours" below={`${cpu} CPU-hours`}>
      {formatHours(gpu_hours)} {of(limit === null || limit === undefined ? null : formatParameter(limit))}
    </Figure>
  );
}

function Times({ experiment, readAt }: { experiment: Experiment; readAt: number }) {
  const elapsed = elapsedSeconds(experiment, readAt, useNow());
  const left = timeLeft(experiment, elapsed);
  const limit = experiment.max_experiment_duration_seconds;
  const pace = elapsed > 0 ? (endedTrials(experiment) / elapsed) * 60 : 0;
  return (
    <>
      <Figure name="elapsed" below={pace ? `${formatNumber(pace)} trials a minute` : "–"}>
        {formatDuration(Math.round(elapsed))} {of(limit === null ? null : formatDuration(limit))}
      </Figure>
      {!isOver(experiment) && (
        <Figure name="time left" below={left && LIMITS[left.limit]}>
          {left === null ? "–" : formatDuration(Math.round(left.seconds))}
        </Figure>
      )}
    </>
  );
}

function Counts({ experiment }: { experiment: Experiment }) {
  const shown = Object.entries(experiment.trial_counts).filter(([, count]) => count);
  if (!shown.length) return <>–</>;
  return (
    <span className="counts">
      {shown.map(([status, count]) => (
        <Link
          key={status}
          title={statusWord(status)}
          href={`/experiments/${experiment.id}/trials?filter=${encodeURIComponent(`status = ${status}`)}`}
        >
          <Status status={status} short />
          {count?.toLocaleString("en-US")}
        </Link>
      ))}
    </span>
  );
}

function BestSoFar({ experiment }: { experiment: Experiment }) {
  const found = useTable(experiment.id, BEST_TABLE);
  const isMaximized = experiment.objective.direction === "maximize";
  const points = useMemo(() => found.data && bestPoints(found.data, isMaximized), [found.data, isMaximized]);
  return (
    <Panel title="Best so far" aside={points?.length ? countOf(points.length, "value") : null}>
      {!points ? (
        <Waiting error={found.error} what="the values" />
      ) : points.length ? (
        <BestChart points={points} height={CHART_HEIGHT} />
      ) : (
        <Empty>{isOver(experiment) ? "No trial has ended with a value." : "Appears with the first result."}</Empty>
      )}
    </Panel>
  );
}

function BestTrial({ experiment }: { experiment: Experiment }) {
  const { best } = experiment;
  return (
    <Panel title="Best trial" aside={best && <Link href={`/trials/${best.trial_id}`}>trial {best.sequence_id}</Link>}>
      {best ? (
        <Scroll className="tall" label="Parameters of the best trial">
          <table className="lines pairs">
            <tbody>
              {flatParameters(best.parameters).map(([name, value]) => (
                <tr key={name}>
                  <th scope="row">{name}</th>
                  <td className="number">{formatParameter(value)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </Scroll>
      ) : (
        <Empty>{capitalized(experiment.no_best_reason)}.</Empty>
      )}
    </Panel>
  );
}

function Running({ experiment }: { experiment: Experiment }) {
  const found = useTrialsIn(experiment.id, ["RUNNING", "UNKNOWN"]);
  const items = found.data?.items ?? [];
  return (
    <Panel title="Running now" aside={items.length ? countOf(items.length, "trial") : null}>
      {!found.data ? (
        <Waiting error={found.error} what="the running trials" />
      ) : items.length ? (
        <RunningTable items={items.slice(0, MOST_RUNNING)} readAt={serverTimeAt(found.dataUpdatedAt)} />
      ) : (
        <Empty>
          {isOver(experiment) ? "Nothing; the experiment is over." : capitalized(experiment.reason) || "Nothing."}
        </Empty>
      )}
      {items.length > MOST_RUNNING && <p className="soft">and {items.length - MOST_RUNNING} more</p>}
    </Panel>
  );
}

function RunningTable({ items, readAt }: { items: Trial[]; readAt: number }) {
  return (
    <Scroll label="Running trials">
      <table className="lines">
        <thead>
          <tr>
            <th scope="col" className="number">
              Trial
            </th>
            <th scope="col" className="number">
              Latest
            </th>
            <th scope="col" className="number">
              Points
            </th>
            <th scope="col" className="number">
              Elapsed
            </th>
            <th scope="col">Node</th>
            <th scope="col" className="rest">
              Parameters
            </th>
          </tr>
        </thead>
        <tbody>
          {items.map((trial) => (
            <tr key={trial.id}>
              <th scope="row" className="number">
                <Link href={`/trials/${trial.id}`} data-row>
                  {trial.sequence_id}
                </Link>
              </th>
              <td className="number">{formatNumber(trial.latest_value)}</td>
              <td className="number">{trial.intermediate_count}</td>
              <td className="number">
                <Elapsed run={trial} readAt={readAt} />
              </td>
              <td>{trial.node_id ?? "–"}</td>
              <td className="rest">
                <ParameterLine parameters={trial.parameters} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

function Failures({ experiment }: { experiment: Experiment }) {
  const { data, error } = useFailures(experiment.id, MOST_CAUSES);
  return (
    <Panel title="Failures" aside={data?.failed ? countOf(data.failed, "trial") : null}>
      {!data ? (
        <Waiting error={error} what="the failed trials" />
      ) : data.causes.length ? (
        <ul className="causes">
          {data.causes.map((cause) => (
            <CauseLine key={cause.example.trial_id} cause={cause} />
          ))}
        </ul>
      ) : (
        <Empty>No trial has failed.</Empty>
      )}
      {data && data.cause_count > data.causes.length && (
        <p className="soft">and {countOf(data.cause_count - data.causes.length, "cause")} more</p>
      )}
    </Panel>
  );
}

function CauseLine({ cause }: { cause: Cause }) {
  const nodes = cause.nodes.map((node) => `${node.node_id ?? "no node"} ${node.trials}`).join(", ");
  return (
    <li>
      <span className="count">{cause.trials}×</span>
      <Link href={`/trials/${cause.example.trial_id}`} title={cause.example.reason}>
        {capitalized(cause.detail) || "No reason was recorded"}
      </Link>
      <span className="soft nodes" title={nodes}>
        {nodes}
      </span>
    </li>
  );
}

function Machines({ experiment }: { experiment: Experiment }) {
  const found = useNodes();
  const nodes = (found.data?.items ?? []).filter((node) => node.experiments?.includes(experiment.id));
  return (
    <Panel title="Machines" aside={nodes.length ? countOf(nodes.length, "node") : null}>
      {!found.data ? (
        <Waiting error={found.error} what="the nodes" />
      ) : nodes.length ? (
        <ul className="machines">
          {nodes.map((node) => (
            <li key={node.id}>
              <Status status={node.hold ? "PAUSED" : node.status} short />
              <Link className="name" href={`/nodes#${encodeURIComponent(node.id)}`}>
                {node.id}
              </Link>
              <GpuCells gpus={gpusOf(node)} experimentId={experiment.id} />
              <MiniTimeline nodeId={node.id} experimentId={experiment.id} />
              <span className="soft" title={node.hold || node.reason}>
                {node.hold || node.reason || countOf(jobsOf(node, experiment), "job")}
              </span>
            </li>
          ))}
        </ul>
      ) : (
        <Empty>{isOver(experiment) ? "It holds no machine any more." : "No machine yet."}</Empty>
      )}
    </Panel>
  );
}

/** How many jobs of the experiment a node has. */
function jobsOf(node: Node, experiment: Experiment): number {
  return (node.reservations ?? []).filter(({ holder }) => holder.endsWith(` ${experiment.id}`)).length;
}
