"""What people run on a CPU: kernels on quantised weights, compiled by LLVM in the process.

ir -> lanes -> matmul, rowwise, attention, unpack (kernels, written as builders of LLVM IR); packed (weight layout);
target, compile (which instructions, object cache); executor (programs on threads); recorder, weights, backend
(protocols.Kernels).
"""

from ds4py.kernels.cpu.backend import CpuKernels

__all__ = ["CpuKernels"]
