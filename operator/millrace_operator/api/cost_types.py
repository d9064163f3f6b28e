"""What a service costs: the prices that people write, and the money that the operator reports."""

from typing import Annotated

from pydantic import Field

from millrace_operator.api.field_types import DATE_TIME, NumberText, Part
from millrace_operator.api.prices import CURRENCY_LENGTH, PRICE_LENGTH

PriceText = Annotated[str, Field(max_length=PRICE_LENGTH)]


class Cost(Part):
    """What a replica costs. A price that is not here is the cluster's own, if the currency is the same."""

    accelerator_hour: PriceText | None = Field(
        default=None,
        description='Price of one accelerator for an hour, as decimal text such as "2.50". The accelerator '
        "is the one resource in resources.limits whose name has a slash, such as nvidia.com/gpu.",
    )
    resource_hours: dict[str, PriceText] = Field(
        default_factory=dict,
        max_length=16,
        description="Price of one unit of a resource for an hour, by the name that it has in "
        "resources.limits, as decimal text. One unit of cpu is a CPU; of memory and storage it is 1 GiB.",
    )
    currency: str | None = Field(
        default=None,
        max_length=CURRENCY_LENGTH,
        description="Three letters of ISO 4217, such as EUR. Default: the cluster's own.",
    )


class CostStatus(Part):
    """What the replicas cost now."""

    currency: str = Field(max_length=CURRENCY_LENGTH, description="Of every sum here.")
    replicas: int = Field(
        ge=0, description="Replicas that hold a node's resources now: starting and draining ones too."
    )
    priced_resources: str = Field(
        default="",
        max_length=1024,
        description="What has a price in a new replica: amount, name, and a unit's price for an hour.",
    )
    replica_per_hour: NumberText = Field(description="What a new replica costs an hour.")
    per_hour: NumberText = Field(description="What all these replicas cost an hour.")
    per_million_tokens: NumberText | None = Field(
        default=None,
        description="The cost of a million generated tokens at the load of status.scaling.evidence; absent "
        "where that load is unknown or too small to tell.",
    )
    peak_replicas: int = Field(ge=0, description="The largest count of the last seven days, as far as known.")
    peak_at: str = Field(
        json_schema_extra=DATE_TIME,
        description="When the count last fell from the peak; while it has not fallen, when it rose to it.",
    )
    saved_per_hour: NumberText = Field(
        description="How much more as many replicas as at the peak would cost an hour."
    )
