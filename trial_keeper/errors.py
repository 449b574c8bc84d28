"""The errors of the keeper, drawn as a tree.

TrialKeeperError
├── KeeperSettingsError   config.json is missing or wrong
├── KeeperNotStarted      the daemon did not come up
├── AccessRefused         a request for files that the manager may not read or remove
├── CommandRefused        a command on the node (`commands/`) cannot be carried out; says why and what to do
└── SessionError          the manager cannot be reached or does not answer as agreed; try again (temporary)
    ├── SessionLost       the manager does not know our session: register again
    └── TurnedAway        the manager has no use for this keeper: another one has its job
"""


class TrialKeeperError(Exception):
    """The keeper could not do what was asked."""


class KeeperSettingsError(TrialKeeperError):
    """The keeper's config.json cannot be used."""


class KeeperNotStarted(TrialKeeperError):
    """The keeper's daemon did not come up."""


class CommandRefused(TrialKeeperError):
    """A command on the node cannot be carried out."""


class AccessRefused(TrialKeeperError):
    """These files are not the manager's to read or to remove."""


class SessionError(TrialKeeperError):
    """The manager cannot be reached or does not answer as agreed."""


class SessionLost(SessionError):
    """The manager does not know this session."""


class TurnedAway(SessionError):
    """The manager has no use for this keeper, which was started for one job."""
