"""What people are told of a machine that nobody needs any more and that is still here."""

from proctor.training_services.remote.debts import name_experiments
from proctor.training_services.remote.errors import HostKeyRefused, KeyUnusable, LoginRefused
from proctor.training_services.remote.tenancy import Tenancy

__all__ = ["REFUSALS", "advise", "say_why_kept"]

REFUSALS = (LoginRefused, KeyUnusable, HostKeyRefused)
"""It answers and does not let us in: another login may work."""


def say_why_kept(tenancy: Tenancy, clause: str) -> str:
    """A clause about a machine, after the reason why it is still here; one that is needed has none."""
    if not tenancy.is_released:
        return clause
    if tenancy.owed:
        owed = f"files of {name_experiments(tenancy.owed)} may still be there"
        return f"nobody needs it any more, but {owed}: {clause}"
    return f"nobody needs it any more, but it could not be left without a trace yet: {clause}"


def advise(node_id: str, error: Exception) -> str:
    """What a person can do about a machine that cannot be left because of an error."""
    forget = f"`proctor nodes forget {node_id}` gives up what is there"
    if isinstance(error, REFUSALS):
        return f"`proctor platform clean --config FILE` removes what is there, {forget}"
    return f"if it is gone for good, {forget}"
