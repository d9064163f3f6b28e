"""Types that fields in several parts of the resource share. Pure."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pydantic.config import JsonDict

from millrace_kubernetes.durations import parse_duration
from millrace_operator.api.quantities import NUMBER_PATTERN
from millrace_operator.api.status_lines import LINE_LENGTH

NumberText = Annotated[str, Field(max_length=32, pattern=NUMBER_PATTERN)]
ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
Line = Annotated[str, Field(max_length=LINE_LENGTH)]
Quantity = Annotated[str | int, Field(json_schema_extra={"x-kubernetes-int-or-string": True})]
ATOMIC: JsonDict = {"x-kubernetes-list-type": "atomic"}
DATE_TIME: JsonDict = {"format": "date-time"}


def _check_duration(text: str) -> str:
    parse_duration(text)
    return text


DurationText = Annotated[str, Field(min_length=2, max_length=32), AfterValidator(_check_duration)]


class Part(BaseModel):
    """Any object of the resource: camelCase outside, snake_case inside, unknown fields ignored."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)
