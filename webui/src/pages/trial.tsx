// One trial: its parameters, its curve, every attempt to run it, and what those printed and left behind.

import { useEffect, useMemo, useState } from "react";
import { Link } from "wouter";
import { trialActions } from "../api/actions";
import {
  useCheckpoints,
  useExperiment,
  useFiles,
  useJobs,
  useLosses,
  useRanks,
  useTrial,
  useTrialCurve,
} from "../api/queries";
import type { Job, Trial, TrialDecision } from "../api/schema";
import { CurveChart } from "../charts/lines";
import { Actions } from "../components/actions";
import { Ago, CopyButtons, Elapsed, Empty, Figure, NumberHeads, Panel, Scroll, Waiting } from "../components/parts";
import { Status } from "../components/status";
import {
  capitalized,
  countOf,
  formatBytes,
  formatDuration,
  formatHours,
  formatNumber,
  formatParameter,
  lossText,
  statusWord,
} from "../format";
import { Download } from "../logs/download";
import { partsOf } from "../logs/tail";
import { LogViewer } from "../logs/viewer";
import { serverTimeAt } from "../state/clock";
import { copyText, type Format, toClipboard } from "../state/copies";
import { flatParameters } from "../state/parameters";
import { apiUrl, SAVED } from "../state/root";
import { useUrlState } from "../state/url";
import { searchAddress } from "./search";

const CHART_HEIGHT = 240;
const ENDED = new Set<string>(["SUCCEEDED", "EARLY_STOPPED", "FAILED", "USER_CANCELED", "SYS_CANCELED"]);

export function TrialPage({ id }: { id: string }) {
  const { data: trial, error, dataUpdatedAt } = useTrial(id);
  const jobs = useJobs(id);
  useEffect(() => {
    document.title = trial ? `Trial ${trial.sequence_id} · Proctor` : "Proctor";
  }, [trial]);
  if (!trial) return <Waiting error={error} what="the trial" isPage />;
  return (
    <>
      <Head trial={trial} />
      <Losses trialId={trial.id} />
      <Figures trial={trial} readAt={serverTimeAt(dataUpdatedAt)} />
      <div className="trial">
        <Parameters trial={trial} />
        <Curve trial={trial} />
      </div>
      {!SAVED && (
        <div className="stack">
          <Ranks trialId={trial.id} />
          <Decisions decisions={trial.decisions ?? []} />
          <Jobs
            jobs={jobs.data?.items}
            readAt={serverTimeAt(jobs.dataUpdatedAt)}
            decisions={trial.decisions ?? []}
            error={jobs.error}
          />
          <Logs trial={trial} jobs={jobs.data?.items ?? []} />
          <Checkpoints trial={trial} />
        </div>
      )}
    </>
  );
}

function Head({ trial }: { trial: Trial }) {
  const experiment = useExperiment(trial.experiment_id);
  return (
    <div className="head">
      <p className="crumbs">
        <Link href={`/experiments/${trial.experiment_id}`}>{experiment.data?.name ?? trial.experiment_id}</Link>
      </p>
      <div className="bar">
        <h1>
          Trial {trial.sequence_id} <small>{trial.id}</small>
        </h1>
        <Status status={trial.status} />
        {trial.reason && (
          <span className={`reason ${trial.status === "FAILED" ? "failure" : "soft"}`} title={trial.reason}>
            {capitalized(trial.reason)}
          </span>
        )}
        <Actions actions={trialActions(trial)} />
      </div>
    </div>
  );
}

const SOURCES: Record<string, string> = {
  algorithm: "proposed by the tuner",
  customized: "added by a user",
  retry: "retry of",
  clone: "clone of",
};

function Figures({ trial, readAt }: { trial: Trial; readAt: number }) {
  const { gpu_hours, cpu_hours, unmeasured_jobs } = trial.usage;
  return (
    <dl className="figures">
      <Figure name="final value">{formatNumber(trial.final_value)}</Figure>
      <Figure name="latest value" below={countOf(trial.intermediate_count, "point")}>
        {formatNumber(trial.latest_value)}
      </Figure>
      <Figure name={trial.ended_at ? "took" : "elapsed"} below={<Ago time={trial.started_at} />}>
        <Elapsed run={trial} readAt={readAt} />
      </Figure>
      <Figure name="node" below={countOf(trial.jobs, "attempt")}>
        {trial.node_id ?? "–"}
      </Figure>
      <Figure
        name={gpu_hours ? "GPU-hours" : "CPU-hours"}
        below={gpu_hours ? `${formatHours(cpu_hours)} CPU-hours` : undefined}
      >
        {unmeasured_jobs && !cpu_hours && !gpu_hours ? "–" : formatHours(gpu_hours || cpu_hours)}
      </Figure>
      <Figure name="source" below={SOURCES[trial.source] ?? ""}>
        {trial.origin_trial_id ? (
          <Link href={`/trials/${trial.origin_trial_id}`}>{trial.origin_trial_id}</Link>
        ) : (
          trial.source
        )}
      </Figure>
    </dl>
  );
}

function Parameters({ trial }: { trial: Trial }) {
  const flat = useMemo(() => flatParameters(trial.parameters), [trial.parameters]);
  const [copied, setCopied] = useState<string>("");
  const copy = async (format: Format) => {
    const text = copyText(trial.parameters, format);
    setCopied((await toClipboard(text)) ? `${format} copied` : "the browser refused");
  };
  return (
    <Panel
      title="Parameters"
      aside={
        <span className="copy">
          <span role="status">{copied}</span> copy as
          <CopyButtons onCopy={(format) => void copy(format)} />
        </span>
      }
    >
      <Scroll className="tall" label="Table of parameters">
        <table className="lines pairs">
          <tbody>
            {flat.map(([name, value]) => (
              <tr key={name}>
                <th scope="row">{name}</th>
                <td className="number" title={JSON.stringify(value)}>
                  {formatParameter(value)}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
    </Panel>
  );
}

function Curve({ trial }: { trial: Trial }) {
  const curve = useTrialCurve(trial.id);
  const points = curve.data;
  const [x, y, hasSteps] = useMemo(() => {
    const found = points ?? [];
    const steps = found.map((point) => point.step);
    const named = found.length > 0 && steps.every((step, i) => step != null && (i === 0 || step > (steps[i - 1] ?? 0)));
    const values = found.map((point) => (typeof point.value === "number" ? point.value : null));
    return [found.map((point, i) => (named ? (point.step ?? i) : i + 1)), values, named] as const;
  }, [points]);
  return (
    <Panel title="Intermediate values" aside={points?.length ? countOf(points.length, "point") : null}>
      {!points ? (
        <Waiting error={curve.error} what="the curve" />
      ) : y.some((value) => value !== null) ? (
        <CurveChart
          x={x}
          y={y}
          xLabel={hasSteps ? "step" : "report"}
          height={CHART_HEIGHT}
          label={`Intermediate values: ${points.length} points, the last is ${formatNumber(points.at(-1)?.value)}`}
        />
      ) : (
        <Empty>
          {points.length
            ? "None of the reports is a finite number."
            : trial.ended_at
              ? "None was reported."
              : "None yet."}
        </Empty>
      )}
    </Panel>
  );
}

/** Reports that are not in the curve. */
function Losses({ trialId }: { trialId: string }) {
  const losses = useLosses(trialId).data ?? [];
  return losses.map((loss) => (
    <p key={loss.id} className="note bad">
      Attempt {loss.job}
      {loss.member > 0 && `, rank ${loss.member}`}: {lossText(loss)}
    </p>
  ));
}

/** What the processes of a distributed trial have reported; nothing where only the one that counts has. */
function Ranks({ trialId }: { trialId: string }) {
  const ranks = useRanks(trialId).data?.items ?? [];
  if (ranks.every((rank) => rank.counts)) return null;
  return (
    <Panel title="Ranks" aside={`of the newest attempt, ${countOf(ranks.length, "rank")}`}>
      <Scroll className="tall" label="Table of ranks">
        <table className="lines">
          <thead>
            <tr>
              <NumberHeads names={["Rank", "Points", "Latest value", "Final value"]} />
              <th scope="col" className="rest">
                Counts
              </th>
            </tr>
          </thead>
          <tbody>
            {ranks.map((rank) => (
              <tr key={rank.member}>
                <th scope="row" className="number">
                  {rank.member}
                </th>
                <td className="number">{formatNumber(rank.intermediate_count)}</td>
                <td className="number">{formatNumber(rank.latest_value)}</td>
                <td className="number">{formatNumber(rank.final_value)}</td>
                <td className="rest">{rank.counts ? "its values are the trial's" : ""}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
    </Panel>
  );
}

/** Decisions that no attempt has begun with: those that began one stand there. */
function Decisions({ decisions }: { decisions: TrialDecision[] }) {
  const others = decisions.filter(({ job }) => !job);
  if (!others.length) return null;
  return (
    <Panel title="Decisions" aside="of the trial scheduler, without an attempt">
      <ul className="decisions">
        {others.map((decision) => (
          <li key={`${decision.decided_at} ${decision.reason}`}>
            <Ago time={decision.decided_at} /> <DecisionWords decision={decision} />{" "}
            <span className="soft">
              {decision.job === 0 ? "came too late for the trial" : "to be carried out by its next attempt"}
            </span>
          </li>
        ))}
      </ul>
    </Panel>
  );
}

/** "Promoted to rung 9: 2nd of 7", "Continues from trial 3: the donor is at 0.91". */
function DecisionWords({ decision }: { decision: TrialDecision }) {
  if (decision.kind !== "clone") return <>{capitalized(decision.reason) || "Resumed"}</>;
  return (
    <>
      Continues from{" "}
      <Link href={`/trials/${decision.donor_trial_id}`}>
        trial {decision.donor_sequence_id ?? decision.donor_trial_id}
      </Link>
      {decision.reason && `: ${decision.reason}`}
      {!decision.has_donor_checkpoint && "; but it had no checkpoint that could be read"}
    </>
  );
}

interface JobsProps {
  jobs: Job[] | undefined;
  readAt: number;
  decisions: TrialDecision[];
  error: Error | null;
}

function Jobs({ jobs, readAt, decisions, error }: JobsProps) {
  const byJob = new Map(decisions.map((decision) => [decision.job, decision]));
  const hasDecisions = (jobs ?? []).some(({ number }) => byJob.has(number));
  return (
    <Panel title="Attempts" aside={jobs?.length ? countOf(jobs.length, "job") : null}>
      {!jobs ? (
        <Waiting error={error} what="the jobs" />
      ) : jobs.length === 0 ? (
        <Empty>It was not started.</Empty>
      ) : (
        <Scroll label="Table of attempts">
          <table className="lines">
            <thead>
              <tr>
                <th scope="col" className="number">
                  #
                </th>
                <th scope="col">Status</th>
                <th scope="col">Ended by</th>
                <th scope="col">Exit</th>
                <th scope="col" className="number">
                  Took
                </th>
                <th scope="col">Started</th>
                <th scope="col">Ended</th>
                <th scope="col">Node</th>
                <th scope="col">GPUs</th>
                <th scope="col" className="number">
                  CPU time
                </th>
                <th scope="col" className="number">
                  pid
                </th>
                {hasDecisions && <th scope="col">Why it began</th>}
                <th scope="col">Begins</th>
                <th scope="col" className="rest">
                  Detail
                </th>
              </tr>
            </thead>
            <tbody>
              {jobs.map((job) => (
                <JobLine
                  key={job.id}
                  job={job}
                  readAt={readAt}
                  decision={hasDecisions ? (byJob.get(job.number) ?? null) : undefined}
                />
              ))}
            </tbody>
          </table>
        </Scroll>
      )}
    </Panel>
  );
}

interface JobLineProps {
  job: Job;
  readAt: number;
  /** What it began with; null where that is none, and undefined where no attempt has one. */
  decision: TrialDecision | null | undefined;
}

function JobLine({ job, readAt, decision }: JobLineProps) {
  const exit = job.signal ? `signal ${job.signal}` : job.exit_code === null ? "–" : `${job.exit_code ?? "–"}`;
  const gpus = job.gpus?.map((gpu) => gpu.uuid.slice(0, 12)).join(" ");
  const reason = job.end_reason ?? job.stop_reason;
  return (
    <tr>
      <th scope="row" className="number">
        {job.number}
      </th>
      <td>
        <Status status={job.status} />
      </td>
      <td>{reason ? statusWord(reason) : "–"}</td>
      <td>{exit}</td>
      <td className="number">
        <Elapsed run={job} readAt={readAt} />
      </td>
      <td>
        <Ago time={job.started_at} />
      </td>
      <td>
        <Ago time={job.ended_at} />
      </td>
      <td>{job.node_id ?? "–"}</td>
      <td title={job.gpus?.map((gpu) => gpu.uuid).join("\n")}>{gpus || "–"}</td>
      <td className="number">{job.cpu_seconds == null ? "–" : formatDuration(job.cpu_seconds)}</td>
      <td className="number">{job.pid ?? "–"}</td>
      {decision !== undefined && (
        <td className="why">{decision ? <DecisionWords decision={decision} /> : <span className="soft">–</span>}</td>
      )}
      <td className="name" title={beginOf(job)}>
        {beginOf(job)}
      </td>
      <td className="rest soft" title={job.detail}>
        {job.detail}
      </td>
    </tr>
  );
}

/** Where a job begins: what it continues. */
function beginOf(job: Job): string {
  const from = job.resumed_from_job ? `from a checkpoint of job ${job.resumed_from_job}` : "at the start";
  return `${job.start_reason || from}${job.parent_job ? `; after job ${job.parent_job}` : ""}`;
}

function Logs({ trial, jobs }: { trial: Trial; jobs: Job[] }) {
  const [streamName, setStream] = useUrlState("stream", trial.status === "FAILED" ? "stderr" : "stdout");
  const [jobText, setJob] = useUrlState("job");
  const [atText, setAt] = useUrlState("at");
  const at = /^\d{1,15}$/.test(atText) ? Number(atText) : undefined;
  const job = jobs.find((each) => String(each.number) === jobText) ?? jobs.at(-1);
  const stream = streamName === "stderr" ? "stderr" : "stdout";
  const number = job?.number;
  const read = useMemo(
    () => partsOf((offset, limit) => apiUrl(`trials/${trial.id}/logs`, { stream, job: number, offset, limit })),
    [trial.id, stream, number],
  );
  if (!job) return null;
  return (
    <Panel title="Output" aside={<FileLinks trial={trial} job={job} />}>
      <LogViewer
        read={read}
        isOpen={job.status !== "ENDED" && !ENDED.has(trial.status)}
        label={stream}
        download={`trial-${trial.sequence_id}-${job.number}-${stream}.log`}
        at={at}
        onLeaveAt={() => setAt("")}
        searchAll={(wanted) => searchAddress(trial.experiment_id, wanted, trial.id)}
      >
        <div className="choice">
          {["stdout", "stderr"].map((name) => (
            <button key={name} type="button" aria-pressed={name === stream} onClick={() => setStream(name)}>
              {name}
            </button>
          ))}
        </div>
        {jobs.length > 1 && (
          <select aria-label="Attempt" value={job.number} onChange={(event) => setJob(event.target.value)}>
            {jobs.map((each) => (
              <option key={each.number} value={each.number}>
                attempt {each.number}
              </option>
            ))}
          </select>
        )}
      </LogViewer>
    </Panel>
  );
}

function FileLinks({ trial, job }: { trial: Trial; job: Job }) {
  const [isOpen, setOpen] = useState(false);
  const files = useFiles(trial.id, isOpen ? job.number : undefined);
  return (
    <details className="files" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>files</summary>
      <div>
        {!files.data ? (
          <Waiting error={files.error} what="the files" />
        ) : files.data.items.length === 0 ? (
          <Empty>No files.</Empty>
        ) : (
          <ul>
            {files.data.items.map((file) => (
              <li key={file.path}>
                <Download
                  read={partsOf((offset, limit) =>
                    apiUrl(`trials/${trial.id}/files/${encodePath(file.path)}`, { job: job.number, offset, limit }),
                  )}
                  name={file.path.split("/").at(-1) ?? "file"}
                >
                  {file.path}
                </Download>
                <span className="soft">{formatBytes(file.size_bytes)}</span>
              </li>
            ))}
          </ul>
        )}
      </div>
    </details>
  );
}

function encodePath(path: string): string {
  return path.split("/").map(encodeURIComponent).join("/");
}

function Checkpoints({ trial }: { trial: Trial }) {
  const found = useCheckpoints(trial.id);
  const items = found.data?.items ?? [];
  if (!items.length) return null;
  return (
    <Panel title="Checkpoints" aside={countOf(items.length, "checkpoint")}>
      <Scroll className="tall" label="Table of checkpoints">
        <table className="lines">
          <thead>
            <tr>
              <th scope="col" className="number">
                Step
              </th>
              <th scope="col" className="number">
                Value
              </th>
              <th scope="col" className="number">
                Attempt
              </th>
              <th scope="col" className="number">
                Size
              </th>
              <th scope="col">Made</th>
              <th scope="col">Kept as</th>
              <th scope="col" className="rest">
                Folder
              </th>
            </tr>
          </thead>
          <tbody>
            {items.map((each) => (
              <tr key={each.id}>
                <td className="number">{formatNumber(each.step)}</td>
                <td className="number">{formatNumber(each.value)}</td>
                <td className="number">{each.job}</td>
                <td className="number">{formatBytes(each.size_bytes)}</td>
                <td>
                  <Ago time={each.time} />
                </td>
                <td>{each.deleted_at ? "deleted" : (each.kept ?? []).map(statusWord).join(", ") || "–"}</td>
                <td className="rest">
                  {each.is_here && !each.deleted_at ? (
                    <a href={apiUrl(`trials/${trial.id}/checkpoints/${each.id}/tar`)} download>
                      {each.path}
                    </a>
                  ) : (
                    each.path
                  )}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
    </Panel>
  );
}
