from pathlib import Path

import pytest

from e2e.cluster.nodes.errors import ImageError
from e2e.cluster.nodes.images import load_image, parse_containerfile

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


def test_an_image_is_known_by_the_name_that_it_is_built_with(tmp_path: Path) -> None:
    (tmp_path / "shell").mkdir()
    (tmp_path / "shell" / "Containerfile").write_text(
        '# podman build -t x/shell:9 .\nENTRYPOINT ["sh", "-c"]'
    )
    assert load_image("x/shell:9", [tmp_path]).entrypoint == ("sh", "-c")
    for other in ("nginx:1", "x/shell:8", "shell:9", "mirror/x/shell:9", "x/shell@sha256:abc"):
        with pytest.raises(ImageError, match=f"no image '{other}': this node has x/shell:9") as caught:
            load_image(other, [tmp_path])
        assert caught.value.reason == "ErrImagePull"


@pytest.mark.parametrize("text", ["FROM scratch", "FROM scratch\nENTRYPOINT millrace serve"])
def test_an_entrypoint_is_needed_as_a_list(tmp_path: Path, text: str) -> None:
    with pytest.raises(ImageError):
        parse_containerfile("x", text, tmp_path)
