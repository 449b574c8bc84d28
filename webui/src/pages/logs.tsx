// What the manager and the dispatchers of experiments have logged.

import { useEffect, useMemo } from "react";
import { Panel } from "../components/parts";
import { readable } from "../logs/entries";
import { partsOf } from "../logs/tail";
import { LogViewer } from "../logs/viewer";
import { apiUrl } from "../state/root";
import { ExperimentPage } from "./experiment";

const readManagerLog = partsOf((offset, limit) => apiUrl("logs/manager", { offset, limit }));

export function ManagerLog() {
  useEffect(() => {
    document.title = "Log · Proctor";
  }, []);
  return (
    <>
      <div className="bar">
        <h1>Log of the manager</h1>
      </div>
      <div className="panel">
        <LogViewer
          read={readManagerLog}
          format={readable}
          isOpen
          fills
          label="the manager's log"
          download="manager.log"
        />
      </div>
    </>
  );
}

export function DispatcherLog({ id }: { id: string }) {
  const read = useMemo(() => partsOf((offset, limit) => apiUrl(`experiments/${id}/logs`, { offset, limit })), [id]);
  return (
    <ExperimentPage id={id}>
      {() => (
        <Panel title="Log of the dispatcher" aside="tuner and assessor">
          <LogViewer read={read} isOpen fills label="the dispatcher's log" download={`${id}-dispatcher.log`} />
        </Panel>
      )}
    </ExperimentPage>
  );
}
