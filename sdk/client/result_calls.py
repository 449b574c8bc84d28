"""The calls that read what the trials of one experiment have brought: tables, curves, causes of failures, exports."""

import base64
import gzip
import json
import math
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from proctor.sdk.client.transport import PAGE_SIZE, Calls, JsonObject, Query, path_of

IMPORTANCE_POLL_SECONDS = 0.3
SAVED_VERSION = 1
"""Of the data in a saved page; `webui/src/api/snapshot.ts` reads them."""
SAVED_POINTS = 200_000
"""Of all curves in a saved page together: those of many trials have fewer points each."""
LEAST_SAVED_POINTS = 20
_MOST_CURVES = 200
_MOST_ROWS = 100_000
_SNAPSHOT = '<script type="application/octet-stream" id="snapshot">'
_COUNTS = {"u8": "B", "u16": "H", "u32": "I"}


class ResultCalls(Calls):
    """Results of an experiment."""

    def best(self, experiment_id: str) -> JsonObject | None:
        """The best trial so far: trial_id, sequence_id, value, parameters; None while there is none."""
        found: JsonObject | None = self._get(path_of("experiments", experiment_id))["best"]
        return found

    def curve(self, experiment_id: str) -> Iterator[JsonObject]:
        """Each trial that succeeded or was stopped early and has a final metric, with the best value until then."""
        return self._transport.pages(path_of("experiments", experiment_id, "curve"))

    def failures(self, experiment_id: str, *, limit: int = 100) -> JsonObject:
        """Why its trials have failed: `failed` and `counted` (trials), `cause_count`, and `causes`, the most frequent
        first, each with `end_reason`, `detail`, `trials`, `nodes` and an `example`.

        :param limit: how many causes at most.
        """
        path = path_of("experiments", experiment_id, "failures")
        found: JsonObject = self._transport.request("GET", path, query={"limit": limit})
        return found

    def importance(
        self,
        experiment_id: str,
        *,
        key: str | None = None,
        quantile: float = 0.1,
        direction: str | None = None,
        wait_seconds: float = 120.0,
    ) -> JsonObject:
        """How much each parameter matters for being among the best trials: `parameters` (name and importance, which sum
        to 1, the greatest first), of how many `trials`, or the `reason` for which there are none; `state` is COMPUTING,
        CURRENT or OUTDATED.

        :param key: of the final metric, nested ones with dots; None: its number.
        :param quantile: the share of the trials that are the best.
        :param direction: minimize or maximize; None: the experiment's.
        :param wait_seconds: how long to wait while the manager computes; then what it knows is returned.
        """
        query: Query = {"key": key, "quantile": str(quantile), "direction": direction}
        path, until = path_of("experiments", experiment_id, "importance"), time.monotonic() + wait_seconds
        while True:
            found: JsonObject = self._transport.request("GET", path, query=query)
            if found["state"] != "COMPUTING" or time.monotonic() >= until:
                return found
            time.sleep(IMPORTANCE_POLL_SECONDS)

    def scheduler(self, experiment_id: str) -> JsonObject:
        """What the trial scheduler of an experiment shows (rungs, brackets, a population): `name`, which is None where
        there is none, and `tables`, each with `title`, `columns`, `rows` and `trial_columns`, the columns that hold
        numbers of trials; `trial_ids` has the ids of these."""
        return self._get(path_of("experiments", experiment_id, "scheduler"))

    def imported_results(self, experiment_id: str) -> list[JsonObject]:
        """The results from elsewhere that the tuner of an experiment was given: `parameter` and `value` of each."""
        found: list[JsonObject] = self._get(path_of("experiments", experiment_id, "imported"))["items"]
        return found

    def views(self, experiment_id: str) -> list[JsonObject]:
        """The saved views of an experiment, by name: `name`, `page`, `query`, `saved_at`, `saved_by`."""
        found: list[JsonObject] = self._get(path_of("experiments", experiment_id, "views"))["items"]
        return found

    def save_view(self, experiment_id: str, name: str, *, page: str, query: str = "") -> JsonObject:
        """Save the address of a page under a name, in place of the view of this name.

        :param page: trials, curves or relations.
        :param query: the query string of its address, such as `urllib.parse.urlencode({"filter": "value > 0.9"})`.
        """
        path, body = path_of("experiments", experiment_id, "views", name), {"page": page, "query": query}
        found: JsonObject = self._transport.request("PUT", path, body=body)
        return found

    def delete_view(self, experiment_id: str, name: str) -> None:
        """Delete a saved view."""
        self._transport.request("DELETE", path_of("experiments", experiment_id, "views", name))

    def export(
        self, experiment_id: str, *, status: str | None = None, intermediate: bool = False
    ) -> Iterator[JsonObject]:
        """The outcomes of its trials: parameter, value (None: it has no final metric), trial_id, sequence_id, status …

        :param status: only trials in this status; None: all that have ended.
        """
        query = {"status": status, "intermediate": "true" if intermediate else None}
        return self._transport.pages(path_of("experiments", experiment_id, "export"), query=query)

    def saved_page(self, experiment_id: str) -> str:
        """An experiment's pages as one HTML file: its overview, its trials and their curves, without a manager.

        It loads nothing and changes nothing. Curves of many trials have fewer points: `SAVED_POINTS` together.
        """
        experiment = self._get(path_of("experiments", experiment_id))
        found = list(self.trials(experiment_id, sort="sequence_id"))
        numbers = [trial["sequence_id"] for trial in found if trial["intermediate_count"]]
        most = max(LEAST_SAVED_POINTS, SAVED_POINTS // max(1, len(numbers)))
        curves: dict[int, tuple[list[float], list[float | None]]] = {}
        is_thinned = False
        for begin in range(0, len(numbers), _MOST_CURVES):
            for number, points in self.curves(experiment_id, numbers[begin : begin + _MOST_CURVES]).items():
                is_thinned |= len(points) > most
                curves[number] = _saved_curve(points, most)
        data = {
            "version": SAVED_VERSION,
            "saved_at": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
            "experiment": experiment,
            "best_curve": list(self.curve(experiment_id)),
            "trials": found,
            "table": self.table(experiment_id, columns=("*", "time"), limit=_MOST_ROWS),
            "curves": curves,
            "is_thinned": is_thinned,
        }
        packed = gzip.compress(json.dumps(data, separators=(",", ":")).encode(), mtime=0)
        page = self._transport.fetch("/saved-page")[0].decode("utf-8")
        if page.count(_SNAPSHOT) != 1:
            raise ValueError("the manager's page has no place for data; use the client of the manager's version")
        return page.replace(_SNAPSHOT, _SNAPSHOT + base64.b64encode(packed).decode("ascii"), 1)

    def import_data(
        self, experiment_id: str, rows: Sequence[Mapping[str, Any]], *, skip_outside: bool = False
    ) -> JsonObject:
        """Import results of another experiment: rows of `parameter` and `value`; rows without a value are skipped.

        Returns how many rows were `imported` and how many `skipped`. Nothing is imported where a row is outside of the
        search space, unless `skip_outside` leaves those out.
        """
        query: Query = {"skip_outside": "true" if skip_outside else None}
        path, body = path_of("experiments", experiment_id, "import"), [dict(row) for row in rows]
        found: JsonObject = self._transport.request("POST", path, query=query, body=body)
        return found

    def trials(
        self,
        experiment_id: str,
        *,
        status: str | None = None,
        filter: str | None = None,
        sort: str | None = None,
        page_size: int = PAGE_SIZE,
    ) -> Iterator[JsonObject]:
        """The trials of an experiment, page after page as they are asked for.

        :param filter: only those that it lets through: `status = SUCCEEDED and lr < 1e-3`.
        :param sort: sequence_id or a column of `table`, with a `-` for the greatest first; best or -best: the best, or
            the worst, value first.
        """
        query = {"status": status, "filter": filter, "sort": sort, "limit": page_size}
        return self._transport.pages(path_of("experiments", experiment_id, "trials"), query=query)

    def table(
        self,
        experiment_id: str,
        *,
        filter: str | None = None,
        sort: Sequence[str] = (),
        columns: Sequence[str] = ("*",),
        offset: int = 0,
        limit: int = 1000,
    ) -> JsonObject:
        """The trials of an experiment by rows: `columns` (name, type, varies), `rows`, `total`, `matched`, `revision`.

        :param filter: only the trials that it lets through: `status = SUCCEEDED and lr < 1e-3`.
        :param sort: columns, each with a `-` for the greatest first.
        :param columns: names; `*` for all that are stored, `parameter.*`, `value.*`.
        :param offset: how many trials to leave out.
        """
        query: Query = {
            "filter": filter,
            "sort": list(sort) or None,
            "columns": ",".join(columns),
            "offset": offset,
            "limit": limit,
        }
        found: JsonObject = self._transport.request("GET", path_of("experiments", experiment_id, "table"), query=query)
        return found

    def table_file(
        self,
        experiment_id: str,
        format: str,
        *,
        filter: str | None = None,
        sort: Sequence[str] = (),
        columns: Sequence[str] = ("*",),
        limit: int = 100_000,
    ) -> bytes:
        """The same as a file: json, csv, or parquet where the manager has pyarrow."""
        query: Query = {
            "format": format,
            "filter": filter,
            "sort": list(sort) or None,
            "columns": ",".join(columns),
            "limit": limit,
        }
        return self._transport.fetch(path_of("experiments", experiment_id, "table"), query=query)[0]

    def changes(
        self, experiment_id: str, *, after: int, columns: Sequence[str] = ("*",), filter: str | None = None
    ) -> JsonObject:
        """What has changed in an experiment since an event: `experiment`, `rows` (a table), `filtered_out` (the numbers
        of changed trials that the filter does not let through), `points` of curves, and the `revision` to ask from next
        time; `reset`: read everything again.

        :param after: the `revision` of a table, or of the changes before.
        """
        query: Query = {"after": after, "columns": ",".join(columns), "filter": filter}
        found: JsonObject = self._transport.request(
            "GET", path_of("experiments", experiment_id, "changes"), query=query
        )
        return found

    def curves(
        self,
        experiment_id: str,
        trials: Sequence[int | str] | None = None,
        *,
        key: str | None = None,
        x: str = "step",
    ) -> dict[int, list[tuple[float, float]]]:
        """The visible curves of trials, by their numbers, as (x, value): NaN for a value that is not a finite
        number, and for an x that is not known. Both have the precision of a float32.

        :param trials: at most 200 numbers or ids; None: all trials with points.
        :param key: of what was reported, nested ones with dots; None: its number.
        :param x: `step`, `seconds` since the trial was first started, or `time`, the Unix time.
        """
        ids = None if trials is None else ",".join(map(str, trials))
        query: Query = {"ids": ids, "key": key, "x": x}
        data, _ = self._transport.fetch(path_of("experiments", experiment_id, "curves"), query=query)
        return unpack_curves(data)

    def curve_keys(self, experiment_id: str) -> list[str]:
        """The keys that `curves` and `density` take: those under which trials have reported numbers, nested ones with
        dots, by name."""
        found: list[str] = self._get(path_of("experiments", experiment_id, "curves", "keys"))["items"]
        return found

    def density(
        self,
        experiment_id: str,
        *,
        key: str | None = None,
        x: str = "step",
        width: int = 1000,
        height: int = 400,
        log_x: bool = False,
        log_y: bool = False,
    ) -> JsonObject:
        """How many curves of all trials pass through each cell of a chart: `counts`, a list of rows, that of the
        greatest values first; `curves`, `most`, and the axes `x` and `y` with `from`, `to`, `least`, `greatest`.

        :param key: as for `curves`, and so is `x`.
        :param width: how many columns of cells.
        :param height: how many rows.
        """
        query: Query = {
            "key": key,
            "x": x,
            "width": width,
            "height": height,
            "log_x": "true" if log_x else None,
            "log_y": "true" if log_y else None,
        }
        data, _ = self._transport.fetch(path_of("experiments", experiment_id, "curves", "density"), query=query)
        return unpack_density(data)


def _saved_curve(points: Sequence[tuple[float, float]], most: int) -> tuple[list[float], list[float | None]]:
    """Steps and values, `most` of them at equal distances, the first and the last included."""
    if len(points) > most:
        points = [points[round(place * (len(points) - 1) / (most - 1))] for place in range(most)]
    values = [float(f"{value:.6g}") if math.isfinite(value) else None for _, value in points]
    return [step for step, _ in points], values


def unpack_curves(data: bytes) -> dict[int, list[tuple[float, float]]]:
    """What `curves` answers, by the numbers of the trials. Raises ValueError for anything else."""
    if data[:4] != b"PCRV":
        raise ValueError(f"expected curves, which begin with PCRV; found {data[:4]!r}")
    version, trials, points, base = struct.unpack_from("<IIId", data, 4)
    if version != 2:
        raise ValueError(
            f"expected curves of version 2, found version {version}; use the client of the manager's version"
        )
    whole = struct.unpack_from(f"<{3 * trials}I", data, 24)
    numbers = struct.unpack_from(f"<{2 * points}f", data, 24 + 12 * trials)
    found = {}
    for place in range(trials):
        begin, end = whole[2 * trials + place], whole[2 * trials + place] + whole[trials + place]
        xs = [base + number for number in numbers[begin:end]]
        found[whole[place]] = list(zip(xs, numbers[points + begin : points + end], strict=True))
    return found


def unpack_density(data: bytes) -> JsonObject:
    """What `density` answers. Raises ValueError for anything else."""
    if data[:4] != b"PDEN":
        raise ValueError(f"expected a density, which begins with PDEN; found {data[:4]!r}")
    (size,) = struct.unpack_from("<I", data, 4)
    found: JsonObject = json.loads(data[8 : 8 + size])
    width, cells = found["width"], found["width"] * found["height"]
    counts = struct.unpack_from(f"<{cells}{_COUNTS[found['encoding']]}", data, 8 + size)
    return {**found, "counts": [list(counts[begin : begin + width]) for begin in range(0, cells, width)]}
