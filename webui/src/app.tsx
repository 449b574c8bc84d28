// The frame of every page: where one is, whether what is shown is current, and what the keys do.

import { type ComponentType, createElement, lazy, Suspense, useEffect } from "react";
import { Link, Redirect, Route, Switch, useRoute } from "wouter";
import { useConnection, useLiveQueries } from "./api/live";
import { useHealth } from "./api/queries";
import { snapshot } from "./api/snapshot";
import { Help, useKeys } from "./components/help";
import { Waiting } from "./components/parts";
import { formatClock, formatTime } from "./format";
import { Experiments } from "./pages/experiments";
import { SAVED } from "./state/root";

/** A page whose script comes when it is needed. `load` has it come before, so that nothing is shown in its place. */
function page(load: () => Promise<ComponentType<{ id: string }>>) {
  let loaded: ComponentType<{ id: string }> | null = null;
  const loadIt = async () => {
    loaded = await load();
    return { default: loaded };
  };
  const Later = lazy(loadIt);
  return Object.assign(({ id }: { id: string }) => (loaded ? createElement(loaded, { id }) : <Later id={id} />), {
    load: loadIt,
  });
}

const PAGES = {
  "/experiments/:id": page(() => import("./pages/overview").then((module) => module.Overview)),
  "/experiments/:id/trials": page(() => import("./pages/trials").then((module) => module.Trials)),
  "/experiments/:id/relations": page(() => import("./pages/relations").then((module) => module.Relations)),
  "/experiments/:id/curves": page(() => import("./pages/curves").then((module) => module.Curves)),
  "/experiments/:id/compare": page(() => import("./pages/compare").then((module) => module.Compare)),
  "/experiments/:id/log": page(() => import("./pages/logs").then((module) => module.DispatcherLog)),
  "/experiments/:id/search": page(() => import("./pages/search").then((module) => module.LogSearchPage)),
  "/experiments/:id/events": page(() => import("./pages/events").then((module) => module.Events)),
  "/compare": page(() => import("./pages/compare_experiments").then((module) => module.CompareExperiments)),
  "/nodes": page(() => import("./pages/nodes").then((module) => module.Nodes)),
  "/log": page(() => import("./pages/logs").then((module) => module.ManagerLog)),
  "/trials/:id": page(() => import("./pages/trial").then((module) => module.TrialPage)),
};

/** Load the script of the page at an address. */
export async function loadPage(path: string): Promise<void> {
  for (const [pattern, { load }] of Object.entries(PAGES)) {
    const isThere = new RegExp(`^${pattern.replace(":id", "[^/]+")}/?$`).test(path);
    if (isThere) await load().catch(() => undefined); // it is tried again when it is shown
  }
}

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
            {Object.entries(PAGES).map(([path, Page]) => (
              <Route key={path} path={path}>
                {({ id }: { id?: string }) => <Page key={id} id={id ?? ""} />}
              </Route>
            ))}
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
  return Number.isNaN(milliseconds) ? formatTime(null) : formatClock(milliseconds / 1000);
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
