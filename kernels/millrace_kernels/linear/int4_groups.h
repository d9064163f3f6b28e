// The multiplication of a checkpoint's 4-bit weights: longer groups, float32 scales, zero points. README.md has the maths.
#pragma once

#include "quantized.h"

namespace MILLRACE_ISA {

// A group: 16 scales in float32 divided by 16, 16 zero points plus 8 if there are any, and then pieces of 32 inputs,
// each four vectors as of Int4.
template <bool HAS_ZEROS>
struct Int4Groups {
  typedef Group Input;
  static constexpr int STEP = GROUP;
  static constexpr int64_t SCALES = 4 * LANES, HEAD = SCALES + (HAS_ZEROS ? LANES : 0), PIECE = GROUP / 2 * LANES;

  int pieces;  // of a group

  explicit Int4Groups(const Matrix& m) : pieces(m.group / GROUP) {}

  int64_t bytes(int inputs) const {
    int groups = (num_groups(inputs) + pieces - 1) / pieces;
    return groups * (HEAD + pieces * PIECE);
  }
};

// One piece, with the bits of `multiply_group`.
template <int ROWS, int STRIPS>
INLINE void multiply_piece(const GroupAt& at, const char* scales, Floats (*acc)[STRIPS]) {
  Ints sums[ROWS][STRIPS];
  sum_nibbles<ROWS, STRIPS>(at, sums);
  UNROLL for (int r = 0; r < ROWS; r++) {
    Floats scale = splat(at.group(r).scale);
    UNROLL for (int s = 0; s < STRIPS; s++) {
      Floats sum = mul(to_floats(sums[r][s]), load((const float*)(scales + s * at.strip)));
      acc[r][s] = add(acc[r][s], mul(sum, scale));
    }
  }
}

template <int ROWS, int STRIPS, bool HAS_ZEROS>
static __attribute__((noinline)) void multiply_part(Int4Groups<HAS_ZEROS> f, const char* x, int64_t x_stride,
                                                    const char* w, int64_t strip, int inputs, Floats* acc,
                                                    int width) {
  typedef Int4Groups<HAS_ZEROS> F;
  Floats part[ROWS][STRIPS];
  UNROLL for (int r = 0; r < ROWS; r++)
    UNROLL for (int s = 0; s < STRIPS; s++) part[r][s] = acc[r * width + s];
  for (int left = num_groups(inputs); left > 0; left -= f.pieces) {
    const char* scales = w;
    w += F::HEAD;
    if constexpr (ROWS == 1) fetch_ahead<STRIPS>(scales, strip, F::HEAD);
    Ints zeros[STRIPS];
    if constexpr (HAS_ZEROS)
      UNROLL for (int s = 0; s < STRIPS; s++) zeros[s] = load_times_16((const uint8_t*)scales + F::SCALES + s * strip);
    for (int piece = smaller(left, f.pieces); piece > 0; piece--, x += sizeof(Group), w += F::PIECE) {
      if constexpr (ROWS == 1) fetch_ahead<STRIPS>(w, strip, F::PIECE);
      GroupAt at = {x, x_stride, w, strip, HAS_ZEROS ? zeros : nullptr};
      multiply_piece<ROWS, STRIPS>(at, scales, part);
    }
  }
  UNROLL for (int r = 0; r < ROWS; r++)
    UNROLL for (int s = 0; s < STRIPS; s++) acc[r * width + s] = part[r][s];
}

}  // namespace MILLRACE_ISA
