// What is wrong with an input, each problem at its key.

import { ApiProblem } from "../api/client";
import { capitalized } from "../format";

export function Problems({ error }: { error: Error | null }) {
  if (!error) return null;
  const items = error instanceof ApiProblem ? (error.problem?.problems ?? []) : [];
  return (
    <div className="failure" role="alert">
      {items.length ? (
        <ul>
          {items.map((item) => (
            <li key={`${item.key} ${item.message}`}>
              {item.line && `Line ${item.line}: `}
              {item.key && <code>{item.key}</code>} {item.key ? item.message : capitalized(item.message)}
            </li>
          ))}
        </ul>
      ) : (
        capitalized(error.message)
      )}
    </div>
  );
}
