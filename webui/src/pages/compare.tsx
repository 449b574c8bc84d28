// Some trials side by side: in which parameters they differ, how good they became, where they ran.

import { type ReactNode, useMemo } from "react";
import { Link } from "wouter";
import { useTrialCurves, useTrialsNamed } from "../api/queries";
import type { Experiment, Trial } from "../api/schema";
import { LineSample, SeveralCurves } from "../charts/several";
import { Elapsed, Empty, Panel, Scroll, Waiting } from "../components/parts";
import { Status } from "../components/status";
import { capitalized, countOf, formatHours, formatNumber, formatParameter, formatTime, toSeconds } from "../format";
import { serverTimeAt } from "../state/clock";
import { compareParameters, numbersIn, onOneAxis } from "../state/comparison";
import { isObject } from "../state/parameters";
import { useUrlState } from "../state/url";
import { ExperimentPage } from "./experiment";

const CHART_HEIGHT = 280;

export function Compare({ id }: { id: string }) {
  return <ExperimentPage id={id}>{(experiment) => <Comparison experiment={experiment} />}</ExperimentPage>;
}

function Comparison({ experiment }: { experiment: Experiment }) {
  const [named, setNamed] = useUrlState("trials");
  const numbers = useMemo(() => numbersIn(named), [named]);
  const found = useTrialsNamed(experiment.id, numbers);
  const trials = found.data;
  if (!numbers.length) return <Empty>Select trials in the table, then compare them.</Empty>;
  if (!trials) return <Waiting error={found.error} what="the trials" />;
  const missing = numbers.filter((number) => !trials.some((trial) => trial.sequence_id === number));
  const drop = (number: number) => setNamed(numbers.filter((each) => each !== number).join(","));
  return (
    <div className="stack">
      {missing.length > 0 && <p className="note">There is no trial {missing.join(", ")} in this experiment.</p>}
      <Side trials={trials} readAt={serverTimeAt(found.dataUpdatedAt)} onDrop={drop} />
      <Curves trials={trials} href={`/experiments/${experiment.id}/curves?trials=${numbers.join(",")}`} />
    </div>
  );
}

/** What is compared besides parameters. */
const FACTS: [name: string, show: (trial: Trial, readAt: number) => ReactNode][] = [
  ["final value", (trial) => formatNumber(trial.final_value)],
  ["latest value", (trial) => formatNumber(trial.latest_value)],
  ["points", (trial) => trial.intermediate_count],
  ["took", (trial, readAt) => <Elapsed run={trial} readAt={readAt} />],
  ["started", (trial) => formatTime(toSeconds(trial.started_at))],
  ["ended", (trial) => formatTime(toSeconds(trial.ended_at))],
  ["node", (trial) => trial.node_id ?? "–"],
  ["attempts", (trial) => trial.jobs],
  ["GPU-hours", (trial) => formatHours(trial.usage.gpu_hours)],
  ["CPU-hours", (trial) => formatHours(trial.usage.cpu_hours)],
  ["source", (trial) => trial.source],
  ["reason", (trial) => <span title={trial.reason}>{capitalized(trial.reason ?? "") || "–"}</span>],
];

/** The keys of final metrics that are objects. */
function metricsOf(trial: Trial): unknown {
  return isObject(trial.final_data) ? trial.final_data : {};
}

interface SideProps {
  trials: Trial[];
  readAt: number;
  onDrop: (number: number) => void;
}

function Side({ trials, readAt, onDrop }: SideProps) {
  const parameters = useMemo(() => compareParameters(trials.map((trial) => trial.parameters)), [trials]);
  const metrics = useMemo(() => compareParameters(trials.map(metricsOf)), [trials]);
  const differing = parameters.filter((row) => row.differs).length;
  return (
    <Panel title="Side by side" aside={`${countOf(differing, "parameter")} differ, marked with ≠`}>
      <Scroll label="Compared trials">
        <table className="lines compared">
          <thead>
            <tr>
              <th scope="col">
                <span className="hidden">What</span>
              </th>
              {trials.map((trial, place) => (
                <th key={trial.id} scope="col" className="number">
                  <LineSample place={place} />{" "}
                  <Link href={`/trials/${trial.id}`} data-row>
                    trial {trial.sequence_id}
                  </Link>{" "}
                  <button
                    type="button"
                    className="link"
                    aria-label={`Leave out trial ${trial.sequence_id}`}
                    onClick={() => onDrop(trial.sequence_id)}
                  >
                    ×
                  </button>
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            <tr>
              <th scope="row">status</th>
              {trials.map((trial) => (
                <td key={trial.id} className="number">
                  <Status status={trial.status} />
                </td>
              ))}
            </tr>
            {[...parameters, ...metrics.map((row) => ({ ...row, name: `value.${row.name}`, differs: false }))].map(
              (row) => (
                <tr key={row.name} className={row.differs ? "differs" : undefined}>
                  <th scope="row">
                    {row.differs && (
                      <span role="img" aria-label="differs">
                        ≠
                      </span>
                    )}{" "}
                    {row.name}
                  </th>
                  {row.values.map((value, place) => (
                    <td key={trials[place]?.id} className="number" title={JSON.stringify(value)}>
                      {formatParameter(value)}
                    </td>
                  ))}
                </tr>
              ),
            )}
            {FACTS.map(([name, show]) => (
              <tr key={name}>
                <th scope="row">{name}</th>
                {trials.map((trial) => (
                  <td key={trial.id} className="number">
                    {show(trial, readAt)}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
    </Panel>
  );
}

function Curves({ trials, href }: { trials: Trial[]; href: string }) {
  const ids = useMemo(() => trials.map((trial) => trial.id), [trials]);
  const curves = useTrialCurves(ids);
  const [steps, values] = onOneAxis(
    curves.map((points) =>
      (points ?? []).map((point) => ({
        x: point.step ?? point.sequence,
        y: typeof point.value === "number" ? point.value : null,
      })),
    ),
  );
  return (
    <Panel title="Intermediate values" aside={<Link href={href}>all about these curves</Link>}>
      {steps.length ? (
        <SeveralCurves
          steps={steps}
          values={values}
          height={CHART_HEIGHT}
          label={`Curves of trials ${trials.map((trial) => trial.sequence_id).join(", ")}`}
        />
      ) : (
        <Empty>None of them has reported a value.</Empty>
      )}
    </Panel>
  );
}
