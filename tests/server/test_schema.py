"""schemathesis against the application's own OpenAPI: valid and invalid requests, made by the hundred."""

from __future__ import annotations

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from tests.support.live import Live
from tests.support.reciting import Letters, chat_tokenizer
from tests.support.replies import write_chat_folder
from tests.support.toy import ToyModel

# Not among them: that whatever the schema allows is answered. A grammar may be wrong and a prompt too long for the
# context, and no schema says so.
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]


@pytest.fixture(scope="session")
def toy(tmp_path_factory):
    tokenizer = chat_tokenizer(write_chat_folder(tmp_path_factory.mktemp("chat")))
    model = ToyModel(Letters(), block_size=3, max_length=256, num_pages=2000)
    with Live(model=model, tokenizer=tokenizer, batch=8) as live:
        yield live


OPERATIONS = [
    ("/v1/completions", "POST"),
    ("/v1/chat/completions", "POST"),
    ("/v1/models", "GET"),
    ("/v1/models/{name}", "GET"),
    ("/health", "GET"),
    ("/ready", "GET"),
    ("/metrics", "GET"),
]


MODES = [(one, GenerationMode.POSITIVE) for one in OPERATIONS]
MODES += [(one, GenerationMode.NEGATIVE) for one in OPERATIONS if one[1] == "POST"]  # the others take nothing


@pytest.mark.parametrize(("operation", "mode"), MODES, ids=lambda it: it.value if hasattr(it, "value") else it[0])
def test_the_api_is_as_it_says(toy, operation, mode):
    path, method = operation
    described = schemathesis.openapi.from_url(f"{toy.url}/openapi.json")[path][method]
    statuses = set()

    @settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(case=described.as_strategy(generation_mode=mode))
    def hold(case):
        statuses.add(case.call_and_validate(timeout=30, checks=CHECKS).status_code)

    hold()
    expected = {404} if "{" in path else {200} if mode is GenerationMode.POSITIVE else {400}
    assert expected <= statuses


def test_every_operation_is_among_them(toy):
    paths = requests.get(f"{toy.url}/openapi.json", timeout=10).json()["paths"]
    assert {(path, method.upper()) for path in paths for method in paths[path]} == set(OPERATIONS)


def test_the_engine_survived(toy):
    toy.wait(toy.idle)
    assert toy.log == []
    assert toy.client.completions.create(model="demo", prompt="x", max_tokens=3).usage.completion_tokens == 3


def test_a_wrong_schema_would_be_noticed(toy):
    """The same checks against an API that says less than it answers."""
    said = requests.get(f"{toy.url}/openapi.json", timeout=10).json()
    del said["paths"]["/v1/completions"]["post"]["responses"]["400"]
    wrong = schemathesis.openapi.from_dict(said)
    case = wrong["/v1/completions"]["POST"].Case(body={"prompt": 5}, media_type="application/json")
    with pytest.raises(BaseException, match="Undocumented status code"):
        case.call_and_validate(base_url=toy.url, checks=[status_code_conformance])
