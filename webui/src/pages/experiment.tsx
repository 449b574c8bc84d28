// What all pages of one experiment have in common: its name, status and reason, and the way to its other pages.

import { type ReactNode, useEffect } from "react";
import { Link, useLocation } from "wouter";
import { experimentActions } from "../api/actions";
import { useExperiment } from "../api/queries";
import type { Experiment } from "../api/schema";
import { Actions } from "../components/actions";
import { LimitsButton } from "../components/limits";
import { Waiting } from "../components/parts";
import { SpaceButton } from "../components/space";
import { Status } from "../components/status";
import { ViewsMenu } from "../components/views";
import { capitalized } from "../format";
import { serverTimeAt } from "../state/clock";
import { isOver } from "../state/progress";
import { SAVED } from "../state/root";

/** Its pages, in the order of the tabs: the ends of the addresses, the word, and whether a saved file has them. */
const TABS: [paths: string[], word: string, isSaved: boolean][] = [
  [[""], "Overview", true],
  [["/trials", "/compare"], "Trials", true],
  [["/curves"], "Curves", false],
  [["/relations"], "Relations", false],
  [["/events", "/log", "/search"], "Logs and events", false],
];
/** What the tab of logs and events leads to. */
const LOGS: [path: string, word: string][] = [
  ["/events", "Events"],
  ["/log", "Log of the dispatcher"],
  ["/search", "Output of trials"],
];

/** The head of an experiment's page; `children` is called when the experiment is known, and when it was read. */
export function ExperimentPage({
  id,
  children,
}: {
  id: string;
  children: (item: Experiment, readAt: number) => ReactNode;
}) {
  const { data, error, dataUpdatedAt } = useExperiment(id);
  useEffect(() => {
    document.title = data ? `${data.name} · Proctor` : "Proctor";
  }, [data]);
  if (!data) return <Waiting error={error} what="the experiment" isPage />;
  return (
    <>
      <Head experiment={data} />
      {children(data, serverTimeAt(dataUpdatedAt))}
    </>
  );
}

function Head({ experiment }: { experiment: Experiment }) {
  const [location] = useLocation();
  const root = `/experiments/${experiment.id}`;
  return (
    <div className="head">
      <div className="bar">
        <h1>
          {experiment.name} <small>{experiment.id}</small>
        </h1>
        <Status status={experiment.status} />
        {experiment.reason && (
          <span className="soft reason" title={experiment.reason}>
            {capitalized(experiment.reason)}
          </span>
        )}
        <Actions actions={experimentActions(experiment)}>
          {!isOver(experiment) && <LimitsButton experiment={experiment} />}
          {!isOver(experiment) && <SpaceButton experiment={experiment} />}
        </Actions>
      </div>
      {TABS.length > 1 && (
        <div className="tab-row">
          <nav className="tabs" aria-label="Pages of the experiment">
            {TABS.filter(([, , isSaved]) => isSaved || !SAVED).map(([paths, word]) => (
              <Link
                key={word}
                href={root + paths[0]}
                aria-current={paths.some((path) => location === root + path) ? "page" : undefined}
              >
                {word}
              </Link>
            ))}
          </nav>
          <ViewsMenu experiment={experiment.id} />
        </div>
      )}
      {LOGS.some(([path]) => location === root + path) && (
        <nav className="choice" aria-label="Logs and events">
          {LOGS.map(([path, word]) => (
            <Link key={path} href={root + path} aria-current={location === root + path ? "page" : undefined}>
              {word}
            </Link>
          ))}
        </nav>
      )}
      {experiment.failure && <p className="note bad">{capitalized(experiment.failure)}</p>}
      {experiment.notices?.map((notice) => (
        <p key={notice} className="note">
          {notice}
        </p>
      ))}
      {experiment.error && (
        <details open className="traceback">
          <summary>What went wrong</summary>
          {/* biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by the keyboard */}
          <pre tabIndex={0}>{experiment.error}</pre>
        </details>
      )}
    </div>
  );
}
