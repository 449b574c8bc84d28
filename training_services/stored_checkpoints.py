"""What the manager does with checkpoints that lie under a URL (checkpointStorage), each in a process of its own.

The libraries behind fsspec are large and block; credentials are found in the environment. Neither belongs in the
manager's process, so `proctor.sdk.checkpoints.storage` is run, with the manager's environment and the experiment's
variables.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from textwrap import shorten
from typing import Any

from proctor.sdk.checkpoints.ownership import Owner, StoredProof
from proctor.training_services.base import CheckpointOffer
from proctor.training_services.errors import ServiceUnavailable
from proctor.trial_keeper.linux.backoff import growing_pause

__all__ = [
    "await_verified",
    "claim_place",
    "delete_place",
    "delete_stored",
    "download_stored",
    "probe_storage",
    "release_place",
    "verify_stored",
]

TIME_LIMIT_SECONDS = 120.0
DELETE_SECONDS = 600.0
DOWNLOAD_SECONDS = 3600.0
MOST_SAID = 300
_STORAGE = "proctor.sdk.checkpoints.storage"
_OWNERSHIP = "proctor.sdk.checkpoints.ownership"


async def await_verified(offer: CheckpointOffer, environment: Mapping[str, str], notify: Callable[[str], None]) -> str:
    """Why no trial must continue from a checkpoint, as a clause; "" if its manifest is the registered one and all its
    files are there. Their content is verified where it is downloaded.

    :param notify: called with clauses on what it waits for, while the storage cannot be read.
    """
    failures = 0
    while True:
        try:
            return await verify_stored(offer, environment)
        except ServiceUnavailable as error:
            failures += 1
            pause = growing_pause(failures)
            notify(f"{error}; tried again in {pause:.0f} s")
            await asyncio.sleep(pause)


async def verify_stored(
    offer: CheckpointOffer, environment: Mapping[str, str], *, time_limit: float = TIME_LIMIT_SECONDS
) -> str:
    """As `await_verified`, once. Raises ServiceUnavailable."""
    request = {"do": "verify", "url": offer.path, "manifest": offer.manifest}
    return await _ask(request, environment, time_limit=time_limit)


async def delete_stored(url: str, environment: Mapping[str, str]) -> None:
    """Delete everything under a URL. What is not there is deleted already. Raises ServiceUnavailable."""
    await _ask({"do": "delete", "url": url}, environment, time_limit=DELETE_SECONDS)


async def claim_place(
    url: str,
    owner: Owner,
    environment: Mapping[str, str],
    *,
    proofs: Iterable[StoredProof] = (),
    adopts: bool = False,
    mark: str = "",
) -> str:
    """As `ownership.claim`. Raises ServiceUnavailable."""
    request = {"do": "claim", "url": url, "owner": list(owner), "proofs": list(proofs), "adopts": adopts, "mark": mark}
    return await _ask(request, environment, time_limit=TIME_LIMIT_SECONDS, module=_OWNERSHIP)


async def release_place(url: str, owner: Owner, environment: Mapping[str, str]) -> None:
    """As `ownership.release`. Raises ServiceUnavailable."""
    request = {"do": "release", "url": url, "owner": list(owner)}
    await _ask(request, environment, time_limit=TIME_LIMIT_SECONDS, module=_OWNERSHIP)


async def delete_place(url: str, owner: Owner, environment: Mapping[str, str]) -> str:
    """As `ownership.delete`. Raises ServiceUnavailable."""
    request = {"do": "delete", "url": url, "owner": list(owner)}
    return await _ask(request, environment, time_limit=DELETE_SECONDS, module=_OWNERSHIP)


async def download_stored(url: str, folder: str, environment: Mapping[str, str]) -> None:
    """Make a checkpoint a folder, which appears whole or not at all. Raises ServiceUnavailable."""
    await _ask({"do": "download", "url": url, "folder": folder}, environment, time_limit=DOWNLOAD_SECONDS)


async def probe_storage(url: str, environment: Mapping[str, str]) -> str:
    """Why checkpoints cannot be stored under a URL from this machine, as a clause; "" if they can. Writes, reads and
    deletes a small object."""
    try:
        return await _ask({"do": "probe", "url": url}, environment, time_limit=TIME_LIMIT_SECONDS)
    except ServiceUnavailable as error:
        return str(error)


async def _ask(
    request: Mapping[str, Any], environment: Mapping[str, str], *, time_limit: float, module: str = _STORAGE
) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        env={**os.environ, **environment},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(time_limit):
            output, errors = await process.communicate(json.dumps(request).encode())
    except TimeoutError:
        raise ServiceUnavailable(f"{request['url']} has not answered for {time_limit:.0f} s") from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    try:
        answer = json.loads(output)
    except ValueError:
        said = shorten(errors.decode(errors="replace"), MOST_SAID) or f"exit code {process.returncode}"
        raise ServiceUnavailable(f"{request['url']} cannot be reached: {said}") from None
    if "error" in answer:
        raise ServiceUnavailable(answer["error"])
    return str(answer["answer"])
