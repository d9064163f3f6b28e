"""One answer of a service, through the gateway, with OpenAI's own client."""

import openai

from e2e.cluster.product import find_gateway
from e2e.service import Service


def complete(service: Service) -> str:
    host = {"Host": f"{service.name}.{service.namespace}.svc"}
    url = f"{find_gateway(service.cluster).url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", default_headers=host) as client:
        answer = client.completions.create(model=service.name, prompt="Once", max_tokens=8, temperature=0)
    return answer.choices[0].text
