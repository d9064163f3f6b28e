"""A part of a product on GPUs: units of a quantised weight's inputs, widened in registers.

The weight is the first factor, [outputs, inputs], and the rows of inputs are the second. Tensor cores take at
least 64 of the first one's rows and 8 of the second's, so they have few idle lanes at few rows. And on Hopper
only the first one may be in registers, where the weight is widened.
"""

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]  # triton ships no types
def widen_fp8(codes: tl.tensor) -> tl.tensor:
    """Return the float32 of e4m3 codes, for devices without such a type. Exact: the exponent moves by 120."""
    bits = codes.to(tl.int32)
    wide = (((bits & 0x80) << 24) | ((bits & 0x7F) << 20)).to(tl.float32, bitcast=True)
    return tl.where((bits & 0x7F) == 0x7F, float("nan"), wide * 1329227995784915872903807060280344576.0)


@triton.jit  # type: ignore[untyped-decorator]
def read_fp8(codes: tl.tensor, DOT: tl.constexpr, HAS_FP8: tl.constexpr) -> tl.tensor:  # noqa: N803
    """Return e4m3 codes in the type of the product."""
    if HAS_FP8:
        return codes.to(tl.float8e4nv, bitcast=True).to(DOT)
    return widen_fp8(codes).to(DOT)


@triton.jit  # type: ignore[untyped-decorator]
def load_inputs(rows: tl.tensor, inputs: tl.tensor, is_row: tl.tensor, INPUTS: tl.constexpr) -> tl.tensor:  # noqa: N803
    """Return some inputs of rows, transposed: [inputs, rows]."""
    wanted = is_row[None, :] & (inputs < INPUTS)[:, None]
    return tl.load(rows[None, :] + inputs[:, None], mask=wanted, other=0)


@triton.jit  # type: ignore[untyped-decorator]
def multiply_unit(  # noqa: PLR0917
    rows: tl.tensor,
    is_row: tl.tensor,
    codes: tl.tensor,
    zeros: tl.tensor,
    is_column: tl.tensor,
    begin: tl.tensor,
    total: tl.tensor,
    NUMBER: tl.constexpr,  # noqa: N803
    UNIT: tl.constexpr,  # noqa: N803
    INPUTS: tl.constexpr,  # noqa: N803
    HAS_ZEROS: tl.constexpr,  # noqa: N803
    HAS_FP8: tl.constexpr,  # noqa: N803
    DOT: tl.constexpr,  # noqa: N803
) -> tl.tensor:
    """Return total [outputs, rows] plus the unit's numbers times its inputs, which begin at `begin`.

    `rows` are pointers to each row's input 0, `codes` to each output's first byte of the unit, and `zeros` to
    each output's zero point. INT4 counts 16 times: its numbers stay in the upper half of their byte.
    """
    if NUMBER == "int4":
        places = tl.arange(0, UNIT // 2)
        both = tl.load(codes[:, None] + places[None, :], mask=is_column[:, None], other=0)
        low, high = (both << 4).to(DOT), (both & -16).to(DOT)
        if HAS_ZEROS:
            zero = (tl.load(zeros, mask=is_column, other=0).to(tl.float32) * 16.0).to(DOT)[:, None]
            low, high = low - zero, high - zero
        x = load_inputs(rows, begin + places, is_row, INPUTS).to(DOT)
        total = tl.dot(low, x, total, input_precision="ieee")
        x = load_inputs(rows, begin + UNIT // 2 + places, is_row, INPUTS).to(DOT)
        total = tl.dot(high, x, total, input_precision="ieee")
    else:
        inputs = begin + tl.arange(0, UNIT)
        wanted = is_column[:, None] & (inputs < INPUTS)[None, :]
        codes = tl.load(codes[:, None] + tl.arange(0, UNIT)[None, :], mask=wanted, other=0)
        x = load_inputs(rows, inputs, is_row, INPUTS)
        if NUMBER == "int8":
            weight = codes.to(DOT)
            if HAS_ZEROS:
                weight -= tl.load(zeros, mask=is_column, other=0).to(DOT)[:, None]
        else:
            weight = read_fp8(codes, DOT, HAS_FP8)
        total = tl.dot(weight, x.to(DOT), total, input_precision="ieee")
    return total


@triton.jit  # type: ignore[untyped-decorator]
def multiply_units(  # noqa: PLR0917
    rows: tl.tensor,
    is_row: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    zeros: tl.tensor,
    is_column: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    total: tl.tensor,
    NUMBER: tl.constexpr,  # noqa: N803
    INPUTS: tl.constexpr,  # noqa: N803
    OUTPUTS: tl.constexpr,  # noqa: N803
    UNIT: tl.constexpr,  # noqa: N803
    GROUP: tl.constexpr,  # noqa: N803
    UNIT_STRIDE: tl.constexpr,  # noqa: N803
    HAS_ZEROS: tl.constexpr,  # noqa: N803
    HAS_FP8: tl.constexpr,  # noqa: N803
    DOT: tl.constexpr,  # noqa: N803
) -> tl.tensor:
    """Return the products [outputs, rows] with the units from `first` up to `last`, for a total of zeros.

    `rows`, `is_row` and `is_column` as in `multiply_unit`. `codes` are pointers to each output's first byte
    of unit `first`; `scales` and `zeros` those of each output in group 0.
    """
    IS_ONE_GROUP: tl.constexpr = GROUP >= INPUTS  # noqa: N806
    nothing = total
    for number in range(first, last):
        group = number * UNIT // GROUP
        product = multiply_unit(
            rows, is_row, codes, zeros + group * OUTPUTS if HAS_ZEROS else codes, is_column, number * UNIT,
            total if IS_ONE_GROUP else nothing,
            NUMBER, UNIT, INPUTS, HAS_ZEROS, HAS_FP8, DOT,
        )  # fmt: skip
        codes += UNIT_STRIDE
        if IS_ONE_GROUP:
            total = product
        else:
            scale = tl.load(scales + group * OUTPUTS, mask=is_column, other=0.0)
            total += product * scale[:, None]
    if IS_ONE_GROUP:
        total *= tl.load(scales, mask=is_column, other=0.0)[:, None]
    return total
