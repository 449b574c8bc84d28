// The manager's stream of changes: one connection for all tabs of a browser, because a browser opens six to a host.
//
// The tab that holds the lock reads the stream and passes it on; when it closes, the next one continues after the last
// event that it has seen. Where a browser has no locks (an address that is neither https nor this machine), each tab reads
// for itself.

import { apiUrl } from "../state/root";

export const KINDS = [
  "experiment.status",
  "experiment.deleted",
  "trial.status",
  "job.status",
  "metrics",
  "limits",
  "labels",
  "view",
  "notice",
  "node",
  "reset",
] as const;

/** One event of the stream. `experimentId` is null for what concerns all, such as "reset". */
export interface Change {
  id: number;
  kind: string;
  experimentId: string | null;
  trialId: string | null;
}

/** "live": what is shown is current; else since when it is not, in milliseconds since 1970. */
export type Connection = { state: "live" } | { state: "connecting" | "lost"; since: number };

export interface Listener {
  onChanges(changes: Change[]): void;
  onConnection(connection: Connection): void;
}

type Message =
  | { type: "changes"; changes: Change[]; cursor: number }
  | { type: "connection"; connection: Connection }
  | { type: "hello" };

const PASS_ON_MILLISECONDS = 200;
const RETRY_MILLISECONDS = 2000;
const NAME = "proctor-stream";

/** Follows the stream until `close`. */
export class ChangeStream {
  private readonly channel: BroadcastChannel;
  private readonly closing = new AbortController();
  private source: EventSource | undefined;
  private cursor = 0;
  private connection: Connection = { state: "connecting", since: Date.now() };
  private waiting: Change[] = [];
  private timer: ReturnType<typeof setTimeout> | undefined;
  private retry: ReturnType<typeof setTimeout> | undefined;

  constructor(private readonly listener: Listener) {
    const name = `${NAME} ${new URL(apiUrl("events")).pathname}`;
    this.channel = new BroadcastChannel(name);
    this.channel.onmessage = (event: MessageEvent<Message>) => this.receive(event.data);
    this.channel.postMessage({ type: "hello" } satisfies Message);
    this.lead(name);
  }

  /** Stop. Another tab takes over. */
  close(): void {
    this.closing.abort();
    clearTimeout(this.timer);
    clearTimeout(this.retry);
    this.source?.close();
    this.channel.close();
  }

  private lead(name: string): void {
    if (!navigator.locks) {
      this.open();
      return;
    }
    const held = () =>
      new Promise<void>((release) => {
        if (this.closing.signal.aborted) return release();
        this.closing.signal.addEventListener("abort", () => release());
        this.open();
      });
    navigator.locks.request(name, { signal: this.closing.signal }, held).catch(() => undefined);
  }

  private open(): void {
    const source = new EventSource(apiUrl("events", { after: this.cursor || undefined }));
    this.source = source;
    source.onopen = () => this.announce({ state: "live" });
    source.onerror = () => {
      if (this.connection.state === "live") this.announce({ state: "lost", since: Date.now() });
      // After an answer that is no stream (a proxy without its server, say) a browser does not try again.
      if (source.readyState === EventSource.CLOSED) this.retry = setTimeout(() => this.open(), RETRY_MILLISECONDS);
    };
    for (const kind of KINDS) source.addEventListener(kind, (event) => this.take(kind, event));
  }

  private take(kind: string, event: MessageEvent<string>): void {
    const body = JSON.parse(event.data) as { experiment_id?: string | null; trial_id?: string | null };
    const id = Number(event.lastEventId);
    // A store that was put back counts from a smaller id again.
    this.cursor = kind === "reset" ? id : Math.max(this.cursor, id);
    this.waiting.push({ id, kind, experimentId: body.experiment_id ?? null, trialId: body.trial_id ?? null });
    this.timer ??= setTimeout(() => this.passOn(), PASS_ON_MILLISECONDS);
  }

  private passOn(): void {
    this.timer = undefined;
    const changes = this.waiting;
    this.waiting = [];
    this.send({ type: "changes", changes, cursor: this.cursor });
    this.listener.onChanges(changes);
  }

  private announce(connection: Connection): void {
    this.connection = connection;
    this.send({ type: "connection", connection });
    this.listener.onConnection(connection);
  }

  private receive(message: Message): void {
    if (message.type === "hello") {
      if (this.source) this.send({ type: "connection", connection: this.connection });
    } else if (this.source && navigator.locks === undefined) {
      return; // every tab reads for itself
    } else if (message.type === "changes") {
      this.cursor = message.cursor;
      this.listener.onChanges(message.changes);
    } else {
      this.connection = message.connection;
      this.listener.onConnection(message.connection);
    }
  }

  private send(message: Message): void {
    if (!this.closing.signal.aborted) this.channel.postMessage(message);
  }
}
