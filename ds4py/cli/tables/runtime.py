"""Rows about the model file, the machine it runs on and the process: topic "runtime"."""

from __future__ import annotations

from ds4py.cli.option import Option, Range
from ds4py.cli.tables import streaming
from ds4py.cli.tables.cache_types import BARRED

_GPU = "it comes with the GPU kernels; --cpu is what runs today"
_SHARED = "prompts and answers share their threads; --cpu-mask, --cpu-range, --cpu-strict and --prio are for both"
_ONE_DEVICE = "this build computes on one device"
_NO_IMAGES = "this build reads text only, no images"
_NO_METAL = "there is no Metal backend here; leave the flag out to run on the CPU"
_NO_ROCM = "there is no ROCm backend here; leave the flag out to run on the CPU"
_FETCH = "a repository of the hub is fetched with -hf; anything else with your browser, then -m FILE"

ROWS: tuple[Option, ...] = (
    Option(
        "--model",
        "the GGUF file (any shard of a split one)",
        "file",
        ("-m",),
        "FILE",
        default="ds4flash.gguf",
        env=("LLAMA_ARG_MODEL",),
        commands=("ds4", "ds4-bench", "ds4-eval"),
    ),
    Option(
        "--ctx",
        "positions of context to allocate; capped to what the model was trained for",
        "int",
        ("-c", "--ctx-size"),
        "N",
        default=32768,
        range=Range(1, 16_777_216),
        env=("LLAMA_ARG_CTX_SIZE",),
    ),
    Option(
        "--threads",
        "CPU threads",
        "int",
        ("-t",),
        "N",
        shown_default="the physical cores",
        range=Range(1, 1024),
        env=("LLAMA_ARG_THREADS",),
        commands=("ds4", "ds4-bench", "ds4-eval"),
    ),
    Option(
        "--backend",
        "what computes: auto; cpu, or cpu:PATH to force a hardware path; reference (slow and plain, needs torch)",
        "text",
        metavar="NAME",
        default="auto",
        choices=("auto", "cpu", "cpu:avx512", "cpu:avx2", "cpu:plain", "reference"),
        barred=(("cuda", _GPU), ("metal", _NO_METAL), ("rocm", _NO_ROCM)),
        commands=("ds4", "ds4-bench", "ds4-eval"),
    ),
    Option("--cpu", "the same as --backend cpu", commands=("ds4", "ds4-bench", "ds4-eval")),
    Option(
        "--prefill-chunk",
        "most prompt tokens evaluated in one call; changes memory and speed, never a result",
        "int",
        ("-ub", "--ubatch-size"),
        "N",
        shown_default="what the backend likes",
        range=Range(1, 65536),
        env=("LLAMA_ARG_UBATCH",),
    ),
    Option(
        "--checkpoint-min-step",
        "positions between checkpoints, from which texts go back further than a sliding window; more take memory, fewer time",
        "int",
        (),
        "N",
        512,
        range=Range(1, 16_777_216),
    ),
    Option("--cpu-mask", "run on the processors of this hexadecimal mask, such as 0x3", "text", ("-C",), "M"),
    Option("--cpu-range", "run on these processors too, such as 0-3", "text", ("-Cr",), "LO-HI"),
    Option("--cpu-strict", "1: each thread but the first keeps one processor", "text", (), "0|1", "0", choices=("0", "1")),
    Option("--prio", "priority, from -1 (low) to 3", "text", (), "N", "0", choices=("-1", "0", "1", "2", "3")),
    Option("--list-devices", "list where a model could compute, and leave"),
    Option("--device", "where to compute", "text", ("-dev",), "LIST", shown_default="cpu", choices=("none", "cpu", "CPU")),
    *streaming.ROWS,
    Option("--chdir", "change to this directory before anything is read", "file", metavar="DIR"),
    Option(
        "--cache-type-k",
        "storage of keys",
        "text",
        ("-ctk",),
        "TYPE",
        default="f16",
        choices=("f16",),
        barred=BARRED,
        env=("LLAMA_ARG_CACHE_TYPE_K",),
    ),
    Option(
        "--cache-type-v",
        "storage of values",
        "text",
        ("-ctv",),
        "TYPE",
        default="f16",
        choices=("f16",),
        barred=BARRED,
        env=("LLAMA_ARG_CACHE_TYPE_V",),
    ),
    Option(
        "--color",
        "colours: auto (on a terminal), on, off",
        "text",
        ("-co",),
        "WHEN",
        "auto",
        choices=("auto", "on", "off"),
        bare="on",
    ),
    Option(
        "--version",
        "print the version and leave",
        topics=("runtime", "convert", "quantize", "download"),
        commands=("ds4", "ds4-bench", "ds4-eval", "ds4-convert", "ds4-quantize", "ds4-download"),
    ),
    Option(
        "--help",
        "this page, or the page of a TOPIC",
        "text",
        ("-h",),
        "[TOPIC]",
        topics=("runtime", "convert", "quantize", "download"),
        commands=("ds4", "ds4-bench", "ds4-eval", "ds4-convert", "ds4-quantize", "ds4-download"),
    ),
    # --- refused ---------------------------------------------------------------------------------------------------------
    *(
        Option(name, "processors for prompts", "text", aliases, "M", status="never", why=_SHARED)
        for name, aliases in (
            ("--cpu-mask-batch", ("-Cb",)),
            ("--cpu-range-batch", ("-Crb",)),
            ("--cpu-strict-batch", ()),
            ("--prio-batch", ()),
        )
    ),
    Option("--cuda", "run on an NVIDIA GPU", status="later", why=_GPU),
    Option("--gpu-vram", "GPU memory budgets in GiB", "text", metavar="N[,N]", status="later", why=_GPU),
    Option("--gpu-devices", "which GPUs to use", "text", metavar="N[,N]", status="later", why=_GPU),
    Option("--cuda-tensor-parallel", "split a model over GPUs", status="never", why=_ONE_DEVICE),
    Option("--metal", "Apple GPUs", status="never", why=_NO_METAL),
    Option("--rocm", "AMD GPUs", status="never", why=_NO_ROCM),
    Option(
        "--power",
        "GPU duty cycle",
        "int",
        metavar="N",
        status="never",
        why="a CPU run has no duty cycle to set; use -t to take fewer cores",
    ),
    Option(
        "--expert-profile", "expert locality file", "file", metavar="FILE", status="never", why="it steers the Metal backend only"
    ),
    Option(
        "--simulate-used-memory",
        "imitate a smaller machine",
        "text",
        metavar="NGB",
        status="never",
        why="limit the memory of the process from outside, with a container or systemd-run",
    ),
    Option("--model-url", "fetch a model", "text", ("-mu",), "URL", env=("LLAMA_ARG_MODEL_URL",), status="later", why=_FETCH),
    Option("--vision", "vision encoder", "file", metavar="FILE", status="never", why=_NO_IMAGES),
    Option("--mmproj", "vision encoder", "file", ("-mm",), "FILE", env=("LLAMA_ARG_MMPROJ",), status="never", why=_NO_IMAGES),
    Option("--mmproj-url", "vision encoder", "text", ("-mmu",), "URL", status="never", why=_NO_IMAGES),
    Option("--image", "an image", "file", metavar="FILE", status="never", why=_NO_IMAGES),
    Option(
        "--lora",
        "adapter",
        "file",
        metavar="FILE",
        status="never",
        why="adapters are not applied here; merge it into the model first",
    ),
    Option("--server", "serve HTTP", status="never", why="serving is another command, ds4-server"),
)
