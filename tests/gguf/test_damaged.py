"""Damaged and hostile files: one sentence that names the file and the key or tensor, quickly and in little memory."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ds4py.errors import Ds4Error, FormatError, ResourceError, UnsupportedError
from ds4py.gguf import NewTensor, open_gguf, write_gguf

HUGE = 2**63 - 1


def _refusal(path: Path, kind: type[Ds4Error] = FormatError) -> str:
    """The sentence that refuses the file at `path`."""
    with pytest.raises(kind) as caught:
        open_gguf(path)
    sentence = str(caught.value)
    assert str(path) in sentence and "\n" not in sentence and sentence.isprintable(), sentence
    assert type(caught.value) is kind
    return sentence


def _f32(n: int) -> bytes:
    return np.arange(n, dtype=np.float32).tobytes()


# --- not GGUF, or not a GGUF that we read --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data, fragment",
    [
        (b"", "the file is empty"),
        (b"GGU", "not a GGUF file"),
        (b"GGUF", "cut short"),
        (b"GGUF\3\0\0\0\1", "cut short"),
        (b"\0" * 64, "not a GGUF file"),
        (b"<!DOCTYPE html><html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "Git LFS pointer"),
        (b"PK\3\4" + bytes(60), "zip"),
        (b"tjgg\3\0\0\0", "old GGML"),
    ],
)
def test_files_of_another_kind(put, data: bytes, fragment: str) -> None:
    assert fragment in _refusal(put(data))


@pytest.mark.parametrize("version", [1, 4, 0x12345678])
def test_versions_that_are_not_read(raw, put, version: int) -> None:
    path = put(raw.file(version=version, n_kv=HUGE, n_tensors=HUGE))  # counts that would fail are never looked at
    assert f"GGUF version {version}, but only 2 and 3 are supported" in _refusal(path, UnsupportedError)


def test_version_0_is_damage(raw, put) -> None:
    assert "version 0" in _refusal(put(raw.file(version=0)))


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_fc08_big_endian_file_is_not_an_absurd_version_number(raw, put, version: int) -> None:
    sentence = _refusal(put(raw.file(order=">", version=version, n_kv=1, n_tensors=1) + bytes(200)), UnsupportedError)
    assert "big-endian" in sentence and f"version {version} " in sentence and str(version << 24) not in sentence


def test_fc08_big_endian_file_of_the_gguf_package(tmp_path: Path) -> None:
    import gguf as oracle

    writer = oracle.GGUFWriter(tmp_path / "be.gguf", "llama", endianess=oracle.GGUFEndian.BIG)
    writer.add_tensor("w", np.arange(4, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert "big-endian" in _refusal(tmp_path / "be.gguf", UnsupportedError)


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    assert "no such file" in _refusal(tmp_path / "none.gguf", ResourceError)
    (tmp_path / "file").write_bytes(b"GGUF")
    assert "cannot open" in _refusal(tmp_path / "file" / "x.gguf", ResourceError)
    assert "cannot open" in _refusal(tmp_path / ("x" * 300), ResourceError)
    with pytest.raises(ResourceError):
        open_gguf(f"{tmp_path}/a\0b.gguf")
    os.mkfifo(tmp_path / "pipe.gguf")  # opening it would wait for a writer
    assert "not a regular file" in _refusal(tmp_path / "pipe.gguf")


# --- fields ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 1000, 2**31, HUGE, 2**64 - 2])
def test_counts_beyond_the_file(raw, put, n: int) -> None:
    assert "metadata keys" in _refusal(put(raw.file(n_kv=n + 1) + bytes(10)))
    assert "tensors" in _refusal(put(raw.file(n_tensors=n + 1) + bytes(10)))


def _bad_values(raw) -> dict[str, tuple[bytes, str]]:
    """name -> (metadata entry of key "some.key", what the sentence says)."""
    word = raw.text("x")
    deep = struct.pack("<IQ", 9, 1) * 5 + struct.pack("<IQ", 0, 0)
    return {
        "unknown type": (raw.kv("some.key", 13, b"1234"), "has type 13"),
        "unknown element type": (raw.array("some.key", 99, 1, b"1234"), "has type 99"),
        "text length": (raw.kv("some.key", 8, struct.pack("<Q", HUGE) + b"abc"), "cut short"),
        "text not utf-8": (raw.string("some.key", b"ab\xff"), "UTF-8"),
        "long text not utf-8": (raw.string("some.key", b"a" * 200_000 + b"\xc3"), "UTF-8"),
        "boolean": (raw.kv("some.key", 7, b"\2"), "neither 0 nor 1"),
        "booleans": (raw.array("some.key", 7, 3, b"\0\1\xff"), "neither 0 nor 1"),
        "number cut": (raw.kv("some.key", 10, b"123"), "cut short"),
        "numbers": (raw.array("some.key", 6, 2**62, b"1234"), "cut short"),
        "numbers, product above 2^64": (raw.array("some.key", 12, 2**61 + 1, b"12345678"), "cut short"),
        "strings": (raw.array("some.key", 8, 2**61, word), "cut short"),
        "a string's length": (raw.array("some.key", 8, 2, word + struct.pack("<Q", 2**64 - 1)), "string 1 ends"),
        "last string": (raw.array("some.key", 8, 300, word * 299 + struct.pack("<Q", 2) + b"x"), "string 299 ends"),
        "middle string": (raw.array("some.key", 8, 999, word * 900 + struct.pack("<Q", 9999) + word * 98), "string 900 ends"),
        "arrays": (raw.array("some.key", 9, 2**60, b""), "cut short"),
        "nesting": (raw.kv("some.key", 9, deep), "nested more than 4 deep"),
    }


def test_metadata_values_are_checked_and_their_key_is_named(raw, put) -> None:
    for name, (entry, fragment) in _bad_values(raw).items():
        sentence = _refusal(put(raw.file((raw.u32("first", 1), entry))))
        assert "metadata key 'some.key'" in sentence and fragment in sentence, f"{name}: {sentence}"


@pytest.mark.parametrize(
    "key, fragment", [(b"", "is empty"), (b"a\xffb", "not valid UTF-8"), (b"a\0b", "NUL"), (b"k" * 65_536, "65,536 bytes")]
)
def test_fc02_empty_and_malformed_keys(raw, put, key: bytes, fragment: str) -> None:
    sentence = _refusal(put(raw.file((raw.u32("first", 1), raw.u32(key, 1)))))
    assert "metadata key 2 of 2" in sentence and fragment in sentence


def test_control_characters_of_a_name_do_not_reach_the_terminal(raw, put) -> None:
    sentence = _refusal(put(raw.file((raw.kv("\x1b[31mred\n" + "x" * 500, 13, b""), raw.u32("b", 1)))))
    assert "\\x1b[31mred\\n" in sentence and len(sentence) < 400


def _bad_tensors(raw) -> dict[str, tuple[tuple[bytes, ...], str]]:
    return {
        "no dimensions": ((raw.tensor("w", ()),), "claims 0 dimensions"),
        "five dimensions": ((raw.tensor("w", (1, 1, 1, 1, 1)),), "claims 5 dimensions"),
        "a billion dimensions": ((raw.tensor("w", (1,), n_dims=10**9),), "claims 1,000,000,000 dimensions"),
        "zero dimension": ((raw.tensor("w", (32, 0)),), "zero dimension"),
        "product above 2^64": ((raw.tensor("w", (2**33, 2**33)),), "cut short"),
        "product above 2^200": ((raw.tensor("w", (2**63, 2**63, 2**63, 2**63)),), "cut short"),
        "unknown type": ((raw.tensor("w", (32,), 77),), "type 77 is unknown"),
        "ragged row": ((raw.tensor("w", (33,), 2),), "not whole blocks of 32 (Q4_0)"),
        "ragged row, whole product": ((raw.tensor("w", (16, 2), 2),), "not whole blocks of 32 (Q4_0)"),
        "offset off the alignment": ((raw.tensor("w", (4,), 0, 8),), "not a multiple of the alignment 32"),
        "offset beyond the file": ((raw.tensor("w", (4,), 0, 2**64 - 32),), "cut short"),
        "extent beyond the file": ((raw.tensor("w", (4,), 0, 0), raw.tensor("w2", (4, 100), 0, 32)), "cut short"),
        "overlap": ((raw.tensor("w", (8,), 0, 32), raw.tensor("w2", (16,), 0, 0)), "overlaps that of tensor 'w2'"),
        "same place": ((raw.tensor("w2", (8,), 0, 0), raw.tensor("w", (8,), 0, 0)), "overlaps that of tensor 'w2'"),
        "twice": ((raw.tensor("w", (8,), 0, 0), raw.tensor("w", (8,), 0, 32)), "it is there twice"),
    }


def test_tensors_are_checked_and_named(raw, put) -> None:
    for name, (tensors, fragment) in _bad_tensors(raw).items():
        sentence = _refusal(put(raw.file((), tensors, _f32(16))))
        assert re.search(r"tensor 'w2?'", sentence) and fragment in sentence, f"{name}: {sentence}"


def test_withdrawn_tensor_types_are_named(raw, put) -> None:
    assert "type 4 (Q4_2)" in _refusal(put(raw.file((), (raw.tensor("w", (32,), 4),), _f32(16))), UnsupportedError)


# --- field cases -------------------------------------------------------------------------------------------------------------


def test_fc01_partly_downloaded_file_is_refused_with_both_sizes_before_a_page_is_touched(tmp_path: Path) -> None:
    path = tmp_path / "whole.gguf"
    tensors = [NewTensor.of("a", np.arange(40, dtype=np.float32)), NewTensor.of("b", np.arange(4096, dtype=np.float32))]
    write_gguf(path, {"general.architecture": "llama", "general.name": "x" * 100}, tensors)
    data = path.read_bytes()
    start = open_gguf(path).tensors["b"].start
    needed = f"{start + 4096 * 4:,}"
    for size in (len(data) - 1, start + 5000):
        path.write_bytes(data[:size])
        sentence = _refusal(path)
        assert "tensor 'b'" in sentence and needed in sentence and f"{size:,} bytes" in sentence
    path.write_bytes(data[: data.index(b"\1\0\0\0\x28") + 30])  # inside the tensor table
    assert "tensor" in _refusal(path)
    path.write_bytes(data[: data.index(b"xxx") + 50])
    assert "metadata key 'general.name'" in _refusal(path)


def test_fc01_every_shorter_prefix_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    kv = {"general.architecture": "llama", "words": ["a", "b" * 9], "numbers": [1, 2], "nested": [[1], ["x"]], "on": True}
    write_gguf(path, kv, [NewTensor.of("a", np.arange(3, dtype=np.float32)), NewTensor.of("b", np.arange(8, dtype=np.float32))])
    data = path.read_bytes()
    for size in range(1, len(data)):
        path.unlink()
        path.write_bytes(data[:size])
        _refusal(path)
    path.write_bytes(data)
    assert open_gguf(path).tensors["b"].data.view(np.float32)[7] == 7


def test_fc02_zero_dimension_is_refused_not_divided_by(raw, put) -> None:
    assert "tensor 'w': shape [32, 0] has a zero dimension" in _refusal(put(raw.file((), (raw.tensor("w", (32, 0)),), _f32(32))))


def test_fc05_a_second_chat_template_cannot_hide(raw, put) -> None:
    key = "tokenizer.chat_template"
    first = raw.string(key, "shown")
    for second in (first, raw.string(key, "run"), raw.u32(key, 5), raw.array(key, 8, 1, raw.text("run"))):
        sentence = _refusal(put(raw.file((first, second))))
        assert f"metadata key '{key}': it is there twice" in sentence


def test_fc10_zero_and_odd_alignments_are_refused(raw, put) -> None:
    def entry(type_id: int, payload: bytes) -> bytes:
        return raw.kv("general.alignment", type_id, payload)

    for payload in (entry(4, struct.pack("<I", 0)), entry(4, struct.pack("<I", 33)), entry(5, struct.pack("<i", -8))):
        sentence = _refusal(put(raw.file((payload,), (raw.tensor("w", (4,)),), _f32(16))))
        assert "'general.alignment'" in sentence and "multiple of 8" in sentence
    array = raw.array("general.alignment", 4, 0, b"")
    for payload in (entry(6, struct.pack("<f", 32)), entry(8, raw.text("32")), entry(7, b"\1"), array):
        assert "must be an integer" in _refusal(put(raw.file((payload,))))
    assert "cut short" in _refusal(put(raw.file((entry(10, struct.pack("<Q", 2**63)),), (raw.tensor("w", (4,)),), _f32(16))))


# --- cost ----------------------------------------------------------------------------------------------------------------------

_MEASURE = """
import json, sys, time
from ds4py.errors import Ds4Error
from ds4py.gguf import open_gguf

def megabytes(field):
    for line in open("/proc/self/status"):
        if line.startswith(field):
            return int(line.split()[1]) / 1024

start, before = time.process_time(), megabytes("VmRSS")
try:
    open_gguf(sys.argv[1])
    text = ""
except Ds4Error as error:
    text = str(error)
print(json.dumps([text, time.process_time() - start, megabytes("VmHWM") - before]))
"""


def _costly(raw) -> dict[str, bytes]:
    """Files made to be slow or large to refuse (or to open): as many of the smallest things as the limits allow, and more."""
    empty, word = raw.text(b""), raw.text(b"w")
    many = 1 << 21
    entries = b"".join(raw.array(f"k{i:05d}", 8, 3, word * 3) for i in range(1 << 14))
    table = b"".join(raw.tensor(f"t{i:05d}", (1,), 0, 32 * i) for i in range(1 << 15))
    nested = (struct.pack("<IQ", 8, 1) + word) * 16_000
    broken = (word * 1100 + empty) * (many // 1101)
    return {
        "empty strings": raw.file((raw.array("a", 8, many, empty * many),)),
        "strings": raw.file((raw.array("a", 8, many, word * many),)),
        "too many strings": raw.file((raw.array("a", 8, many + 1, word * (many + 1)),)),
        "broken chains": raw.file((raw.array("a", 8, many // 1101 * 1101, broken),)),
        "strings of NULs": raw.file((raw.array("a", 8, 100_000, raw.text(bytes(200)) * 100_000),)),
        "keys": raw.file((entries,), n_kv=1 << 14),
        "tensors": raw.file((), (table,), bytes(8), n_tensors=1 << 15),
        "nested": raw.file((raw.array("a", 9, 16_000, nested),)),
        "too many nested": raw.file((raw.array("a", 9, 20_000, nested + nested),)),
        "counts": raw.file(n_kv=HUGE, n_tensors=HUGE),
        "text": raw.file((raw.string("a", b"x" * (64 << 20) + b"\xff"),)),
    }


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of resident memory is read from /proc")
def test_hostile_files_cost_less_than_a_second_and_100_megabytes(raw, tmp_path: Path) -> None:
    refused = {"too many strings", "tensors", "too many nested", "counts", "text"}
    path = tmp_path / "model.gguf"
    for name, data in _costly(raw).items():  # one process each: the peak of one must not hide that of another
        path.write_bytes(data)
        result = subprocess.run([sys.executable, "-c", _MEASURE, path], capture_output=True, text=True, check=True)
        sentence, seconds, megabytes = json.loads(result.stdout)
        print(f"{name}: {seconds:.2f} s, {megabytes:.0f} MB")
        assert bool(sentence) == (name in refused), f"{name}: {sentence}"
        assert seconds < 1 and megabytes < 100, f"{name}: {seconds:.2f} s, {megabytes:.0f} MB"
