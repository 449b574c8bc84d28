// Calls of the REST API: typed by the OpenAPI document; what fails is an ApiProblem.

import createClient, { type Middleware } from "openapi-fetch";
import { observeServerTime } from "../state/clock";
import { ROOT, SAVED } from "../state/root";
import type { Problem, paths } from "./schema";
import { answerFromSnapshot } from "./snapshot";

/** A problem document of the manager, or `status` 0: it could not be reached. */
export class ApiProblem extends Error {
  constructor(
    readonly status: number,
    readonly title: string,
    readonly detail: string,
    readonly problem?: Problem,
  ) {
    super(detail || title);
  }
}

const UNREACHABLE = "The manager cannot be reached. The page continues by itself when it is back.";

const observe: Middleware = {
  onResponse: ({ response }) => observeServerTime(response.headers.get("date")),
};

export const client = createClient<paths>({
  baseUrl: ROOT.href.replace(/\/$/, ""),
  ...(SAVED ? { fetch: answerFromSnapshot } : {}),
});
client.use(observe);

type Answer<T> = { data?: T; error?: unknown; response: Response };

/** The data of a call. Raises ApiProblem. */
export async function read<T>(call: Promise<Answer<T>>): Promise<T> {
  const answer = await reach(call);
  if (answer.response.ok) return answer.data as T;
  throw problemOf(answer.response.status, answer.error);
}

/** An answer that is not JSON: bytes or text. Raises ApiProblem. */
export async function send(address: string, options: RequestInit): Promise<Response> {
  const answer = await reach(fetch(address, options));
  observeServerTime(answer.headers.get("date"));
  if (answer.ok) return answer;
  throw problemOf(answer.status, await answer.json().catch(() => undefined));
}

async function reach<T>(call: Promise<T>): Promise<T> {
  try {
    return await call;
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiProblem(0, "Not reachable", UNREACHABLE);
  }
}

function problemOf(status: number, body: unknown): ApiProblem {
  const problem = (body ?? {}) as Partial<Problem>;
  const title = problem.title ?? `The manager answered ${status}`;
  return new ApiProblem(status, title, problem.detail ?? "", body as Problem);
}
