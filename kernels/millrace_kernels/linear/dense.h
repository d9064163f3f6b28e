// Readers of dense strips. A reader knows the bytes of a strip's first inputs, and multiplies one tile.
#pragma once

#include "../native/program.h"

namespace MILLRACE_ISA {

struct Bfloat16 {
  struct Input { bf16 values[2]; };                // a row's values for STEP inputs
  static constexpr int STEP = 2;                   // inputs that one vector of a strip holds
  static constexpr int64_t BYTES_PER_INPUT = 32;   // 16 columns of 2 bytes

  explicit Bfloat16(const Matrix&) {}

  int64_t bytes(int inputs) const { return (inputs + 1) / 2 * 2 * BYTES_PER_INPUT; }
};
struct Float32 {
  typedef float Input;
  static constexpr int STEP = 1;
  static constexpr int64_t BYTES_PER_INPUT = 64;

  explicit Float32(const Matrix&) {}

  int64_t bytes(int inputs) const { return inputs * BYTES_PER_INPUT; }
};

// Strips of F in groups, each after its 16 scales.
template <typename F>
struct Scaled {
  typedef typename F::Input Input;
  static constexpr int STEP = F::STEP;

  F plain;
  int group;

  explicit Scaled(const Matrix& m) : plain(m), group(m.group) {}

  int64_t bytes(int inputs) const {
    return (inputs + group - 1) / group * (4 * LANES + group * F::BYTES_PER_INPUT);
  }
};

template <int ROWS, int STRIPS>
INLINE void multiply(Bfloat16, const char* x, int64_t x_stride, const char* w, int64_t strip, int inputs,
                     Floats acc[ROWS][STRIPS]) {
  for (int k = 0; k < inputs; k += 2) {
    Pairs columns[STRIPS];
    UNROLL for (int s = 0; s < STRIPS; s++) columns[s] = load_pairs(w + s * strip + k * 32);
    // A single row waits for memory, so it prefetches the same inputs of the next strips. README.md has figures.
    if constexpr (ROWS == 1)
      UNROLL for (int s = STRIPS; s < 2 * STRIPS; s++) __builtin_prefetch(w + s * strip + k * 32, 0, 2);
    UNROLL for (int r = 0; r < ROWS; r++) {
      Pairs input = splat_pair((const bf16*)(x + r * x_stride) + k);
      UNROLL for (int s = 0; s < STRIPS; s++) acc[r][s] = dot(acc[r][s], columns[s], input);
    }
  }
}

template <int ROWS, int STRIPS>
INLINE void multiply(Float32, const char* x, int64_t x_stride, const char* w, int64_t strip, int inputs,
                     Floats acc[ROWS][STRIPS]) {
  for (int k = 0; k < inputs; k++) {
    Floats columns[STRIPS];
    UNROLL for (int s = 0; s < STRIPS; s++) columns[s] = load((const float*)(w + s * strip) + k * 16);
    UNROLL for (int r = 0; r < ROWS; r++) {
      Floats input = splat(((const float*)(x + r * x_stride))[k]);
      UNROLL for (int s = 0; s < STRIPS; s++) acc[r][s] = fma(columns[s], input, acc[r][s]);
    }
  }
}

// The sums of each group times its scales, one group after the other.
template <int ROWS, int STRIPS, typename F>
INLINE void multiply(Scaled<F> f, const char* x, int64_t x_stride, const char* w, int64_t strip, int inputs,
                     Floats acc[ROWS][STRIPS]) {
  for (int k = 0; k < inputs; k += f.group, w += f.group * F::BYTES_PER_INPUT) {
    const char* scales = w;
    w += 4 * LANES;
    Floats part[ROWS][STRIPS];
    UNROLL for (int r = 0; r < ROWS; r++)
      UNROLL for (int s = 0; s < STRIPS; s++) part[r][s] = splat(0.0f);
    const char* its = x + k / F::STEP * sizeof(typename F::Input);
    multiply<ROWS, STRIPS>(f.plain, its, x_stride, w, strip, smaller(f.group, inputs - k), part);
    UNROLL for (int r = 0; r < ROWS; r++)
      UNROLL for (int s = 0; s < STRIPS; s++)
        acc[r][s] = add(acc[r][s], mul(part[r][s], load((const float*)(scales + s * strip))));
  }
}

}  // namespace MILLRACE_ISA
