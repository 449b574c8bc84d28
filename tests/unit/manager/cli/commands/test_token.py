"""`proctor token`."""

import json
from collections.abc import Callable

from click.testing import Result
from fakes.served_manager import ServedManager

Invoke = Callable[..., Result]


def test_a_token_is_printed_once_alone_on_stdout_with_its_link_beside_it(served: ServedManager, invoke: Invoke) -> None:
    made = invoke("token", "add", "alice", code=0)
    token = made.stdout.strip()
    assert served.tokens.find(token) is not None
    assert f"{served.url}/?token={token}" in made.stderr
    assert "shown this once" in made.stderr
    listed = invoke("token", "ls").stdout
    assert token not in listed
    assert "alice" in listed
    assert "full" in listed


def test_json_is_what_rest_answers(served: ServedManager, invoke: Invoke) -> None:
    made = json.loads(invoke("token", "add", "grafana", "--read-only", "-o", "json").stdout)
    assert made["access"] == "read-only"
    [listed] = json.loads(invoke("token", "ls", "-o", "json").stdout)
    assert served.tokens.find(made.pop("token")) is not None
    assert listed == {**made, "last_used_at": listed["last_used_at"]}


def test_a_token_is_revoked_after_a_question(served: ServedManager, invoke: Invoke) -> None:
    token = invoke("token", "add", "alice").stdout.strip()
    refused = invoke("token", "revoke", "alice")
    assert refused.exit_code != 0
    assert "use -y" in refused.stderr
    assert served.tokens.find(token) is not None
    assert invoke("token", "revoke", "alice", "-y").exit_code == 0
    assert served.tokens.find(token) is None
    assert "no token 'alice'" in invoke("token", "revoke", "alice", "-y", code=3).stderr
