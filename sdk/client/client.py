"""The manager's REST API as Python calls. Objects are the resources of the API as they travel, as dictionaries."""

import os
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from proctor.sdk.client.errors import ManagerUnreachable
from proctor.sdk.client.events import EventStream
from proctor.sdk.client.home import ENV_TOKEN, ENV_URL, absence, find_home, read_address, read_token
from proctor.sdk.client.logs import LogPiece
from proctor.sdk.client.result_calls import ResultCalls
from proctor.sdk.client.transport import AGENT, PAGE_SIZE, TIMEOUT_SECONDS, JsonObject, Query, Transport, path_of
from proctor.sdk.client.trial_calls import TrialCalls

LONG_TIMEOUT_SECONDS = 900.0
"""For requests that use machines or a storage of checkpoints: each step has its own limit, this one is for the sum."""


class Client(ResultCalls, TrialCalls):
    """Talks to one manager. Close it, or use it with `with`.

    Every call raises an error of `proctor.sdk.client.errors` when the manager cannot be asked or refuses.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        home: str | os.PathLike[str] | None = None,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        agent: str = AGENT,
    ) -> None:
        """Find the manager: `url`, else PROCTOR_URL, else the one running for `home`.

        :param token: else PROCTOR_TOKEN; else, for the home's own manager, the token in the home.
        :param home: the folder of the manager's state; PROCTOR_HOME or the platform's state directory if not given.
        :param agent: who sends the requests: events say that a change was made in Python, or with the command line.
        """
        self.home = find_home(home)
        named, address = url or os.environ.get(ENV_URL), read_address(self.home)
        if named is None and address is None:
            if why := absence(self.home):
                raise ManagerUnreachable(f"no manager is running for {self.home}, and {why}")
            raise ManagerUnreachable(f"no manager is running for {self.home}; start one with `proctor manager start`")
        own = "" if address is None else address.url
        self.url = (named or own).rstrip("/")
        given = token or os.environ.get(ENV_TOKEN)
        self.token = given or (read_token(self.home) if self.url == own else None)  # no other server gets our token
        self._transport = Transport(self.url, self.token, timeout_seconds=timeout_seconds, agent=agent)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._transport.close()

    def page_url(self, path: str = "/") -> str:
        """A page of the manager as a browser opens it, token included: keep it to yourself."""
        return f"{self.url}{path}" + (f"?token={quote(self.token)}" if self.token else "")

    # The manager

    def health(self) -> JsonObject:
        """Whether the manager is healthy; needs no token."""
        return self._get("/health")

    def version(self) -> JsonObject:
        """Who answers."""
        return self._get("/version")

    def session(self) -> JsonObject:
        """What the token allows (`access`: "full" or "read-only"), its name (`token`), the manager's version,
        `url_prefix` and `limits`."""
        return self._get("/session")

    def tokens(self) -> Iterator[JsonObject]:
        """The named tokens, without the tokens themselves. Needs full access, as the next two."""
        return self._transport.pages("/tokens")

    def add_token(self, name: str, *, access: str = "full") -> JsonObject:
        """Make a named token, which is `token` of what is returned and cannot be read again.

        :param access: "full" or "read-only".
        """
        return self._post("/tokens", {"name": name, "access": access})

    def revoke_token(self, name: str) -> None:
        """Revoke a named token: at once nothing can be done with it, and its streams of changes end."""
        self._transport.request("DELETE", path_of("tokens", name))

    def nodes(self) -> Iterator[JsonObject]:
        """The machines on which trials run."""
        return self._transport.pages("/nodes")

    def node(self, node_id: str) -> JsonObject:
        """One of them."""
        return self._get(path_of("nodes", node_id))

    def occupancy(
        self, node_id: str, *, since: str | None = None, until: str | None = None, limit: int = 500, points: int = 360
    ) -> JsonObject:
        """Who held which GPU of a machine when (`jobs`), and how busy it was (`times`, `load`, `memory_used_mb`,
        `gpus`).

        :param since: RFC 3339; None: an hour before `until`.
        :param until: RFC 3339; None: now.
        :param limit: how many ended jobs at most, the newest.
        :param points: how many samples at most.
        """
        query: Query = {"since": since, "until": until, "limit": limit, "points": points}
        found: JsonObject = self._transport.request("GET", path_of("nodes", node_id, "occupancy"), query=query)
        return found

    def check_node(self, node_id: str) -> JsonObject:
        """Try to reach a machine now; the outcome is reported by events of kind `node`."""
        return self._post(path_of("nodes", node_id, "check"))

    def drain_node(self, node_id: str, *, reason: str = "") -> JsonObject:
        """Give a machine no new jobs until it is resumed; what already runs there continues."""
        return self._post(path_of("nodes", node_id, "drain"), {"reason": reason})

    def resume_node(self, node_id: str) -> JsonObject:
        """Give a drained or quarantined machine jobs again."""
        return self._post(path_of("nodes", node_id, "resume"))

    def collect_node(self, node_id: str, *, experiment_id: str | None = None) -> Iterator[JsonObject]:
        """Collect the files that stopped experiments, or one of them, still have on a machine. Yields how far that is,
        every few seconds, one experiment after the other, until `is_finished`; `problem` says why files stay there. It
        continues if the caller stops iterating."""
        query = {"experiment_id": experiment_id}
        return self._transport.json_lines("POST", path_of("nodes", node_id, "collect"), query=query)

    def forget_node(self, node_id: str) -> None:
        """Forget a machine that no experiment uses and that cannot be cleaned up; what is there stays there."""
        self._transport.request("POST", path_of("nodes", node_id, "forget"))

    def check_platform(
        self,
        config: Mapping[str, Any],
        *,
        directory: str | os.PathLike[str],
        handover: str | None = None,
        machine: int | None = None,
    ) -> list[JsonObject]:
        """Try every hop to the machines of a configuration: steps of machine, name, verdict, found, advice.

        :param config: as in `create_experiment`, and so are the directory and the handover.
        :param machine: only this one, by its place in the list.
        """
        return self._ask_machines("check", config, directory, handover=handover, machine=machine)

    def render_platform(self, config: Mapping[str, Any], *, directory: str | os.PathLike[str]) -> list[JsonObject]:
        """The objects of Kubernetes that an experiment and its first trial would be, less what is secret or long.

        :param config: as in `create_experiment`, and so is the directory.
        """
        body = {"config": dict(config), "directory": os.fspath(directory)}
        objects: list[JsonObject] = self._post("/platforms/render", body)["items"]
        return objects

    def clean_platform(
        self,
        config: Mapping[str, Any],
        *,
        directory: str | os.PathLike[str],
        handover: str | None = None,
        machine: int | None = None,
    ) -> list[JsonObject]:
        """Remove everything of the manager from the machines of a configuration; the rest is as in
        `check_platform`."""
        return self._ask_machines("clean", config, directory, handover=handover, machine=machine)

    def manager_log(self, *, offset: int = 0, limit: int | None = None) -> LogPiece:
        """A stretch of the manager's log; a negative offset counts from its end."""
        return self._log("/logs/manager", {"offset": offset, "limit": limit})

    def shutdown(self) -> None:
        """Ask the manager to leave; trials keep running under their keepers."""
        self._post("/shutdown")

    def events(self, *, experiment_id: str | None = None, after: int | None = None) -> EventStream:
        """Every change from now on, or after that event id."""
        return EventStream(self._transport, experiment_id=experiment_id, after=after)

    def past_events(
        self, experiment_id: str, *, kinds: Sequence[str] = (), text: str = "", page_size: int = PAGE_SIZE
    ) -> Iterator[JsonObject]:
        """The events of an experiment, the newest first, page after page as they are asked for.

        :param kinds: only of these kinds, such as trial.status; none: of all.
        :param text: only those whose data contain this, upper or lower case.
        """
        query: Query = {"kind": list(kinds) or None, "text": text or None, "limit": page_size}
        return self._transport.pages(path_of("experiments", experiment_id, "events"), query=query)

    # Experiments

    def experiments(
        self,
        *,
        status: str | None = None,
        name: str | None = None,
        id_prefix: str | None = None,
        tags: Sequence[str] = (),
        archived: bool | None = False,
    ) -> Iterator[JsonObject]:
        """Experiments, newest first; or those of a status or a name, or at most 20 by the beginning of the id.

        :param tags: only those that have all of these.
        :param archived: False: without those that are archived and have ended; True: only those; None: all.
        """
        query: Query = {
            "status": status,
            "name": name,
            "id_prefix": id_prefix,
            "tag": list(tags) or None,
            "archived": "all" if archived is None else str(archived).lower(),
            "limit": PAGE_SIZE,
        }
        return self._transport.pages("/experiments", query=query)

    def experiment(self, experiment_id: str) -> JsonObject:
        """One experiment."""
        return self._get(path_of("experiments", experiment_id))

    def create_experiment(
        self,
        config: Mapping[str, Any],
        *,
        directory: str | os.PathLike[str],
        handover: str | None = None,
        experiment_id: str | None = None,
        dry_run: bool = False,
    ) -> JsonObject:
        """Begin an experiment.

        :param config: as it would be written in YAML, without secrets.
        :param directory: where relative paths in it start; absolute.
        :param handover: name of a file in the home's incoming folder, from `credentials.write_caller_environment`.
        """
        body: JsonObject = {"config": dict(config), "directory": os.fspath(directory), "handover": handover}
        body |= {"experiment_id": experiment_id, "dry_run": dry_run}
        return self._post("/experiments", body, timeout_seconds=LONG_TIMEOUT_SECONDS)

    def load_experiment(
        self,
        archive: str,
        *,
        experiment_id: str | None = None,
        code_directory: str | None = None,
        keep_storage: bool = False,
        handover: str | None = None,
    ) -> JsonObject:
        """Import a saved experiment, stopped.

        :param archive: name of a zip in the home's incoming folder, made by `proctor experiment save`.
        :param code_directory: where its code is now, if not where it was; absolute.
        :param keep_storage: adopt the checkpointStorage that the archive names, with what the experiment has there.
        :param handover: name of a file in the home's incoming folder, from `credentials.write_caller_environment`: the
            environment of its trials once it is resumed.
        """
        body: JsonObject = {"archive": archive, "experiment_id": experiment_id, "code_directory": code_directory}
        if keep_storage:  # which an earlier manager refuses, rather than do something else
            body["keep_storage"] = True
        body["handover"] = handover
        return self._post("/experiments/load", body, timeout_seconds=LONG_TIMEOUT_SECONDS)

    def update_experiment(self, experiment_id: str, changes: Mapping[str, Any]) -> JsonObject:
        """Change limits or search space while it runs; None takes a limit away, what is left out stays.

        Keys: trial_concurrency, max_trial_number, max_experiment_duration_seconds, max_trial_duration_seconds,
        max_gpu_hours, priority, search_space, tags (all that it has from now on), archived.
        """
        found: JsonObject = self._transport.request("PATCH", path_of("experiments", experiment_id), body=dict(changes))
        return found

    def delete_experiment(self, experiment_id: str, *, keep_checkpoints: bool = False) -> list[str]:
        """Remove an experiment that does not run, with its folder; `keep_checkpoints`: not what is in its
        checkpointStorage. Returns what was left because nothing shows that it is the experiment's, a sentence each."""
        query = {"keep_checkpoints": "true"} if keep_checkpoints else None
        answer = self._transport.request(
            "DELETE", path_of("experiments", experiment_id), query=query, timeout_seconds=LONG_TIMEOUT_SECONDS
        )
        return list((answer or {}).get("left", []))  # an earlier manager answers nothing

    def stop_experiment(self, experiment_id: str) -> JsonObject:
        """End its trials and the experiment; it can be resumed."""
        return self._post(path_of("experiments", experiment_id, "stop"))

    def resume_experiment(self, experiment_id: str, *, trials: bool = False) -> JsonObject:
        """Resume a stopped, failed or paused experiment; `trials`: its PAUSED trials, too, even if it is running."""
        return self._post(path_of("experiments", experiment_id, "resume"), query=_with_trials(trials))

    def pause_experiment(self, experiment_id: str, *, trials: bool = False) -> JsonObject:
        """Stop starting new trials; running trials finish, unless `trials` pauses them, too."""
        return self._post(path_of("experiments", experiment_id, "pause"), query=_with_trials(trials))

    def view_experiment(self, experiment_id: str) -> JsonObject:
        """Open a stopped experiment for reading only."""
        return self._post(path_of("experiments", experiment_id, "view"))

    def stop_all(self) -> JsonObject:
        """Stop every experiment."""
        return self._post("/stop-all")

    def dispatcher_log(self, experiment_id: str, *, offset: int = 0, limit: int | None = None) -> LogPiece:
        """A stretch of what tuner, assessor and trial scheduler printed."""
        query: Query = {"source": "dispatcher", "offset": offset, "limit": limit}
        return self._log(path_of("experiments", experiment_id, "logs"), query)

    def _ask_machines(
        self,
        verb: str,
        config: Mapping[str, Any],
        directory: str | os.PathLike[str],
        *,
        handover: str | None,
        machine: int | None,
    ) -> list[JsonObject]:
        body = {"config": dict(config), "directory": os.fspath(directory), "handover": handover, "machine": machine}
        answer = self._transport.request(
            "POST", path_of("platforms", verb), body=body, timeout_seconds=LONG_TIMEOUT_SECONDS
        )
        steps: list[JsonObject] = answer["items"]
        return steps


def _with_trials(trials: bool) -> Query:
    return {"trials": "true" if trials else None}
