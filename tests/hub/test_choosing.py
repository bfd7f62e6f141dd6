"""Which files a name stands for, by listings made by hand: sizes here may be as large as the real ones."""

from __future__ import annotations

import fnmatch

import pytest

from ds4py.errors import FormatError, UsageError
from ds4py.hub.choosing import plans_for, plans_of, reference
from ds4py.hub.listing import Listing
from ds4py.hub.plan import Digest, Piece
from ds4py.hub.targets import GB, GIB, REMOVED, TARGETS, Target, Wanted, find


def listing(**sizes: int) -> Listing:
    return holds({name: size for name, size in sizes.items()})


def holds(files: dict[str, int]) -> Listing:
    return Listing("o/r", tuple(Piece(f"https://h/{path}", path, size, None) for path, size in sorted(files.items())))


def target(name: str) -> Target:
    found = find(name)
    assert found is not None
    return found


QUANTS = holds(
    {
        ".gitattributes": 1,
        "README.md": 5,
        "m-Q4_K_M.gguf": 40,
        "m-Q4_K_S.gguf": 39,
        "m-UD-Q4_K_XL.gguf": 41,
        "m-Q8_0.gguf": 80,
        "m-q2_k.gguf": 20,
        "mmproj-m-Q8_0.gguf": 3,
        "m.imatrix.gguf": 3,
        "BF16/m-BF16-00001-of-00002.gguf": 100,
        "BF16/m-BF16-00002-of-00002.gguf": 60,
    }
)


class TestQuants:
    @pytest.mark.parametrize(
        ("asked", "names"),
        [
            ("", ["m-Q4_K_M.gguf"]),
            ("Q4_K_M", ["m-Q4_K_M.gguf"]),
            ("q8_0", ["m-Q8_0.gguf"]),
            ("Q2_K", ["m-q2_k.gguf"]),
            ("Q4_K_XL", ["m-UD-Q4_K_XL.gguf"]),
            ("UD-Q4_K_XL", ["m-UD-Q4_K_XL.gguf"]),
            ("BF16", ["m-BF16-00001-of-00002.gguf", "m-BF16-00002-of-00002.gguf"]),
            ("mmproj-m-Q8_0.gguf", ["mmproj-m-Q8_0.gguf"]),
            ("BF16/m-BF16-00002-of-00002.gguf", ["m-BF16-00001-of-00002.gguf", "m-BF16-00002-of-00002.gguf"]),
        ],
    )
    def test_one_model(self, asked: str, names: list[str]) -> None:
        assert [plan.name for plan in plans_of(reference(f"o/r:{asked}" if asked else "o/r"), QUANTS)] == names

    @pytest.mark.parametrize("asked", ["Q4", "Q4_K", "Q3_K_M", "K_M_X", "nothing.gguf"])
    def test_none_is_guessed(self, asked: str) -> None:
        with pytest.raises(FormatError):
            plans_of(reference(f"o/r:{asked}"), QUANTS)

    def test_two_candidates_are_listed(self) -> None:
        both = holds({"a-Q4_K_M.gguf": 1_000_000, "b-Q4_K_M.gguf": 2_000_000})
        for asked in ("o/r", "o/r:Q4_K_M"):
            with pytest.raises(FormatError, match=r"a-Q4_K_M.gguf \(1 MB\), b-Q4_K_M.gguf \(2 MB\)"):
                plans_of(reference(asked), both)

    def test_single_file_and_shards_of_one_quant(self) -> None:
        both = holds({"m-Q8_0.gguf": 2, "m-Q8_0-00001-of-00001.gguf": 2})
        with pytest.raises(FormatError, match="name one of"):
            plans_of(reference("o/r:Q8_0"), both)

    def test_the_only_model_needs_no_quant(self) -> None:
        assert plans_of(reference("o/r"), listing(**{"only.gguf": 7}))[0].name == "only.gguf"

    def test_no_gguf_at_all(self) -> None:
        with pytest.raises(FormatError, match="holds no GGUF file"):
            plans_of(reference("o/r"), listing(**{"model.safetensors": 7}))

    def test_a_missing_shard_is_found_before_the_download(self) -> None:
        with pytest.raises(FormatError, match="shard 2 of 3 is missing"):
            plans_of(reference("o/r"), listing(**{"m-00001-of-00003.gguf": 1, "m-00003-of-00003.gguf": 1}))

    @pytest.mark.parametrize("text", ["", "name", "a/b/c", "../x", "a/..", "a b/c", "https://h/a/b", "a/b?x"])
    def test_what_is_no_repository(self, text: str) -> None:
        with pytest.raises(UsageError):
            reference(text)

    def test_spellings(self) -> None:
        assert reference("hf:o/r:Q8_0") == reference("o/r:Q8_0")
        assert reference("o/r", "f.gguf") == reference("hf:o/r:f.gguf")
        with pytest.raises(UsageError, match="--hf-file"):
            reference("o/r", "f.safetensors")


class TestTable:
    NAMES = (
        "ds4f-q2 ds4f-q2-q4 ds4f-q4 ds4f-mxfp4 ds4f-dspark ds4f-vision-q2 ds4f-vision-q2-q4 ds4f-vision-mxfp4 "
        "ds4f-vision-encoder ds4f-vision-dspark ds41f-q2 ds41f-q4 ds41f-vision ds41f-q2-eq4 pro-q2-imatrix pro-q4-layers00-30 "
        "pro-q4-layers31-output pro-q4-split glm-unsloth-q4 glm-antirez-iq2xxs glm-antirez-q2 glm-antirez-q4 glm53-full-q2 "
        "glm53-q2 glm53-q4 glm53-fp8 glm53-vision qwen38-q2 qwen38-iq2 qwen38-q4k qwen38-vision"
    ).split()
    NO_LINK = {
        "ds4f-dspark", "ds4f-vision-encoder", "ds4f-vision-dspark", "ds41f-vision", "pro-q4-layers00-30",
        "pro-q4-layers31-output", "pro-q4-split", "glm53-fp8", "glm53-vision", "qwen38-vision",
    }  # fmt: skip

    def test_every_published_name_is_there_once(self) -> None:
        assert [row.name for row in TARGETS] == self.NAMES

    def test_the_link_is_for_main_models(self) -> None:
        assert {row.name for row in TARGETS if not row.main} == self.NO_LINK

    def test_old_names_lead_to_names_of_today(self) -> None:
        assert set(REMOVED) == {"q2-imatrix", "q4-imatrix", "q2-q4-imatrix", "mtp"}
        assert all(find(new) is not None and find(old) is None for old, new in REMOVED.items())

    def test_rows_are_complete(self) -> None:
        for row in TARGETS:
            assert row.title and row.files and (row.family is not None) == row.model, row.name
            assert row.on_disk < row.size or not row.size, row.name
            for wanted in row.files:
                assert wanted.size or "GLM" in row.title, row.name
                assert wanted.exact == (wanted.size % 1000 != 0 and wanted.size % GIB != 0 and wanted.size > 970_000_000) or (
                    wanted.size in (round(0.9 * GIB), round(5.6 * GIB), round(1.1 * GB))
                ), row.name

    def test_published_byte_counts(self) -> None:
        exact = {row.name: row.size for row in TARGETS if row.exact}
        assert exact == {
            "ds41f-q2": 365_713_686_528,
            "ds41f-q4": 518_596_067_328,
            "ds41f-vision": 970_555_552,
            "ds41f-q2-eq4": 267_406_761_552,
            "qwen38-q2": 147_207_127_040,
            "qwen38-iq2": 147_207_127_040,
            "qwen38-q4k": 177_280_286_720,
        }

    def test_every_row_can_be_asked_for(self) -> None:
        """ds41f-q2-eq4 was refused once, for want of its repository's name."""
        for row in TARGETS:
            for wanted in row.files:
                assert wanted.repo.count("/") == 1 and ".gguf" in wanted.pattern, row.name
                for digest in (*wanted.piece_sha256, *([wanted.sha256] if wanted.sha256 else [])):
                    assert len(digest) == 64 and int(digest, 16), row.name

    def test_hashes_are_pinned_where_they_are_published(self) -> None:
        pinned = {row.name for row in TARGETS if all(wanted.sha256 for wanted in row.files)}
        assert pinned == {"ds41f-q2", "ds41f-q4", "ds41f-vision", "ds41f-q2-eq4", "qwen38-q2", "qwen38-iq2", "qwen38-q4k"}
        joined = [wanted for row in TARGETS for wanted in row.files if wanted.pieces > 1]
        assert [(len(wanted.piece_sha256), wanted.pieces) for wanted in joined] == [(2, 2), (6, 6)]

    def test_parts_of_one_file_keep_their_order_and_their_hashes(self) -> None:
        wanted = target("ds41f-q2-eq4").files[0]
        sizes = [45_097_156_608] * 5 + [41_920_978_512]
        found = holds({f"DeepSeek-V4.1-Flash-Q2-EngramQ4.gguf.part{i + 1}": size for i, size in enumerate(sizes)})
        plan = plans_for(wanted, found)[0]
        assert plan.name == "DeepSeek-V4.1-Flash-Q2-EngramQ4.gguf" and plan.size == wanted.size
        assert [piece.digest.value for piece in plan.pieces if piece.digest] == list(wanted.piece_sha256)

    @pytest.mark.parametrize("name", ["qwen38-q2", "ds41f-q4"])
    def test_another_hash_than_the_published_one_is_refused_before_the_first_byte(self, name: str) -> None:
        wanted = target(name).files[0]
        stem = wanted.pattern.rstrip("*")
        names = [stem] if wanted.pieces == 1 else [f"{stem}.part1", f"{stem}.part2"]
        sizes = [wanted.size] if wanted.pieces == 1 else [480_000_000_000, 38_596_067_328]
        pieces = [Piece("u", path, size, Digest("sha256", "0" * 64)) for path, size in zip(names, sizes, strict=True)]
        with pytest.raises(FormatError, match="is another file than the published one"):
            plans_for(wanted, Listing("o/r", tuple(pieces)))

    @pytest.mark.parametrize(("size", "letter"), [(81, "A"), (91, "B"), (145, "C")])
    def test_files_that_share_a_pattern_are_told_apart_by_size(self, size: int, letter: str) -> None:
        sizes = {"model-A.gguf": 81.2, "model-B.gguf": 90.9, "model-C.gguf": 145.4, "model-support.gguf": 5.6}
        found = holds({path: round(gib * GIB) for path, gib in sizes.items()})
        assert plans_for(Wanted("o/r", "model-*.gguf", size * GIB), found)[0].name == f"model-{letter}.gguf"

    def test_two_of_one_size_are_not_guessed(self) -> None:
        with pytest.raises(FormatError, match="name one of"):
            plans_for(Wanted("o/r", "model-*.gguf", 81 * GIB), holds({"model-A.gguf": 81 * GIB, "model-B.gguf": 81 * GIB}))

    def test_a_renamed_file_is_said(self) -> None:
        with pytest.raises(FormatError, match="has no file GLM-5.3-Flash-Q2.gguf any more"):
            plans_for(target("glm53-q2").files[0], holds({"GLM-5.3-Flash-Q2-v2.gguf": 90 * GIB}))

    def test_two_parts_become_one_file(self) -> None:
        sizes = {"DeepSeek-V4.1-Flash-Q4.gguf.part-00": 300_000_000_000, "DeepSeek-V4.1-Flash-Q4.gguf.part-01": 218_596_067_328}
        (plan,) = plans_for(target("ds41f-q4").files[0], holds({**sizes, "DeepSeek-V4.1-Flash-Q2.gguf": 365_713_686_528}))
        assert (plan.name, plan.size, len(plan.pieces)) == ("DeepSeek-V4.1-Flash-Q4.gguf", 518_596_067_328, 2)
        assert [piece.path for piece in plan.pieces] == sorted(sizes)

    def test_eleven_shards_stay_apart_and_lie_flat(self) -> None:
        found = holds({f"UD-Q4_K_XL/GLM-5.2-UD-Q4_K_XL-{no:05d}-of-00011.gguf": no for no in range(1, 12)})
        plans = plans_for(target("glm-unsloth-q4").files[0], found)
        assert len(plans) == 11 and plans[0].name == "GLM-5.2-UD-Q4_K_XL-00001-of-00011.gguf"

    def test_patterns_of_one_repository_do_not_take_each_others_files(self) -> None:
        rows = [(row.name, wanted) for row in TARGETS for wanted in row.files if wanted.repo and "*" in wanted.pattern]
        for name, wanted in rows:
            taken = {
                other.pattern
                for row in TARGETS
                for other in row.files
                if other.repo == wanted.repo and other.pattern != wanted.pattern and "*" not in other.pattern
                and fnmatch.fnmatchcase(other.pattern, wanted.pattern)
            }  # fmt: skip
            assert taken <= {"DeepSeek-V4-Flash-Vision-Exp-DSpark-support.gguf"}, name


class TestMemory:
    def test_estimates_follow_from_the_geometry(self) -> None:
        from ds4py.hub.memory import WORK_BYTES, estimate, estimate_target

        qwen = estimate_target(target("qwen38-q4k"), 32768)
        assert qwen is not None and qwen.known
        assert abs(qwen.weights / GIB - 69.74) < 0.01  # the published figure for the weights without the n-gram table
        assert qwen.kv == 27 * 1024 * 32768 + 113 * 2**20
        flash = estimate_target(target("ds4f-q2"), 32768)
        assert flash is not None and flash.kv == 6880 * 32768 + 43 * 128 * 512 * 2
        assert estimate_target(target("ds4f-dspark"), 32768) is None and estimate_target(target("glm-unsloth-q4"), 32768) is None
        unknown = estimate(1_000_000_000, 4096, None)
        assert not unknown.known and unknown.peak == 1_100_000_000 + WORK_BYTES and "a tenth" in unknown.words(4096)
