// y = x·Wᵀ + b on CPUs, for any number of rows. README.md has the layout, and why a row's bits depend only on the row.
#include "../native/program.h"
#include "quantized.h"

namespace MILLRACE_ISA {

// Rows and strips of 16 columns that one tile keeps in registers.
#if defined(__AVX512BF16__)
constexpr int TILE_ROWS = 6, TILE_STRIPS = 4;
#elif defined(__AVX512F__)
constexpr int TILE_ROWS = 4, TILE_STRIPS = 4;
#elif defined(__AVX2__)
constexpr int TILE_ROWS = 4, TILE_STRIPS = 1;
#else
constexpr int TILE_ROWS = 2, TILE_STRIPS = 1;
#endif

static_assert(TILE_STRIPS * LANES <= SUMS && 2 * LANES <= SUMS, "a tile's sums, a gated one's too, have room");

// Inputs of one block: the tile's strips of this many inputs stay in the second-level cache for all rows.
constexpr int BLOCK_INPUTS = 2048;

// Readers of a format's strips. Each has the strip's bytes for `inputs`, and multiplies one tile.
struct Bfloat16 {
  struct Input { bf16 values[2]; };                // a row's values for STEP inputs
  static constexpr int STEP = 2;                   // inputs that one vector of a strip holds
  static constexpr int64_t BYTES_PER_INPUT = 32;   // 16 columns of 2 bytes
};
struct Float32 {
  typedef float Input;
  static constexpr int STEP = 1;
  static constexpr int64_t BYTES_PER_INPUT = 64;
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

template <int ROWS, int STRIPS>
INLINE void multiply(Int8, const char* x, int64_t x_stride, const char* w, int64_t strip, int inputs,
                     Floats acc[ROWS][STRIPS]) {
  multiply_quantized<Int8, ROWS, STRIPS>(x, x_stride, w, strip, inputs, acc);
}

template <int ROWS, int STRIPS>
INLINE void multiply(Int4, const char* x, int64_t x_stride, const char* w, int64_t strip, int inputs,
                     Floats acc[ROWS][STRIPS]) {
  multiply_quantized<Int4, ROWS, STRIPS>(x, x_stride, w, strip, inputs, acc);
}

// The position of a tile.
struct Tile {
  const Program& program;
  const Op& op;
  int row, strip, first_input, num_inputs;
  bool is_first, is_last;
  float* sums;  // [rows of the step, SUMS]: the sums of earlier inputs
};

INLINE void write(const Rows& rows, char* to, int column, Floats value, int num_columns) {
  if (rows.type == FLOAT32)
    num_columns >= 16 ? store((float*)to + column, value) : store((float*)to + column, value, num_columns);
  else
    num_columns >= 16 ? store((bf16*)to + column, value) : store((bf16*)to + column, value, num_columns);
}

INLINE Floats biased(const Matrix& m, Floats value, int column, int num_columns) {
  return m.bias == nullptr ? value : add(value, load(m.bias + column, num_columns));
}

// gate / (1 + e^-gate) · up
INLINE Floats gated(Floats gate, Floats up) {
  Floats one = splat(1.0f);
  return mul(div(gate, add(one, exp(sub(splat(0.0f), gate)))), up);
}

template <int STRIPS>
static __attribute__((noinline)) void finish_row(const Tile& t, int r, Floats* value) {
  const Matrix& m = *t.op.matrix;
  char* to = row<char>(t.program, t.op.y, t.row + r);
  if (m.is_gated) {  // strips 2i and 2i + 1 are the gate and up columns of output strip i
    int half = m.outputs / 2;
    UNROLL for (int s = 0; s + 1 < STRIPS; s += 2) {
      int column = (t.strip + s) / 2 * LANES, left = half - column;
      Floats gate = biased(m, value[s], column, left), up = biased(m, value[s + 1], half + column, left);
      write(t.op.y, to, column, gated(gate, up), left);
    }
    return;
  }
  UNROLL for (int s = 0; s < STRIPS; s++) {
    int column = (t.strip + s) * LANES, left = m.outputs - column;
    Floats y = biased(m, value[s], column, left);
    if (t.op.kind == LINEAR_ADD) y = add(y, load((float*)to + column, left));
    write(t.op.y, to, column, y, left);
  }
}

template <typename F, int ROWS, int STRIPS>
static __attribute__((noinline)) void compute(const Tile& t) {
  Floats acc[ROWS][STRIPS];
  float* sums = t.sums + (int64_t)t.row * SUMS;
  UNROLL for (int r = 0; r < ROWS; r++)
    UNROLL for (int s = 0; s < STRIPS; s++)
      acc[r][s] = t.is_first ? splat(0.0f) : load(sums + r * SUMS + s * LANES);
  int64_t strip = (t.op.matrix->inputs + F::STEP - 1) / F::STEP * F::STEP * F::BYTES_PER_INPUT;
  const char* w = (const char*)t.op.matrix->data + t.strip * strip + t.first_input * F::BYTES_PER_INPUT;
  const char* x = row<char>(t.program, t.op.x, t.row) + t.first_input / F::STEP * sizeof(typename F::Input);
  multiply<ROWS, STRIPS>(F(), x, t.op.x.stride, w, strip, t.num_inputs, acc);
  if (!t.is_last) {
    UNROLL for (int r = 0; r < ROWS; r++)
      UNROLL for (int s = 0; s < STRIPS; s++) store(sums + r * SUMS + s * LANES, acc[r][s]);
    return;
  }
  if (const float* scales = t.op.matrix->scales)
    UNROLL for (int r = 0; r < ROWS; r++)
      UNROLL for (int s = 0; s < STRIPS; s++) acc[r][s] = mul(acc[r][s], load(scales + (t.strip + s) * LANES));
  UNROLL for (int r = 0; r < ROWS; r++) {
    Floats value[STRIPS];  // a copy: sums whose address is passed on would not stay in registers
    UNROLL for (int s = 0; s < STRIPS; s++) value[s] = acc[r][s];
    finish_row<STRIPS>(t, r, value);
  }
}

template <typename F, int STRIPS>
static void compute_rows(const Tile& t, int num_rows) {
  switch (num_rows) {
    case 1: return compute<F, 1, STRIPS>(t);
    case 2: return compute<F, 2, STRIPS>(t);
    case 3: if constexpr (TILE_ROWS >= 3) return compute<F, 3, STRIPS>(t); break;
    case 4: if constexpr (TILE_ROWS >= 4) return compute<F, 4, STRIPS>(t); break;
    case 5: if constexpr (TILE_ROWS >= 5) return compute<F, 5, STRIPS>(t); break;
    case 6: if constexpr (TILE_ROWS >= 6) return compute<F, 6, STRIPS>(t); break;
  }
}

template <typename F>
static void compute_strips(const Tile& t, int num_rows, int num_strips) {
  switch (num_strips) {
    case 1: return compute_rows<F, 1>(t, num_rows);
    case 2: return compute_rows<F, 2>(t, num_rows);
    case 3: if constexpr (TILE_STRIPS >= 3) return compute_rows<F, 3>(t, num_rows); break;
    case 4: if constexpr (TILE_STRIPS >= 4) return compute_rows<F, 4>(t, num_rows); break;
  }
}

template <typename F>
static void linear_of(const Program& p, const Op& op, int num_rows, const Worker& w) {
  const Matrix& m = *op.matrix;
  int unit = m.is_gated ? 2 : 1;
  int outputs = m.is_gated ? m.outputs / 2 : m.outputs;
  Share mine = share((outputs + LANES - 1) / LANES, w);
  constexpr int WIDTH = TILE_STRIPS < 2 ? 2 : TILE_STRIPS;  // a gated unit is two strips
  int at_once = m.is_gated ? WIDTH : TILE_STRIPS;
  for (int strip = mine.begin * unit; strip < mine.end * unit; strip += at_once) {
    int num_strips = smaller(at_once, mine.end * unit - strip);
    for (int k = 0; k < m.inputs; k += BLOCK_INPUTS) {
      int inputs = smaller(BLOCK_INPUTS, m.inputs - k);
      for (int r = 0; r < num_rows; r += TILE_ROWS) {
        Tile tile = {p, op, r, strip, k, inputs, k == 0, k + inputs == m.inputs, (float*)w.scratch};
        compute_strips<F>(tile, smaller(TILE_ROWS, num_rows - r), num_strips);
      }
    }
  }
}

void linear(const Program& p, const Op& op, int num_rows, const Worker& w) {
  switch (op.matrix->format) {
    case DENSE_BFLOAT16: return linear_of<Bfloat16>(p, op, num_rows, w);
    case DENSE_FLOAT32: return linear_of<Float32>(p, op, num_rows, w);
    case INT8: return linear_of<Int8>(p, op, num_rows, w);
    case INT4: return linear_of<Int4>(p, op, num_rows, w);
  }
}

}  // namespace MILLRACE_ISA
