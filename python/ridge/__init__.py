"""ridge: LLM kernels at the roofline, without a build against a framework.

`import ridge` needs numpy and works on numpy arrays (CPU); `ridge.torch` and `ridge.jax` are the same kernels with
gradients for those frameworks, on the CPU and on CUDA. Errors are exceptions with the library's message.
"""
from ._core import (ArgumentError, Call, Device, DeviceError, Error, FileError, UnsupportedError, WorkspaceError,
                    library_path, new_call, version)
from ._numpy import (fp8_gemm, gemm_fp8_grouped, linear_cross_entropy, q8_0_matmul, q8_0_quantize, q8_0_repack, quantize_fp8,
                     quantize_fp8_dual, rms_norm, rope, rope_freqs, swiglu, swiglu_backward)

__version__ = version()
__all__ = ["ArgumentError", "Call", "Device", "DeviceError", "Error", "FileError", "UnsupportedError", "WorkspaceError",
           "fp8_gemm", "gemm_fp8_grouped", "library_path", "linear_cross_entropy", "new_call", "q8_0_matmul", "q8_0_quantize", "q8_0_repack",
           "quantize_fp8", "quantize_fp8_dual", "rms_norm", "rope", "rope_freqs", "swiglu", "swiglu_backward", "version"]
