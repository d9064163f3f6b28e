from pathlib import Path

import pytest

from e2e.cluster.nodes.errors import ImageError
from e2e.cluster.nodes.images import image_folder_name, load_image, parse_containerfile

TEXT = """
# syntax comment
FROM python:3.11 AS build
ENTRYPOINT ["wrong"]
COPY secret /build/secret
FROM debian:12-slim
ENV A=1 B="two words" \\
    C=$A-x
ENV LEGACY some value
COPY --from=build /build/out /out
COPY model /models/stories
COPY --chown=1:1 one.txt two.txt /etc/app/
COPY relative here
WORKDIR /work
USER 65532:65532
ENTRYPOINT ["millrace"]
CMD ["serve"]
"""


def test_the_last_stage_counts(tmp_path: Path) -> None:
    image = parse_containerfile("x", TEXT, tmp_path)
    assert image.entrypoint == ("millrace",)
    assert image.arguments == ("serve",)
    assert image.env == {"A": "1", "B": "two words", "C": "1-x", "LEGACY": "some value"}
    assert image.copies == (
        (tmp_path / "model", "/models/stories"),
        (tmp_path / "one.txt", "/etc/app/one.txt"),
        (tmp_path / "two.txt", "/etc/app/two.txt"),
    )
    assert (image.user, image.workdir) == ("65532", "/work")


@pytest.mark.parametrize(
    "reference",
    ["runtime", "millrace/runtime:0.1.0", "localhost:5000/x/runtime:1", "millrace/runtime@sha256:abc"],
)
def test_an_image_is_a_folders_name(reference: str) -> None:
    assert image_folder_name(reference) == "runtime"


def test_an_unknown_image_names_those_there_are(tmp_path: Path) -> None:
    (tmp_path / "shell").mkdir()
    (tmp_path / "shell" / "Containerfile").write_text('ENTRYPOINT ["sh", "-c"]')
    assert load_image("shell:9", [tmp_path]).entrypoint == ("sh", "-c")
    with pytest.raises(ImageError, match="no image 'nginx:1': this node has shell") as caught:
        load_image("nginx:1", [tmp_path])
    assert caught.value.reason == "ErrImagePull"


@pytest.mark.parametrize("text", ["FROM scratch", "FROM scratch\nENTRYPOINT millrace serve"])
def test_an_entrypoint_is_needed_as_a_list(tmp_path: Path, text: str) -> None:
    with pytest.raises(ImageError):
        parse_containerfile("x", text, tmp_path)
