"""What the environment says about a process that torchrun started."""

import pytest

from moeinspect.errors import UsageError
from moeinspect.runtime.processes.torchrun import TorchrunPlace

SET = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "node-0", "MASTER_PORT": "29500"}


def test_a_process_knows_its_place():
    place = TorchrunPlace.of({**SET, "LOCAL_WORLD_SIZE": "4", "TORCHELASTIC_USE_AGENT_STORE": "True"})
    assert place == TorchrunPlace(1, 4, "node-0", 29500, spans_hosts=False, has_agent=True)


@pytest.mark.parametrize("local", [{"LOCAL_WORLD_SIZE": "2"}, {}], ids=["two hosts", "not told"])
def test_what_may_span_hosts_is_taken_to_do_so(local):
    assert TorchrunPlace.of({**SET, **local}).spans_hosts


@pytest.mark.parametrize("name", SET)
@pytest.mark.parametrize("value", [None, ""])
def test_without_all_of_the_variables_there_is_no_torchrun(name, value):
    environ = {key: text for key, text in SET.items() if key != name or value is not None}
    assert TorchrunPlace.of({**environ, **({} if value is None else {name: value})}) is None


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("RANK", "-1", "RANK=-1: not a number"),
        ("WORLD_SIZE", "two", "WORLD_SIZE=two: not a number"),
        ("RANK", "4", "RANK=4 is not below WORLD_SIZE=4"),
    ],
)
def test_values_that_cannot_be_are_refused_by_name(name, text, said):
    with pytest.raises(UsageError, match=said):
        TorchrunPlace.of({**SET, name: text})
