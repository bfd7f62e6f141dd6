"""THE table of downloads: every name that `ds4-download` takes, with what is published about its files.

The idea: a row tells enough to plan without a network: repository, name or pattern of each file, bytes, whether it becomes the
model that plain `ds4` opens, and what a context costs in memory. Where only an abbreviated name is published, the row holds a
pattern and the hub's listing decides; where only a rounded size is published, `exact` is False. A SHA-256 is pinned where ds4's
own download script publishes it (Qwen3.8 and V4.1); other files are checked against the hub's hash.

The invariant: nothing here was measured or guessed to look precise. Rejected: asking the hub at `--list`, which would need a
network for a question whose answer changes a few times a year.
"""

from __future__ import annotations

from dataclasses import dataclass

GB, GIB = 10**9, 2**30


@dataclass(frozen=True)
class Family:
    """What the models of one architecture share: what a context costs in memory, per position and once."""

    architecture: str
    position: int
    fixed: int = 0

    def kv_bytes(self, n_ctx: int) -> int:
        return self.position * n_ctx + self.fixed


@dataclass(frozen=True)
class Wanted:
    """One thing to have from a repository.

    pattern  glob over file names, without folders; a name without wildcards is the name
    size     bytes of all of it; 0 = not published
    exact    `size` is a published byte count, not a rounded figure
    sha256   of the finished file, where it is pinned
    pieces   in how many pieces, named .part1, .part2 ..., the hub stores the one file; they are joined
    piece_sha256   of each of them, where it is pinned
    shards   how many files it is; they stay apart, as `open_gguf` expects them
    """

    repo: str
    pattern: str
    size: int = 0
    exact: bool = False
    sha256: str | None = None
    pieces: int = 1
    shards: int = 1
    piece_sha256: tuple[str, ...] = ()


@dataclass(frozen=True)
class Target:
    """A name and what it stands for. `main`: ds4flash.gguf leads to it. `on_disk`: bytes of the file that stay on the disk while
    the model runs. `model` False: a part of another model, or a file nobody can run alone."""

    name: str
    title: str
    files: tuple[Wanted, ...]
    main: bool = True
    family: Family | None = None
    on_disk: int = 0
    model: bool = True
    note: str = ""

    @property
    def size(self) -> int:
        """Bytes of all files; 0 if the size of any is not published."""
        return sum(file.size for file in self.files) if all(file.size for file in self.files) else 0

    @property
    def exact(self) -> bool:
        return all(file.exact for file in self.files)


_V4, _V41 = "antirez/deepseek-v4-gguf", "antirez/deepseek-v4.1-flash-gguf"
_V41_EQ4 = "dongnhdev/DeepSeek-V4.1-Flash-Q2-EngramQ4-GGUF"
_GLM52, _GLM53, _QWEN = "antirez/GLM-5.2-GGUF", "antirez/glm-5.3-flash-gguf", "antirez/qwen3.8-flash-next-gguf"

# Keys and values as 16-bit floats. V4: 512-wide rows of every 4th or 128th position and 128-wide index rows, 128-row windows.
_V4_FLASH = Family("deepseek4", 6_880, 43 * 128 * 512 * 2)
_V4_PRO = Family("deepseek4", 9_848, 61 * 128 * 512 * 2)
_V41_FLASH = Family("deepseek41", 3_200, 40 * 128 * 512 * 2)
# GLM 5.2 and full 5.3: 79 layers of 576 + 128 values. GLM 5.3 Flash: 12 layers of 512 + 256, and the recurrent states of 34.
_GLM_FULL = Family("glm-dsa", 79 * 704 * 2)
_GLM_FLASH = Family("glm5-next", 12 * 768 * 2, 146 * 2**20)
# Qwen3.8: 12 layers of 2 x 2 x 256 and 128 values, and the recurrent states of 36.
_QWEN38 = Family("qwen4exp", 27 * 1024, 113 * 2**20)

_ENCODER = Wanted(_V4, "DeepSeek-V4-Flash-Vision-Encoder.gguf", round(0.9 * GIB))
_PRO_FIRST = Wanted(_V4, "DeepSeek-V4-Pro-Q4K-Layers00-30.gguf", 426 * GB)
_PRO_SECOND = Wanted(_V4, "DeepSeek-V4-Pro-Q4K-Layers-31-output.gguf", 412 * GB)
_QWEN_Q2 = Wanted(
    _QWEN,
    "Qwen3.8-Flash-Next-Q2.gguf",
    147_207_127_040,
    exact=True,
    sha256="b1b93fa69aca5f187b0fb813aca8f3ec1beb5cf8cf0bd38cf041b93e0b6ccac9",
)
_QWEN_TABLE = round(95.37 * GIB)  # n-gram rows, read from the disk a few at a time

_IMAGES = "ds4py reads no images yet"
_HALF = "half of a model for two machines; it cannot run alone"


def _v4(name: str, title: str, file: str, gb: int) -> Target:
    return Target(name, f"DeepSeek V4 Flash, {title}", (Wanted(_V4, file, gb * GB),), family=_V4_FLASH)


def _v4_vision(name: str, title: str, experts: str, gib: int) -> Target:
    files = (Wanted(_V4, f"DeepSeek-V4-Flash-Vision-Exp-{experts}.gguf", gib * GIB), _ENCODER)
    return Target(name, f"DeepSeek V4 Flash Vision, {title}, with its encoder", files, family=_V4_FLASH, note=_IMAGES)


def _extra(name: str, title: str, file: Wanted, note: str = "") -> Target:
    return Target(name, title, (file,), main=False, model=False, note=note)


TARGETS: tuple[Target, ...] = (
    _v4("ds4f-q2", "2-bit experts", "DeepSeek-V4-Flash-IQ2XXS-w2Q2K-AProjQ8-SExpQ8-OutQ8-chat-v2-imatrix-0731.gguf", 81),
    _v4(
        "ds4f-q2-q4",
        "2-bit and 4-bit experts",
        "DeepSeek-V4-Flash-Layers37-42Q4KExperts-OtherExpertLayersIQ2XXSGateUp-Q2KDown-AProjQ8-SExpQ8-OutQ8-chat-v2-imatrix-"
        "fixed-0731.gguf",
        98,
    ),
    _v4(
        "ds4f-q4",
        "4-bit experts",
        "DeepSeek-V4-Flash-Q4KExperts-F16HC-F16Compressor-F16Indexer-Q8Attn-Q8Shared-Q8Out-chat-v2-imatrix-0731.gguf",
        153,
    ),
    _v4(
        "ds4f-mxfp4",
        "MXFP4 experts",
        "DeepSeek-V4-Flash-MXFP4Experts-F16HC-F16Compressor-F16Indexer-Q8Attn-Q8Shared-Q8Out-chat-v2-mxfp4-0731.gguf",
        156,
    ),
    _extra(
        "ds4f-dspark",
        "DeepSeek V4 Flash, DSpark draft",
        Wanted(_V4, "DeepSeek-V4-Flash-DSpark-support-0731.gguf", 6 * GB),
        "drafts for a ds4f model; give it with --mtp-model",
    ),
    _v4_vision("ds4f-vision-q2", "2-bit experts", "IQ2XXS-w2Q2K-AProjQ8-SExpQ8-OutQ8", 81),
    _v4_vision(
        "ds4f-vision-q2-q4",
        "2-bit and 4-bit experts",
        "Layers37-42Q4KExperts-OtherExpertLayersIQ2XXSGateUp-Q2KDown-AProjQ8-SExpQ8-OutQ8",
        91,
    ),
    _v4_vision("ds4f-vision-mxfp4", "MXFP4 experts", "MXFP4Experts-F16HC-F16Compressor-F16Indexer-Q8Attn-Q8Shared-Q8Out", 145),
    _extra("ds4f-vision-encoder", "DeepSeek V4 Flash Vision, image encoder", _ENCODER, _IMAGES),
    _extra(
        "ds4f-vision-dspark",
        "DeepSeek V4 Flash Vision, DSpark draft",
        Wanted(_V4, "DeepSeek-V4-Flash-Vision-Exp-DSpark-support.gguf", round(5.6 * GIB)),
        "drafts for a ds4f-vision model",
    ),
    Target(
        "ds41f-q2",
        "DeepSeek V4.1 Flash, 2-bit experts",
        (
            Wanted(
                _V41,
                "DeepSeek-V4.1-Flash-Q2.gguf",
                365_713_686_528,
                exact=True,
                sha256="1ce6a8f8806205c13330d7ca287bd198331dc5ca35ccc5d8a9a92a188a6f6f42",
            ),
        ),
        family=_V41_FLASH,
        on_disk=365_713_686_528 - 152 * GIB,
    ),
    Target(
        "ds41f-q4",
        "DeepSeek V4.1 Flash, 4-bit experts",
        (
            Wanted(
                _V41,
                "DeepSeek-V4.1-Flash-Q4.gguf*",
                518_596_067_328,
                exact=True,
                sha256="a5e2e2c3ada4b2e98d9f9e4b50f6d9c2a12c2c96f5da165c07e13aff9264984e",
                pieces=2,
                piece_sha256=(
                    "6442b1f9224079662c02003c0ef9ef6be6e2aff509510f681dab9e6cc41df246",
                    "7c3e10646c918eeaffbc39305a75ec96117450262c61454ff194cef00d7617f0",
                ),
            ),
        ),
        family=_V41_FLASH,
        on_disk=365_713_686_528 - 152 * GIB,  # the same n-gram tables
    ),
    _extra(
        "ds41f-vision",
        "DeepSeek V4.1 Flash, image encoder",
        Wanted(
            _V41,
            "DeepSeek-V4.1-Flash-Vision.gguf",
            970_555_552,
            exact=True,
            sha256="cc283f032b3e8b8d78aeb5fccaa14e97b859b0c53aae3cd6bffa690ddf0e9e15",
        ),
        _IMAGES,
    ),
    Target(
        "ds41f-q2-eq4",
        "DeepSeek V4.1 Flash, 2-bit experts, 4-bit n-gram tables",
        (
            Wanted(
                _V41_EQ4,
                "DeepSeek-V4.1-Flash-Q2-EngramQ4.gguf*",
                267_406_761_552,
                exact=True,
                sha256="311f35981bf14ef8e49968ef942e13263bf9011ffdc28c7b6d00a1de45d2f719",
                pieces=6,
                piece_sha256=(
                    "e3a25ed2c0498eea95f4a7b5605f41eeeac9855486414f647b7ddc002e8fa635",
                    "19673581014fb8ee8f0f9f466107a0168fd97859346474c00b05f7e45e5d8dcc",
                    "1512b3d02258b979c8a5a5fec8fca473ae37c134c832daf71ef4546a1b6c5929",
                    "3125d0fae3a2a79ee79c0bdda59e1fb9bdcb0067f49d201549a1a9affbe7d227",
                    "936b8b67e7be53cb09e60d6ca969ef53c494d83b03cb7d84cd4325a4886aeec8",
                    "d485a71b28ea3e9795f1849c06fb8101f60da26de50b58f222678e4b045d3c73",
                ),
            ),
        ),
        family=_V41_FLASH,
        on_disk=267_406_761_552 - 152 * GIB,
        note="made by a fork of ds4; its n-gram tables are in that fork's own 4-bit form",
    ),
    Target(
        "pro-q2-imatrix",
        "DeepSeek V4 Pro, 2-bit experts",
        (Wanted(_V4, "DeepSeek-V4-Pro-IQ2XXS-w2Q2K-AProjQ8-SExpQ8-OutQ8-Instruct-imatrix-0813.gguf", 430 * GB),),
        family=_V4_PRO,
    ),
    _extra("pro-q4-layers00-30", "DeepSeek V4 Pro, 4-bit experts, first half", _PRO_FIRST, _HALF),
    _extra("pro-q4-layers31-output", "DeepSeek V4 Pro, 4-bit experts, second half", _PRO_SECOND, _HALF),
    Target(
        "pro-q4-split",
        "DeepSeek V4 Pro, 4-bit experts, both halves",
        (_PRO_FIRST, _PRO_SECOND),
        main=False,
        model=False,
        note="for two machines, a half each",
    ),
    Target(
        "glm-unsloth-q4",
        "GLM 5.2, 4-bit, by Unsloth",
        (Wanted("unsloth/GLM-5.2-GGUF", "GLM-5.2-UD-Q4_K_XL-*-of-00011.gguf", shards=11),),
        family=_GLM_FULL,
    ),
    Target(
        "glm-antirez-iq2xxs",
        "GLM 5.2, IQ2_XXS experts",
        (Wanted(_GLM52, "GLM-5.2-UD-IQ2_XXS_RoutedIQ2XXS_blk78Q2K.gguf"),),
        family=_GLM_FULL,
    ),
    Target(
        "glm-antirez-q2",
        "GLM 5.2, 2-bit experts",
        (Wanted(_GLM52, "GLM-5.2-UD-Q2_K_RoutedQ2K.gguf", 262 * GB),),
        family=_GLM_FULL,
    ),
    Target(
        "glm-antirez-q4",
        "GLM 5.2, 4-bit experts",
        (Wanted(_GLM52, "GLM-5.2-UD-Q4_K_RoutedQ4K.gguf", 434 * GB),),
        family=_GLM_FULL,
    ),
    Target(
        "glm53-full-q2",
        "GLM 5.3, 2-bit experts",
        (Wanted("antirez/glm-5.3-gguf", "GLM-5.3-UD-IQ2_XXS_RoutedIQ2XXS_blk78Q2K.gguf", 197 * GIB),),
        family=_GLM_FULL,
    ),
    Target(
        "glm53-q2",
        "GLM 5.3 Flash, 2-bit experts",
        (Wanted(_GLM53, "GLM-5.3-Flash-Q2.gguf", 90 * GIB),),
        family=_GLM_FLASH,
    ),
    Target(
        "glm53-q4",
        "GLM 5.3 Flash, 4-bit experts",
        (Wanted(_GLM53, "GLM-5.3-Flash-Q4_K.gguf", 178 * GIB),),
        family=_GLM_FLASH,
    ),
    _extra(
        "glm53-fp8",
        "GLM 5.3 Flash, FP8, for conversion",
        Wanted(_GLM53, "GLM-5.3-Flash-FP8.gguf", 305 * GIB),
        "a source for other quantizations; it cannot be run",
    ),
    _extra(
        "glm53-vision",
        "GLM 5.3 Flash, image encoder",
        Wanted(_GLM53, "GLM-5.3-Flash-Vision-Encoder.gguf", round(1.1 * GB)),
        _IMAGES,
    ),
    Target("qwen38-q2", "Qwen3.8 Flash Next, 2-bit experts", (_QWEN_Q2,), family=_QWEN38, on_disk=_QWEN_TABLE),
    Target(
        "qwen38-iq2",
        "Qwen3.8 Flash Next, 2-bit experts",
        (_QWEN_Q2,),
        family=_QWEN38,
        on_disk=_QWEN_TABLE,
        note="another name of qwen38-q2",
    ),
    Target(
        "qwen38-q4k",
        "Qwen3.8 Flash Next, 4-bit experts",
        (
            Wanted(
                _QWEN,
                "Qwen3.8-Flash-Next-Q4.gguf",
                177_280_286_720,
                exact=True,
                sha256="680944460a8cbe93ba8b6d7b6107213ffb7e22320bd913000e563ca0a0f25a8a",
            ),
        ),
        family=_QWEN38,
        on_disk=_QWEN_TABLE,
    ),
    _extra(
        "qwen38-vision",
        "Qwen3.8 Flash Next, image encoder",
        Wanted("ggml-org/Qwen3.8-Flash-Next-GGUF", "mmproj-Qwen3.8-Flash-Next-Q8_0.gguf", round(0.6 * GB)),
        _IMAGES,
    ),
)

# Names of older releases, each with the one to use now.
REMOVED: dict[str, str] = {
    "q2-imatrix": "ds4f-q2",
    "q4-imatrix": "ds4f-q4",
    "q2-q4-imatrix": "ds4f-q2-q4",
    "mtp": "ds4f-dspark",
}


def find(name: str) -> Target | None:
    return next((target for target in TARGETS if target.name == name), None)
