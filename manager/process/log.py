"""What the manager says: every line a sentence with a stable `action` and the ids it is about.

    log.info("experiment %s is stopped", id, extra={"action": "experiment.finish_stop", "experiment_id": id})

On stderr for people or as JSON lines; in the file always as JSON lines, which `proctor log manager` shows.
"""

import json
import logging
import logging.handlers
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from proctor.manager.control_characters import clean, clean_json

FIELDS = ("action", "experiment_id", "trial_id", "job_id", "node_id")
FILE_BYTES = 10 * 1024 * 1024
FILES = 5


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, then action, ids and traceback where there are any."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update({name: value for name in FIELDS if (value := getattr(record, name, None)) is not None})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return clean_json(json.dumps(line, ensure_ascii=False, default=str))


class TextFormatter(logging.Formatter):
    """For people: local time, level, the sentence, the ids it is about."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line, and the traceback below it."""
        moment = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        ids = [f"{name.removesuffix('_id')} {value}" for name in FIELDS[1:] if (value := getattr(record, name, None))]
        text = f"{moment} {record.levelname.lower():<7} {record.getMessage()}"
        if ids:
            text += f"  [{', '.join(ids)}]"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return clean(text)


def start_logging(path: Path, *, format: str = "text", level: str = "INFO", stream: TextIO | None = None) -> None:
    """Send everything that is logged in this process to the file and to `stream` (stderr). Replaces what was set."""
    stop_logging()
    screen = logging.StreamHandler(stream or sys.stderr)
    screen.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    file = logging.handlers.RotatingFileHandler(path, maxBytes=FILE_BYTES, backupCount=FILES - 1, encoding="utf-8")
    file.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.setLevel(level)
    root.handlers = [screen, file]
    # Their own lines at INFO say what ours say already, and would put request lines (tokens!) into the log.
    for chatty in ("uvicorn", "uvicorn.access", "httpx", "asyncio", "asyncssh"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def stop_logging() -> None:
    """Close the handlers that `start_logging` has set."""
    root = logging.getLogger()
    for handler in [item for item in root.handlers if isinstance(item.formatter, (JsonFormatter, TextFormatter))]:
        root.removeHandler(handler)
        handler.close()
