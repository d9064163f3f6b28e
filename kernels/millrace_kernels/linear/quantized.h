// The layout and the multiplication of 8-bit and 4-bit weights and their inputs. README.md has the maths.
#pragma once

#include "../native/program.h"
#include "integers.h"

namespace MILLRACE_ISA {

constexpr int GROUP = 32;  // inputs with one scale

// Inputs after QUANTIZE: value i was about `scale * values[i]`.
struct Group {
  int8_t values[GROUP];
  float scale;
  int32_t start;  // -128 times the sum of the values
  int32_t sum;    // -1 times it
};

INLINE int num_groups(int inputs) { return (inputs + GROUP - 1) / GROUP; }

// Rows and strips whose sums stay in registers.
#if defined(__AVX512VNNI__)
constexpr int PART_ROWS = 6, PART_SUMS = 12;
#elif defined(__AVX512F__)
constexpr int PART_ROWS = 4, PART_SUMS = 8;
#elif defined(__AVX2__)
constexpr int PART_ROWS = 4, PART_SUMS = 4;
#else
constexpr int PART_ROWS = 2, PART_SUMS = 2;
#endif

// Over a group's inputs. Fully unrolled, the compiler would spill a loop's loads for the next loop over the inputs.
#if defined(SUMS_ARE_SHORT)
#define UNROLL_INPUTS _Pragma("GCC unroll 2")
#else
#define UNROLL_INPUTS UNROLL
#endif

// The address of some rows' group of inputs, and the strips' bytes for it.
struct GroupAt {
  const char* x;
  int64_t x_stride;
  const char* w;
  int64_t strip;
  const Ints* zeros;  // 16 times the strips' zero points plus 8, or null: all are 0

  INLINE_MEMBER const Group& group(int r) const { return *(const Group*)(x + r * x_stride); }
};

template <int ROWS, int STRIPS, typename Sum>
INLINE void add_products(const Bytes* columns, const GroupAt& at, int k, Sum (*sums)[STRIPS]) {
  UNROLL for (int r = 0; r < ROWS; r++) {
    Bytes input = splat_bytes(at.group(r).values + k);
    UNROLL for (int s = 0; s < STRIPS; s++) sums[r][s] = dot(sums[r][s], columns[s], input);
  }
}

// Four inputs of 16 columns in a vector; `part` selects the multiplied one.
template <int ROWS, int STRIPS, typename Sum, typename Part>
INLINE void add_bytes(const GroupAt& at, Sum (*sums)[STRIPS], Part part) {
  UNROLL_INPUTS for (int k = 0; k < GROUP; k += 4) {
    Bytes columns[STRIPS];
    UNROLL for (int s = 0; s < STRIPS; s++) columns[s] = part(load_bytes(at.w + s * at.strip + k * 16));
    add_products<ROWS, STRIPS>(columns, at, k, sums);
  }
}

// Eight inputs of 16 columns in a vector, the first four in lower nibbles.
template <int ROWS, int STRIPS, typename Sum>
INLINE void add_nibbles(const GroupAt& at, Sum (*sums)[STRIPS]) {
  UNROLL_INPUTS for (int k = 0; k < GROUP; k += 8) {
    Bytes low[STRIPS], high[STRIPS];
    UNROLL for (int s = 0; s < STRIPS; s++) {
      Bytes both = load_bytes(at.w + s * at.strip + k * 8);
      low[s] = low_nibbles(both), high[s] = high_nibbles(both);
    }
    add_products<ROWS, STRIPS>(low, at, k, sums);
    add_products<ROWS, STRIPS>(high, at, k + 4, sums);
  }
}

// Sums that start at -16 · (zero point + 8) · the sum of the row's values.
template <int ROWS, int STRIPS>
INLINE void start_at_zeros(const GroupAt& at, Ints (*sums)[STRIPS]) {
  UNROLL for (int r = 0; r < ROWS; r++) {
    Ints values = splat_int(at.group(r).sum);
    UNROLL for (int s = 0; s < STRIPS; s++) sums[r][s] = multiply_shorts(at.zeros[s], values);
  }
}

// Sums that start at the value in each row's group.
template <int ROWS, int STRIPS>
INLINE void start(const GroupAt& at, Ints (*sums)[STRIPS]) {
  if (at.zeros != nullptr) return start_at_zeros<ROWS, STRIPS>(at, sums);
  UNROLL for (int r = 0; r < ROWS; r++)
    UNROLL for (int s = 0; s < STRIPS; s++) sums[r][s] = splat_int(at.group(r).start);
}

#if defined(SUMS_ARE_SHORT)

template <int ROWS, int STRIPS>
INLINE void clear(Shorts (*sums)[STRIPS]) {
  UNROLL for (int r = 0; r < ROWS; r++)
    UNROLL for (int s = 0; s < STRIPS; s++) sums[r][s] = no_shorts();
}

template <int ROWS, int STRIPS>
INLINE void add_times(const Shorts (*some)[STRIPS], int16_t factor, Ints (*sums)[STRIPS]) {
  UNROLL for (int r = 0; r < ROWS; r++)
    UNROLL for (int s = 0; s < STRIPS; s++) sums[r][s] = add_times(sums[r][s], some[r][s], factor);
}

// A byte is 16 times its high nibble plus its low one. A single row has registers for the sums of high and low nibbles.
template <int STRIPS>
INLINE void sum_bytes_of_row(const GroupAt& at, Ints (*sums)[STRIPS]) {
  Shorts low[1][STRIPS], high[1][STRIPS];
  clear<1, STRIPS>(low), clear<1, STRIPS>(high);
  UNROLL for (int k = 0; k < GROUP; k += 4) {
    Bytes low_columns[STRIPS], high_columns[STRIPS];
    UNROLL for (int s = 0; s < STRIPS; s++) {
      Bytes both = load_bytes(at.w + s * at.strip + k * 16);
      low_columns[s] = low_nibbles(both), high_columns[s] = high_nibbles(both);
    }
    add_products<1, STRIPS>(low_columns, at, k, low);
    add_products<1, STRIPS>(high_columns, at, k, high);
  }
  start<1, STRIPS>(at, sums);
  add_times<1, STRIPS>(low, 1, sums);
  add_times<1, STRIPS>(high, 16, sums);
}

// Several rows compute the two sums one after the other.
template <int ROWS, int STRIPS>
INLINE void sum_bytes(const GroupAt& at, Ints (*sums)[STRIPS]) {
  if constexpr (ROWS == 1) return sum_bytes_of_row<STRIPS>(at, sums);
  Shorts some[ROWS][STRIPS];
  clear<ROWS, STRIPS>(some);
  add_bytes<ROWS, STRIPS>(at, some, [](Bytes x) __attribute__((always_inline)) { return low_nibbles(x); });
  start<ROWS, STRIPS>(at, sums);
  add_times<ROWS, STRIPS>(some, 1, sums);
  clear<ROWS, STRIPS>(some);
  add_bytes<ROWS, STRIPS>(at, some, [](Bytes x) __attribute__((always_inline)) { return high_nibbles(x); });
  add_times<ROWS, STRIPS>(some, 16, sums);
}

template <int ROWS, int STRIPS>
INLINE void sum_nibbles(const GroupAt& at, Ints (*sums)[STRIPS]) {
  Shorts some[ROWS][STRIPS];
  clear<ROWS, STRIPS>(some);
  add_nibbles<ROWS, STRIPS>(at, some);
  start<ROWS, STRIPS>(at, sums);
  add_times<ROWS, STRIPS>(some, 16, sums);
}

#else

template <int ROWS, int STRIPS>
INLINE void sum_bytes(const GroupAt& at, Ints (*sums)[STRIPS]) {
  start<ROWS, STRIPS>(at, sums);
  add_bytes<ROWS, STRIPS>(at, sums, [](Bytes x) __attribute__((always_inline)) { return x; });
}

template <int ROWS, int STRIPS>
INLINE void sum_nibbles(const GroupAt& at, Ints (*sums)[STRIPS]) {
  start<ROWS, STRIPS>(at, sums);
  add_nibbles<ROWS, STRIPS>(at, sums);
}

#endif

// A byte is the weight plus 128. A vector holds four inputs of 16 columns.
struct Int8 {
  typedef Group Input;
  static constexpr int STEP = GROUP;
  static constexpr int64_t BYTES_PER_INPUT = 16;

  explicit Int8(const Matrix&) {}

  int64_t bytes(int inputs) const { return num_groups(inputs) * GROUP * BYTES_PER_INPUT; }

  template <int ROWS, int STRIPS>
  static INLINE_MEMBER void sum(const GroupAt& at, Ints (*sums)[STRIPS]) {
    sum_bytes<ROWS, STRIPS>(at, sums);
  }

  static INLINE_MEMBER Floats scale(const char*, Floats sums) { return sums; }
};

// A nibble is the weight plus 8. Times 16 it is 16 times the weight plus 128; the scales account for that.
// A group's 16 scales, then four vectors: eight inputs of 16 columns each, the first four in lower nibbles.
struct Int4 {
  typedef Group Input;
  static constexpr int STEP = GROUP;
  static constexpr int64_t BYTES_PER_INPUT = 9;

  explicit Int4(const Matrix&) {}

  int64_t bytes(int inputs) const { return num_groups(inputs) * GROUP * BYTES_PER_INPUT; }

  template <int ROWS, int STRIPS>
  static INLINE_MEMBER void sum(const GroupAt& at, Ints (*sums)[STRIPS]) {
    sum_nibbles<ROWS, STRIPS>({at.x, at.x_stride, at.w + 2 * LANES, at.strip, nullptr}, sums);
  }

  static INLINE_MEMBER Floats scale(const char* w, Floats sums) { return mul(sums, load((const bf16*)w)); }
};

// One group of inputs: acc + scale · the exact sum, in this order and with these roundings everywhere.
template <typename F, int ROWS, int STRIPS>
INLINE void multiply_group(const char* x, int64_t x_stride, const char* w, int64_t strip, Floats (*acc)[STRIPS]) {
  GroupAt at = {x, x_stride, w, strip, nullptr};
  Ints sums[ROWS][STRIPS];
  F::template sum<ROWS, STRIPS>(at, sums);
  UNROLL for (int r = 0; r < ROWS; r++) {
    Floats scale = splat(at.group(r).scale);
    UNROLL for (int s = 0; s < STRIPS; s++) {
      Floats sum = F::scale(w + s * strip, to_floats(sums[r][s]));
      acc[r][s] = add(acc[r][s], mul(sum, scale));
    }
  }
}

// Prefetch the same bytes of the next strips, because a single row waits for memory. README.md has figures.
template <int STRIPS>
INLINE void fetch_ahead(const char* w, int64_t strip, int64_t bytes) {
  UNROLL for (int s = STRIPS; s < 2 * STRIPS; s++)
    UNROLL for (int i = 0; i < bytes; i += 64) __builtin_prefetch(w + s * strip + i, 0, 2);
}

// Rows and strips of a tile over all inputs; a row's sums are `width` apart.
template <int ROWS, int STRIPS, typename F>
static __attribute__((noinline)) void multiply_part(F, const char* x, int64_t x_stride, const char* w, int64_t strip,
                                                    int inputs, Floats* acc, int width) {
  Floats part[ROWS][STRIPS];
  UNROLL for (int r = 0; r < ROWS; r++)
    UNROLL for (int s = 0; s < STRIPS; s++) part[r][s] = acc[r * width + s];
  for (int g = 0; g < num_groups(inputs); g++, x += sizeof(Group), w += GROUP * F::BYTES_PER_INPUT) {
    if constexpr (ROWS == 1) fetch_ahead<STRIPS>(w, strip, GROUP * F::BYTES_PER_INPUT);
    multiply_group<F, ROWS, STRIPS>(x, x_stride, w, strip, part);
  }
  UNROLL for (int r = 0; r < ROWS; r++)
    UNROLL for (int s = 0; s < STRIPS; s++) acc[r * width + s] = part[r][s];
}

// A tile's strips, as many at once as registers hold.
template <int ROWS, int STRIPS, typename F>
INLINE void multiply_strips(F f, const char* x, int64_t x_stride, const char* w, int64_t strip, int inputs,
                            Floats* acc, int width) {
  constexpr int AT_ONCE = PART_SUMS / ROWS < STRIPS ? PART_SUMS / ROWS : STRIPS, LEFT = STRIPS % AT_ONCE;
  int s = 0;
  for (; s + AT_ONCE <= STRIPS; s += AT_ONCE)
    multiply_part<ROWS, AT_ONCE>(f, x, x_stride, w + s * strip, strip, inputs, acc + s, width);
  if constexpr (LEFT != 0) multiply_part<ROWS, LEFT>(f, x, x_stride, w + s * strip, strip, inputs, acc + s, width);
}

template <int ROWS, int STRIPS, typename F>
INLINE void multiply_quantized(F f, const char* x, int64_t x_stride, const char* w, int64_t strip, int inputs,
                               Floats (*acc)[STRIPS]) {
  constexpr int AT_ONCE = ROWS < PART_ROWS ? ROWS : PART_ROWS, LEFT = ROWS % AT_ONCE;
  int r = 0;
  for (; r + AT_ONCE <= ROWS; r += AT_ONCE)
    multiply_strips<AT_ONCE, STRIPS>(f, x + r * x_stride, x_stride, w, strip, inputs, acc[r], STRIPS);
  if constexpr (LEFT != 0)
    multiply_strips<LEFT, STRIPS>(f, x + r * x_stride, x_stride, w, strip, inputs, acc[r], STRIPS);
}

}  // namespace MILLRACE_ISA
