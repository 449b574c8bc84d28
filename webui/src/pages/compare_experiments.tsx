// Some experiments beside each other: how fast each became how good, at which cost, and what each searched.

import { useQueries } from "@tanstack/react-query";
import { type ReactNode, useEffect, useMemo } from "react";
import { Link } from "wouter";
import { bestCurveQuery, experimentQuery } from "../api/queries";
import type { CurvePoint, Experiment } from "../api/schema";
import { LineSample } from "../charts/several";
import { SeveralBest } from "../charts/several_best";
import { Ago, Empty, Panel, Scroll, Waiting } from "../components/parts";
import { Progress, Status } from "../components/status";
import { countOf, formatCpuHours, formatDuration, formatHours, formatNumber, toSeconds } from "../format";
import { serverTimeAt, useNow } from "../state/clock";
import {
  type Along,
  bestLine,
  labelsOf,
  MOST_COMPARED,
  objectiveText,
  spaceDifferences,
  unitFor,
} from "../state/compared";
import { elapsedSeconds } from "../state/progress";
import { useUrlList, useUrlState } from "../state/url";

const CHART_PIXELS = 340;

/** An experiment that was read, and its values as far as they were. */
interface Compared {
  experiment: Experiment;
  readAt: number;
  points: CurvePoint[] | undefined;
}

export function CompareExperiments() {
  const [asked, setIds] = useUrlList("experiments");
  const ids = useMemo(() => [...new Set(asked)].slice(0, MOST_COMPARED), [asked]);
  const experiments = useQueries({ queries: ids.map(experimentQuery) });
  const curves = useQueries({ queries: ids.map(bestCurveQuery) });
  useEffect(() => {
    document.title = "Compare experiments · Proctor";
  }, []);
  const found = experiments.flatMap(({ data, dataUpdatedAt }, place): Compared[] =>
    data ? [{ experiment: data, readAt: serverTimeAt(dataUpdatedAt), points: curves[place]?.data?.items }] : [],
  );
  const failed = experiments.flatMap(({ error }, place) => (error ? [{ id: ids[place] ?? "", error }] : []));
  const isWaiting = found.length + failed.length < ids.length;
  return (
    <>
      <p className="crumbs">
        <Link href="/">Experiments</Link>
      </p>
      <div className="bar">
        <h1>Compare experiments</h1>
      </div>
      {failed.map(({ id, error }) => (
        <p key={id} className="note bad" role="alert">
          {id}: {error.message}
        </p>
      ))}
      {asked.length > ids.length && (
        <p className="note">
          The first {MOST_COMPARED} of {asked.length} are compared.
        </p>
      )}
      {isWaiting && <Waiting error={null} what="the experiments" />}
      {!isWaiting && found.length === 0 && (
        <Empty>
          None is chosen. Select some in the <Link href="/">list of experiments</Link>.
        </Empty>
      )}
      {!isWaiting && found.length > 0 && (
        <div className="stack">
          <Curves compared={found} />
          <Figures compared={found} onRemove={(id) => setIds(ids.filter((each) => each !== id))} />
          <Spaces compared={found} />
        </div>
      )}
    </>
  );
}

const ALONG: [along: Along, word: string][] = [
  ["trials", "over trials"],
  ["time", "over time"],
];

function Curves({ compared }: { compared: Compared[] }) {
  const [text, setAlong] = useUrlState("along", "trials");
  const along: Along = text === "time" ? "time" : "trials";
  const lines = compared.map(({ experiment, points }) =>
    bestLine(points ?? [], along, toSeconds(experiment.started_at ?? experiment.created_at)),
  );
  const unit = along === "time" ? unitFor(Math.max(0, ...lines.map((line) => line.x.at(-1) ?? 0))) : null;
  const isEmpty = lines.every((line) => line.x.length === 0);
  const objectives = new Set(compared.map(({ experiment }) => objectiveText(experiment)));
  return (
    <Panel
      title="Best so far"
      aside={
        <fieldset className="choice" aria-label="Horizontal axis">
          {ALONG.map(([each, word]) => (
            <button key={each} type="button" aria-pressed={along === each} onClick={() => setAlong(each)}>
              {word}
            </button>
          ))}
        </fieldset>
      }
    >
      {objectives.size > 1 && <p className="note">Their values mean different things: {[...objectives].join("; ")}.</p>}
      {compared.some(({ points }) => !points) ? (
        <Waiting error={null} what="the values" />
      ) : isEmpty ? (
        <Empty>No trial has ended with a value.</Empty>
      ) : (
        <SeveralBest
          names={labelsOf(compared.map(({ experiment }) => experiment))}
          lines={lines}
          unit={unit?.seconds ?? 1}
          xLabel={unit ? `${unit.word} since the start of each` : "trials with a value"}
          height={CHART_PIXELS}
        />
      )}
    </Panel>
  );
}

function Figures({ compared, onRemove }: { compared: Compared[]; onRemove: (id: string) => void }) {
  const now = useNow();
  return (
    <Panel title="Figures" aside={countOf(compared.length, "experiment")}>
      <Scroll label="Figures of each experiment">
        <table className="lines experiments">
          <thead>
            <tr>
              <th scope="col">Experiment</th>
              <th scope="col">Status</th>
              <th scope="col">Trials</th>
              <Head>Best</Head>
              <th scope="col">Objective</th>
              <Head>Elapsed</Head>
              <Head>GPU-hours</Head>
              <Head>CPU-hours</Head>
              <th scope="col">Created</th>
              <th scope="col">
                <span className="hidden">Leave out</span>
              </th>
            </tr>
          </thead>
          <tbody>
            {compared.map(({ experiment, readAt }, place) => (
              <tr key={experiment.id}>
                <Name experiment={experiment} place={place} />
                <td>
                  <Status status={experiment.status} />
                </td>
                <Progress item={experiment} />
                <td className="number">
                  {experiment.best ? (
                    <Link href={`/trials/${experiment.best.trial_id}`} title={`trial ${experiment.best.sequence_id}`}>
                      {formatNumber(experiment.best.value)}
                    </Link>
                  ) : (
                    <span title={experiment.no_best_reason}>–</span>
                  )}
                </td>
                <td>{objectiveText(experiment)}</td>
                <td className="number">{formatDuration(Math.round(elapsedSeconds(experiment, readAt, now)))}</td>
                <td className="number">{formatHours(experiment.usage.gpu_hours)}</td>
                <td className="number">{formatCpuHours(experiment.usage)}</td>
                <td>
                  <Ago time={experiment.created_at} />
                </td>
                <td className="row-actions">
                  <button
                    type="button"
                    aria-label={`Leave out ${experiment.name}`}
                    title="Leave out"
                    onClick={() => onRemove(experiment.id)}
                  >
                    ×
                  </button>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
    </Panel>
  );
}

function Head({ children }: { children: ReactNode }) {
  return (
    <th scope="col" className="number">
      {children}
    </th>
  );
}

function Name({ experiment, place }: { experiment: Experiment; place: number }) {
  return (
    <th scope="row" className="name" title={experiment.name}>
      <LineSample place={place} />
      <Link href={`/experiments/${experiment.id}`} data-row>
        {experiment.name}
      </Link>{" "}
      <small>{experiment.id}</small>
    </th>
  );
}

/** Where the search spaces differ, with an experiment in each column. */
function Spaces({ compared }: { compared: Compared[] }) {
  const { differing, same } = spaceDifferences(compared.map(({ experiment }) => experiment.search_space));
  const labels = labelsOf(compared.map(({ experiment }) => experiment));
  const equal = same ? `${countOf(same, "parameter")} ${same === 1 ? "is" : "are"} the same` : null;
  return (
    <Panel title="Search spaces" aside={equal}>
      {differing.length === 0 ? (
        <Empty>{compared.length > 1 ? "They do not differ." : "There is only one."}</Empty>
      ) : (
        <Scroll label="Differences of the search spaces">
          <table className="lines spaces">
            <thead>
              <tr>
                <th scope="col">Parameter</th>
                {compared.map(({ experiment }, place) => (
                  <th key={experiment.id} scope="col" className="name" title={experiment.name}>
                    <LineSample place={place} />
                    {labels[place]}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {differing.map(({ name, texts }) => (
                <tr key={name}>
                  <th scope="row" className="name" title={name}>
                    {name}
                  </th>
                  {compared.map(({ experiment }, place) => (
                    <td key={experiment.id} className="name" title={texts[place]}>
                      {texts[place] || <span className="soft">not searched</span>}
                    </td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </Scroll>
      )}
    </Panel>
  );
}
