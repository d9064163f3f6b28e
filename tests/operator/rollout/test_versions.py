"""`spec.engine.version`: which image the replicas of a new revision have."""

from millrace_operator.render.settings import RenderSettings
from testing.world import World

KNOWN = {"0.1.0": "registry/runtime:0.1.0", "0.2.0": "registry/runtime:0.2.0"}


class Shop(World):
    """A service whose operator has two images and a default one."""

    settings = RenderSettings(runtime_image="registry/runtime:0.1.0", runtime_versions=KNOWN)

    def images(self) -> set[str]:
        """The images that pods were made with, as their Deployments name them."""
        templates = [deployment["spec"]["template"] for deployment in self.objects("Deployment")]
        return {template["spec"]["containers"][0]["image"] for template in templates}

    def upgrade_operator(self, **settings: object) -> None:
        self.settings = RenderSettings(**settings)  # type: ignore[arg-type]
        self.restart_operator()


async def started(**spec: object) -> Shop:
    shop = Shop(**spec)
    await shop.settle()
    return shop


async def test_another_version_is_rolled_out_as_any_other_change_and_back() -> None:
    shop = await started()
    first = shop.status["currentRevision"]
    assert shop.images() == {"registry/runtime:0.1.0"}
    shop.edit(engine={"version": "0.2.0"})
    await shop.settle()
    assert shop.images() == {"registry/runtime:0.2.0"}
    assert shop.status["currentRevision"] != first
    shop.edit(engine={})
    await shop.settle()
    assert (shop.images(), shop.status["currentRevision"]) == ({"registry/runtime:0.1.0"}, first)


async def test_an_unknown_version_is_said_and_what_runs_goes_on() -> None:
    shop = await started()
    pods, deployments = shop.pods(), shop.objects("Deployment")
    shop.edit(engine={"version": "0.3.0"})
    await shop.settle()
    degraded = shop.condition("Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "SettingsInvalid")
    assert degraded["message"] == (
        "spec.engine.version 0.3.0 is unknown to this operator: write one of 0.1.0, 0.2.0, leave it out, or "
        "name its image in the chart's images.runtimeVersions"
    )
    assert shop.condition("Ready")["status"] == "True"
    assert (shop.pods(), shop.objects("Deployment")) == (pods, deployments)


async def test_a_version_is_rolled_out_when_the_operator_gets_to_know_it() -> None:
    shop = await started(engine={"version": "0.3.0"})
    assert (shop.condition("Degraded")["reason"], shop.pods()) == ("SettingsInvalid", [])
    shop.upgrade_operator(runtime_versions={"0.3.0": "registry/runtime:0.3.0"})
    await shop.settle()
    assert shop.images() == {"registry/runtime:0.3.0"}
    assert shop.condition("Degraded")["status"] == "False"


async def test_a_revision_needs_its_version_no_more_once_it_is_made() -> None:
    """An upgraded operator names another image by its own version: it must not stop what runs."""
    shop = await started(engine={"version": "0.1.0"}, scaling={"mode": "External"}, replicas=1)
    shop.upgrade_operator(runtime_image="registry/runtime:0.2.0", runtime_versions={"0.2.0": "any"})
    shop.edit(replicas=3)
    await shop.settle()
    assert (len(shop.pods()), shop.images()) == (3, {"registry/runtime:0.1.0"})
    assert shop.condition("Degraded")["status"] == "False"


OTHER = {"uri": "file:///models/other", "servedName": "other"}


async def test_a_model_that_no_revision_can_be_made_of_is_not_told_as_ready() -> None:
    shop = await started(model={"uri": "file:///models/stories", "servedName": "stories"})
    shop.edit(engine={"version": "0.3.0"}, model=OTHER)
    await shop.settle()
    found = shop.condition("ModelReady")
    assert (found["status"], found["reason"]) == ("False", "SettingsInvalid")
    assert "0.3.0 is unknown" in found["message"]
    told = shop.status["model"]
    assert (told["servedName"], told["uri"]) == ("stories", "file:///models/stories")
