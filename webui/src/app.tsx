// The frame of every page: where one is, whether what is shown is current, and what the keys do.

import { lazy, Suspense, useEffect } from "react";
import { Link, Redirect, Route, Switch, useRoute } from "wouter";
import { useConnection, useLiveQueries } from "./api/live";
import { useHealth } from "./api/queries";
import { snapshot } from "./api/snapshot";
import { Help, useKeys } from "./components/help";
import { Waiting } from "./components/parts";
import { formatTime } from "./format";
import { Experiments } from "./pages/experiments";
import { SAVED } from "./state/root";

const Overview = lazy(() => import("./pages/overview").then((module) => ({ default: module.Overview })));

const CompareExperiments = lazy(() =>
  import("./pages/compare_experiments").then((module) => ({ default: module.CompareExperiments })),
);
const Trials = lazy(() => import("./pages/trials").then((module) => ({ default: module.Trials })));
const Relations = lazy(() => import("./pages/relations").then((module) => ({ default: module.Relations })));
const Curves = lazy(() => import("./pages/curves").then((module) => ({ default: module.Curves })));
const Compare = lazy(() => import("./pages/compare").then((module) => ({ default: module.Compare })));
const Nodes = lazy(() => import("./pages/nodes").then((module) => ({ default: module.Nodes })));
const ManagerLog = lazy(() => import("./pages/logs").then((module) => ({ default: module.ManagerLog })));
const DispatcherLog = lazy(() => import("./pages/logs").then((module) => ({ default: module.DispatcherLog })));
const Events = lazy(() => import("./pages/events").then((module) => ({ default: module.Events })));
const LogSearchPage = lazy(() => import("./pages/search").then((module) => ({ default: module.LogSearchPage })));
const TrialPage = lazy(() => import("./pages/trial").then((module) => ({ default: module.TrialPage })));

export function App() {
  useLiveQueries();
  const keys = useKeys();
  return (
    <>
      <a className="skip" href="#main">
        Skip to content
      </a>
      <header className="frame">
        <Link href="/" className="home">
          Proctor
        </Link>
        {SAVED ? (
          <SavedSign />
        ) : (
          <>
            <nav aria-label="Main">
              <NavLink href="/">Experiments</NavLink>
              <NavLink href="/nodes">Nodes</NavLink>
              <NavLink href="/log">Log</NavLink>
            </nav>
            <ConnectionSign />
          </>
        )}
        <button type="button" className="quiet" aria-label="Keys" title="Keys (?)" onClick={keys.toggleHelp}>
          ?
        </button>
      </header>
      <ManagerProblem />
      <main id="main" tabIndex={-1}>
        <Suspense fallback={<Waiting error={null} what="the page" />}>
          <Switch>
            <Route path="/" component={SAVED ? SavedExperiment : Experiments} />
            <Route path="/experiments/:id">{({ id }) => <Overview key={id} id={id} />}</Route>
            <Route path="/experiments/:id/trials">{({ id }) => <Trials key={id} id={id} />}</Route>
            <Route path="/experiments/:id/relations">{({ id }) => <Relations key={id} id={id} />}</Route>
            <Route path="/experiments/:id/curves">{({ id }) => <Curves key={id} id={id} />}</Route>
            <Route path="/experiments/:id/compare">{({ id }) => <Compare key={id} id={id} />}</Route>
            <Route path="/experiments/:id/log">{({ id }) => <DispatcherLog key={id} id={id} />}</Route>
            <Route path="/experiments/:id/search">{({ id }) => <LogSearchPage key={id} id={id} />}</Route>
            <Route path="/experiments/:id/events">{({ id }) => <Events key={id} id={id} />}</Route>
            <Route path="/compare" component={CompareExperiments} />
            <Route path="/nodes" component={Nodes} />
            <Route path="/log" component={ManagerLog} />
            <Route path="/trials/:id">{({ id }) => <TrialPage key={id} id={id} />}</Route>
            <Route>
              <NotFound />
            </Route>
          </Switch>
        </Suspense>
      </main>
      {keys.isHelpShown && <Help onClose={keys.toggleHelp} />}
    </>
  );
}

function NavLink({ href, children }: { href: string; children: string }) {
  const [isHere] = useRoute(href);
  return (
    <Link href={href} aria-current={isHere ? "page" : undefined}>
      {children}
    </Link>
  );
}

function SavedExperiment() {
  return <Redirect to={`/experiments/${snapshot().experiment.id}`} replace />;
}

/** Since when a saved file has not changed. */
function SavedSign() {
  const { saved_at, is_thinned } = snapshot();
  return (
    <span className="connection" role="status">
      saved {formatTime(Date.parse(saved_at) / 1000)}
      {is_thinned && "; long curves have fewer points"}
    </span>
  );
}

/** Whether what is shown is current; if not, since when. */
function ConnectionSign() {
  const connection = useConnection();
  const isStale = connection.state === "lost";
  useEffect(() => {
    document.documentElement.toggleAttribute("data-stale", isStale);
  }, [isStale]);
  return (
    <span className={`connection ${connection.state}`} role="status">
      {connection.state === "live" && "live"}
      {connection.state === "connecting" && "connecting"}
      {connection.state === "lost" && `not current: lost the manager at ${clockTime(connection.since)}; reconnecting`}
    </span>
  );
}

function clockTime(milliseconds: number): string {
  const time = new Date(milliseconds);
  return Number.isNaN(time.getTime()) ? formatTime(null) : time.toLocaleTimeString();
}

/** What keeps the manager from starting trials. */
function ManagerProblem() {
  const health = useHealth();
  if (!health.data || health.data.status === "ok") return null;
  return (
    <p className="banner" role="alert">
      {health.data.reason}
    </p>
  );
}

function NotFound() {
  return (
    <div className="problem">
      <h1>There is no such page</h1>
      <p>
        <Link href="/">All experiments</Link>
      </p>
    </div>
  );
}
