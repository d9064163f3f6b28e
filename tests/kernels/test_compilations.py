import triton

from millrace_kernels.compilations import Compilations


def test_what_triton_compiles_is_counted() -> None:
    before = triton.knobs.runtime.jit_post_compile_hook
    try:
        counted = Compilations()
        hook = triton.knobs.runtime.jit_post_compile_hook
        assert hook is not None
        hook(key="k", repr="r", fn=None, compile={}, is_manual_warmup=False, already_compiled=False)
        assert counted.count == 1
    finally:
        triton.knobs.runtime.jit_post_compile_hook = before
