"""The document at /openapi.json."""

from millrace_runtime.contract import PATHS_WORK
from tests.runtime.api.served import Served


async def test_the_document_describes_each_body_and_no_field_that_is_always_refused(served: Served) -> None:
    document = (await served.client.get("/openapi.json")).json()
    assert document == (await served.client.get("/openapi.json")).json()
    schemas = document["components"]["schemas"]
    for path in PATHS_WORK:
        operation = document["paths"][path]["post"]
        reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        assert schemas[reference.rsplit("/", 1)[-1]]["additionalProperties"] is False
        assert operation["responses"]["400"]["content"]
    chat = schemas["ChatBody"]["properties"]
    assert {"messages", "tools", "logit_bias", "guided_json"} <= chat.keys()
    assert not {"audio", "functions", "suffix"} & chat.keys()
    assert {"/v1/models", "/health", "/metrics"} <= document["paths"].keys()
