// e^x of sixteen floats, by the same formula on each instruction set.
#pragma once

#include "vec.h"

namespace MILLRACE_ISA {

// e^x to about one unit in the last place; 0 below -87, and NaN of NaN.
//
// x = n·ln 2 + r with |r| <= ln 2 / 2, so e^x = 2^n · e^r. ln 2 is subtracted in two parts: n times the first is exact.
// The polynomial is the Taylor series to r^7: its rest is below 6e-9 there.
INLINE Floats exp(Floats x) {
  Floats low = splat(-87.3f);
  Floats clamped = min(splat(88.0f), max(low, x));
  Floats n = round(mul(clamped, splat(1.44269504f)));
  Floats r = fma(n, splat(2.12194440e-4f), fma(n, splat(-0.693359375f), clamped));
  Floats p = splat(1.0f / 5040);
  const float series[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
  UNROLL for (int i = 0; i < 7; i++) p = fma(p, r, splat(series[i]));
  return zero_below(mul(p, power_of_two(n)), x, -87.3f);
}

}  // namespace MILLRACE_ISA
