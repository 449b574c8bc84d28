// What a trial scheduler shows: rungs, brackets, a population.

import { Link } from "wouter";
import { useScheduler } from "../api/queries";
import type { Experiment, SchedulerState, SchedulerTable } from "../api/schema";
import { Ago, Empty, Panel, Scroll } from "../components/parts";
import { capitalized, formatNumber } from "../format";
import { isOver } from "../state/progress";

/** Nothing where there is no trial scheduler. */
export function Scheduler({ experiment }: { experiment: Experiment }) {
  const { data } = useScheduler(experiment.id, isOver(experiment));
  if (!data?.name) return null;
  const updated = data.updated_at && (
    <>
      , updated <Ago time={data.updated_at} />
    </>
  );
  return (
    <Panel
      title="Trial scheduler"
      className="scheduler"
      aside={
        <>
          {data.name}
          {updated}
        </>
      }
    >
      {data.tables.length ? (
        data.tables.map((table) => <SchedulerRows key={table.title} table={table} trialIds={data.trial_ids ?? {}} />)
      ) : (
        <Empty>It has shown nothing yet.</Empty>
      )}
    </Panel>
  );
}

function SchedulerRows({ table, trialIds }: { table: SchedulerTable; trialIds: TrialIds }) {
  const texts = table.columns.map((_, at) => table.rows.some((row) => isText(row[at])));
  const last = table.columns.length - 1;
  const style = (at: number) => (!texts[at] ? "number" : at === last ? "rest" : undefined);
  return (
    <>
      <h3>{capitalized(table.title)}</h3>
      {table.rows.length ? (
        <Scroll className="tall" label={table.title}>
          <table className="lines">
            <thead>
              <tr>
                {table.columns.map((name, at) => (
                  <th key={name} scope="col" className={style(at)}>
                    {capitalized(name)}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {table.rows.map((row, number) => (
                <tr key={number}>
                  {row.map((cell, at) => (
                    <td key={table.columns[at]} className={style(at)} title={isText(cell) ? cell : undefined}>
                      {table.trial_columns.includes(at) ? (
                        <TrialLink number={cell} ids={trialIds} />
                      ) : (
                        formatNumber(cell)
                      )}
                    </td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </Scroll>
      ) : (
        <Empty>None.</Empty>
      )}
    </>
  );
}

type TrialIds = NonNullable<SchedulerState["trial_ids"]>;

function isText(cell: unknown): cell is string {
  return typeof cell === "string";
}

function TrialLink({ number, ids }: { number: unknown; ids: TrialIds }) {
  const id = ids[String(number)];
  return id ? <Link href={`/trials/${id}`}>{String(number)}</Link> : <>{formatNumber(number)}</>;
}
