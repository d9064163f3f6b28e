from pathlib import Path

from development.sizes import MOST_FILES, MOST_LINES, find_excesses


def test_a_long_file_and_a_full_folder_are_named(tmp_path: Path) -> None:
    (tmp_path / "operator/full").mkdir(parents=True)
    for number in range(MOST_FILES):
        (tmp_path / f"operator/full/part_{number}.py").write_text("x = 1\n" * MOST_LINES)
    assert list(find_excesses(tmp_path)) == []
    (tmp_path / "operator/full/more.py").write_text("x = 1\n" * (MOST_LINES + 1))
    named = [line.split(":")[0] for line in find_excesses(tmp_path)]
    assert named == ["operator/full/more.py", "operator/full/"]
