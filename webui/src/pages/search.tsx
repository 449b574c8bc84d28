// A text in the output of an experiment's trials: found by the manager.

import { useState } from "react";
import { Link } from "wouter";
import { type Searched, useLogSearch } from "../api/queries";
import type { FoundLine } from "../api/schema";
import { Empty, Panel, Scroll, Waiting } from "../components/parts";
import { countOf, formatBytes } from "../format";
import { plain } from "../logs/ansi";
import { useUrlState } from "../state/url";
import { ExperimentPage } from "./experiment";

/** The address of a search in all output of a trial. */
export function searchAddress(experimentId: string, text: string, trialId: string): string {
  const query = new URLSearchParams({ q: text, case: "ignore", trial: trialId });
  return `/experiments/${experimentId}/search?${query}`;
}

/** The address of a trial's output at a line. */
export function lineAddress(line: FoundLine): string {
  const query = new URLSearchParams({ stream: line.stream, job: String(line.job), at: String(line.offset) });
  return `/trials/${line.trial_id}?${query}`;
}

export function LogSearchPage({ id }: { id: string }) {
  const [text, setText] = useUrlState("q");
  const [letterCase, setCase] = useUrlState("case");
  const [trial, setTrial] = useUrlState("trial");
  const [written, setWritten] = useState(text);
  return (
    <ExperimentPage id={id}>
      {() => (
        <Panel title="Search the output of trials">
          <form
            className="bar"
            onSubmit={(event) => {
              event.preventDefault();
              setText(written);
            }}
          >
            <input
              type="search"
              aria-label="Text to search for"
              placeholder="Literal text"
              value={written}
              onChange={(event) => setWritten(event.target.value)}
            />
            <label>
              <input
                type="checkbox"
                checked={letterCase === "ignore"}
                onChange={(event) => setCase(event.target.checked ? "ignore" : "")}
              />{" "}
              either case
            </label>
            <button type="submit">Search</button>
            {trial && (
              <button type="button" onClick={() => setTrial("")}>
                In all trials, not only {trial}
              </button>
            )}
          </form>
          {text ? (
            <Found of={trial ? { trial } : { experiment: id }} text={text} ignoresCase={letterCase === "ignore"} />
          ) : (
            <Empty>Both streams of every attempt are searched, the newest trial first.</Empty>
          )}
        </Panel>
      )}
    </ExperimentPage>
  );
}

function Found({ of, text, ignoresCase }: { of: Searched; text: string; ignoresCase: boolean }) {
  const found = useLogSearch(of, text, ignoresCase);
  if (!found.data) return <Waiting error={found.error} what="the output" />;
  const pages = found.data.pages;
  const lines = pages.flatMap((page) => page.items);
  const sum = (of: (page: (typeof pages)[number]) => number) => pages.reduce((total, page) => total + of(page), 0);
  const left = sum((page) => page.not_here_count);
  const size = formatBytes(sum((page) => page.searched_bytes));
  return (
    <>
      <p className="soft" role="status">
        {countOf(lines.length, "line")} in {size} of{" "}
        {countOf(
          sum((page) => page.searched_jobs),
          "job",
        )}
        {left > 0 && `; the output of ${countOf(left, "job")} is not on the manager's machine and was not searched`}.
      </p>
      {lines.length > 0 && (
        <Scroll label="Lines that have the text">
          <table className="lines">
            <thead>
              <tr>
                <th scope="col">Trial</th>
                <th scope="col">Stream</th>
                <th scope="col" className="number">
                  Line
                </th>
                <th scope="col" className="rest">
                  Text
                </th>
              </tr>
            </thead>
            <tbody>
              {lines.map((line) => (
                <tr key={`${line.trial_id} ${line.job} ${line.stream} ${line.offset}`}>
                  <th scope="row">
                    <Link href={lineAddress(line)} data-row>
                      {line.sequence_id}
                      {line.job > 1 && `, attempt ${line.job}`}
                    </Link>
                  </th>
                  <td>{line.stream}</td>
                  <td className="number">{line.line}</td>
                  <td className="rest mono" title={plain(line.text)}>
                    {plain(line.text)}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </Scroll>
      )}
      {found.hasNextPage && (
        <button type="button" disabled={found.isFetching} onClick={() => void found.fetchNextPage()}>
          {found.isFetching ? "Searching …" : "Search on"}
        </button>
      )}
    </>
  );
}
