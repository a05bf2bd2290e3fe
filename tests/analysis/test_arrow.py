"""Arrow and feather files are tables like others; what is no text and no table is told with what to do."""

import struct

import datasets
import pandas
import pyarrow
import pyarrow.ipc
import pytest

from headwise.analysis.corpus.reading import read_source
from headwise.analysis.errors import BadInput
from headwise.prune.recipe.parts import Texts

ROWS = {"sentence": ["one", "two", "three"], "label": [0, 1, 1]}


def kept_by_datasets(folder):
    datasets.Dataset.from_dict(ROWS).save_to_disk(str(folder / "kept"))
    return next((folder / "kept").glob("*.arrow"))


def feather(folder, **more):
    path = folder / "rows.feather"
    pandas.DataFrame(ROWS).to_feather(path, **more)
    return path


WRITTEN = {
    "datasets": kept_by_datasets,
    "feather": feather,
    "packed inside": lambda folder: feather(folder, compression="zstd"),
    "feather 1": lambda folder: feather(folder, version=1),
    "arrow file": lambda folder: feather(folder).rename(folder / "rows.arrow"),
}


@pytest.mark.parametrize("how", WRITTEN)
def test_arrow_files_are_read_whoever_wrote_them(tmp_path, how):
    path = WRITTEN[how](tmp_path)
    corpus = read_source(str(path), label="label")
    assert [(text.text, text.label) for text in corpus.texts] == [("one", 0), ("two", 1), ("three", 1)]
    assert [text.text for text in read_source(str(path), text=0).texts] == ROWS["sentence"]
    with pytest.raises(BadInput, match="no column 'stars' for the label; the columns are 'sentence', 'label'"):
        read_source(str(path), label="stars")


@pytest.mark.parametrize("content", [b"", b"no table", b"ARROW1\0\0 broken off"])
@pytest.mark.parametrize("suffix", ["arrow", "feather"])
def test_what_is_no_arrow_file_is_told(tmp_path, suffix, content):
    (tmp_path / f"a.{suffix}").write_bytes(content)
    with pytest.raises(BadInput, match=rf"a\.{suffix}: not an Arrow file"):
        read_source(str(tmp_path / f"a.{suffix}"))


def test_a_damaged_table_is_told_before_its_words_are_looked_for_elsewhere(tmp_path):
    table, ends = pyarrow.table(ROWS), struct.pack("<4i", 0, 3, 6, 11)
    for how in ("feather", "arrow"):
        path = tmp_path / f"a.{how}"
        with pyarrow.OSFile(str(path), "wb") as file:
            write = pyarrow.ipc.new_file if how == "feather" else pyarrow.ipc.new_stream
            with write(file, table.schema) as writer:
                writer.write_table(table)
        content = path.read_bytes()
        assert ends in content
        path.write_bytes(content.replace(ends, struct.pack("<4i", 0, 6, 3, 11)))
        with pytest.raises(BadInput, match=rf"a\.{how}: not an Arrow file that can be read: .*offset"):
            read_source(str(path))


@pytest.mark.parametrize("name", ["a.xlsx", "a.pkl", "a.ODS", "a.npz"])
def test_files_of_other_programs_are_told_what_to_be_saved_as(tmp_path, name):
    (tmp_path / name).write_bytes(b"PK\x03\x04\x80\x81")
    with pytest.raises(BadInput, match=r"files are not read; save it as \.arrow, \.csv, .*\.parquet"):
        read_source(str(tmp_path / name))


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.bin", "europarl.pt"])
def test_what_is_not_text_is_told_what_would_be_read(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x80\x81\x82")
    with pytest.raises(BadInput, match=r"not UTF-8 text .*; write it as UTF-8, or as a table: \.csv, .*\.arrow"):
        read_source(str(tmp_path / name))


def test_the_recipe_says_so():
    assert "Arrow" in Texts.model_fields["source"].description
