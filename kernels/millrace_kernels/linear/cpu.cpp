// y = x·Wᵀ + b on CPUs, for any number of rows. README.md has the layout, and why a row's bits depend only on the row.
#include "product.h"

#include "../native/exp.h"
#include "dense.h"
#include "fp8.h"
#include "int4_groups.h"
#include "quantized.h"
#include "tiles.h"

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

// The most rows of a tile.
template <typename F>
constexpr int MOST_ROWS = TILE_ROWS;
template <typename T>
constexpr int MOST_ROWS<Fp8<T>> = 1;

template <int ROWS, int STRIPS>
INLINE void multiply(Int8 f, const char* x, int64_t x_stride, const char* w, int64_t strip, int inputs,
                     Floats acc[ROWS][STRIPS]) {
  multiply_quantized<ROWS, STRIPS>(f, x, x_stride, w, strip, inputs, acc);
}

template <int ROWS, int STRIPS>
INLINE void multiply(Int4 f, const char* x, int64_t x_stride, const char* w, int64_t strip, int inputs,
                     Floats acc[ROWS][STRIPS]) {
  multiply_quantized<ROWS, STRIPS>(f, x, x_stride, w, strip, inputs, acc);
}

template <int ROWS, int STRIPS, bool HAS_ZEROS>
INLINE void multiply(Int4Groups<HAS_ZEROS> f, const char* x, int64_t x_stride, const char* w, int64_t strip,
                     int inputs, Floats acc[ROWS][STRIPS]) {
  multiply_quantized<ROWS, STRIPS>(f, x, x_stride, w, strip, inputs, acc);
}

// The position of a tile, and its strips from the first input on.
struct Tile {
  const Product& product;
  int row, strip, first_input, num_inputs;
  bool is_first, is_last;
  const char* w;
  int64_t strip_bytes;
};

INLINE Output output(const Product& p, int r) {
  return p.outputs != nullptr ? p.outputs[r] : Output{p.first.y + r * p.y_stride, p.first.factor, p.first.is_added};
}

INLINE void write(int type, char* to, int column, Floats value, int num_columns) {
  if (type == FLOAT32)
    num_columns >= 16 ? store((float*)to + column, value) : store((float*)to + column, value, num_columns);
  else
    num_columns >= 16 ? store((bf16*)to + column, value) : store((bf16*)to + column, value, num_columns);
}

INLINE Floats biased(const Matrix& m, Floats value, int column, int num_columns) {
  return m.bias == nullptr ? value : add(value, load(m.bias + column, num_columns));
}

// gate / (1 + e^-k) · up, with k = gate for SiLU, √(8/π) · (gate + 0.044715 gate³) for GELU by tanh, and 1.702 gate for
// clamped gates, whose factor has 1 added. `max` and `min` return their second argument beside a NaN.
INLINE Floats gated(int kind, float limit, Floats gate, Floats up) {
  Floats one = splat(1.0f);
  if (kind == GATED_CLAMPED) {
    gate = min(splat(limit), gate);
    up = add(max(splat(-limit), min(splat(limit), up)), one);
  }
  Floats k = kind == GATED_CLAMPED ? mul(splat(1.702f), gate) : gate;
  if (kind == GATED_GELU) {
    Floats square = mul(gate, gate);
    k = mul(mul(splat(1.5957691216057308f), gate), add(one, mul(splat(0.044715f), square)));
  }
  return mul(div(gate, add(one, exp(sub(splat(0.0f), k)))), up);
}

template <int STRIPS>
static __attribute__((noinline)) void finish_row(const Tile& t, int r, Floats* value) {
  const Matrix& m = t.product.matrix;
  Output to = output(t.product, t.row + r);
  if (m.gate) {  // strips 2i and 2i + 1 are the gate and up columns of output strip i
    int half = m.outputs / 2;
    UNROLL for (int s = 0; s + 1 < STRIPS; s += 2) {
      int column = (t.strip + s) / 2 * LANES, left = half - column;
      Floats gate = biased(m, value[s], column, left), up = biased(m, value[s + 1], half + column, left);
      write(t.product.y_type, to.y, column, gated(m.gate, t.product.limit, gate, up), left);
    }
    return;
  }
  UNROLL for (int s = 0; s < STRIPS; s++) {
    int column = (t.strip + s) * LANES, left = m.outputs - column;
    Floats y = mul(biased(m, value[s], column, left), splat(to.factor));  // times 1 changes no bit
    if (to.is_added) y = add(y, load((float*)to.y + column, left));
    write(t.product.y_type, to.y, column, y, left);
  }
}

template <typename F, int ROWS, int STRIPS>
static __attribute__((noinline)) void compute(const Tile& t) {
  Floats acc[ROWS][STRIPS];
  const Product& p = t.product;
  float* sums = p.sums + (int64_t)t.row * SUMS;
  UNROLL for (int r = 0; r < ROWS; r++)
    UNROLL for (int s = 0; s < STRIPS; s++)
      acc[r][s] = t.is_first ? splat(0.0f) : load(sums + r * SUMS + s * LANES);
  const char* x = p.x + t.row * p.x_stride + t.first_input / F::STEP * sizeof(typename F::Input);
  multiply<ROWS, STRIPS>(F(p.matrix), x, p.x_stride, t.w, t.strip_bytes, t.num_inputs, acc);
  if (!t.is_last) {
    UNROLL for (int r = 0; r < ROWS; r++)
      UNROLL for (int s = 0; s < STRIPS; s++) store(sums + r * SUMS + s * LANES, acc[r][s]);
    return;
  }
  if (const float* scales = p.matrix.scales)
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
  constexpr int MOST = MOST_ROWS<F>;
  switch (num_rows) {
    case 1: return compute<F, 1, STRIPS>(t);
    case 2: if constexpr (MOST >= 2) return compute<F, 2, STRIPS>(t); break;
    case 3: if constexpr (MOST >= 3) return compute<F, 3, STRIPS>(t); break;
    case 4: if constexpr (MOST >= 4) return compute<F, 4, STRIPS>(t); break;
    case 5: if constexpr (MOST >= 5) return compute<F, 5, STRIPS>(t); break;
    case 6: if constexpr (MOST >= 6) return compute<F, 6, STRIPS>(t); break;
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

// Call `each` with the first strip of every tile and the number of its strips.
template <typename Each>
INLINE void for_tiles(const Matrix& m, Share columns, Each each) {
  int unit = m.gate ? 2 : 1;
  constexpr int WIDTH = TILE_STRIPS < 2 ? 2 : TILE_STRIPS;  // a gated unit is two strips
  int at_once = m.gate ? WIDTH : TILE_STRIPS;
  for (int strip = columns.begin * unit; strip < columns.end * unit; strip += at_once)
    each(strip, smaller(at_once, columns.end * unit - strip));
}

// A block of some strips, for all rows.
template <typename F>
static void compute_block(const Product& p, int strip, int num_strips, int k, int inputs, const char* w, int64_t bytes) {
  for (int r = 0; r < p.num_rows; r += MOST_ROWS<F>) {
    Tile tile = {p, r, strip, k, inputs, k == 0, k + inputs == p.matrix.inputs, w, bytes};
    compute_strips<F>(tile, smaller(MOST_ROWS<F>, p.num_rows - r), num_strips);
  }
}

#if defined(__AMX_BF16__)
constexpr int MOST_TILED_ROWS = 32;

// The sums of a block in tiles, with the inputs behind the last whole tile added by pairs.
template <int STRIPS>
static void finish_tiled(const Tile& t, int num_rows) {
  int rest = t.num_inputs % TILE_INPUTS, done = t.num_inputs - rest;
  for (int r = 0; r < num_rows; r++) {
    Floats value[1][STRIPS];
    const float* sums = t.product.sums + (int64_t)(t.row + r) * SUMS;
    UNROLL for (int s = 0; s < STRIPS; s++) value[0][s] = load(sums + s * LANES);
    if (rest) {
      const char* x = t.product.x + (t.row + r) * t.product.x_stride + (int64_t)(t.first_input + done) * 2;
      const char* w = t.w + done * Bfloat16::BYTES_PER_INPUT;
      multiply<1, STRIPS>(Bfloat16(t.product.matrix), x, t.product.x_stride, w, t.strip_bytes, rest, value);
    }
    finish_row<STRIPS>(t, r, value[0]);
  }
}

static void compute_tiled(Tiles& tiles, const Product& p, int strip, int num_strips, int k, int inputs, const char* w,
                          int64_t bytes) {
  int whole = inputs / TILE_INPUTS * TILE_INPUTS;
  for (int r = 0; r < p.num_rows; r += MOST_TILED_ROWS) {
    Tile t = {p, r, strip, k, inputs, k == 0, k + inputs == p.matrix.inputs, w, bytes};
    int num_rows = smaller(MOST_TILED_ROWS, p.num_rows - r);
    const char* x = p.x + r * p.x_stride + (int64_t)k * 2;
    multiply_tiles(tiles, num_rows, num_strips, x, p.x_stride, w, bytes, whole, p.sums + (int64_t)r * SUMS, t.is_first);
    if (!t.is_last) continue;
    switch (num_strips) {
      case 1: finish_tiled<1>(t, num_rows); break;
      case 2: finish_tiled<2>(t, num_rows); break;
      case 3: finish_tiled<3>(t, num_rows); break;
      case 4: finish_tiled<4>(t, num_rows); break;
    }
  }
}

static void multiply_tiled(const Product& p, Share columns) {
  const int64_t bytes = Bfloat16(p.matrix).bytes(p.matrix.inputs);
  Tiles tiles;
  for_tiles(p.matrix, columns, [&](int strip, int num_strips) {
    for (int k = 0; k < p.matrix.inputs; k += BLOCK_INPUTS) {
      const char* w = (const char*)p.matrix.data + strip * bytes + k * Bfloat16::BYTES_PER_INPUT;
      compute_tiled(tiles, p, strip, num_strips, k, smaller(BLOCK_INPUTS, p.matrix.inputs - k), w, bytes);
    }
  });
}
#endif

template <typename F>
static void multiply_of(const Product& p, Share columns) {
  F f(p.matrix);
  const int64_t bytes = f.bytes(p.matrix.inputs);
  for_tiles(p.matrix, columns, [&](int strip, int num_strips) {
    for (int k = 0; k < p.matrix.inputs; k += BLOCK_INPUTS) {
      const char* w = (const char*)p.matrix.data + strip * bytes + f.bytes(k);
      compute_block<F>(p, strip, num_strips, k, smaller(BLOCK_INPUTS, p.matrix.inputs - k), w, bytes);
    }
  });
}

// Strips in 8-bit floats are widened once for all rows, into strips of Wider.
template <typename T, typename Wider>
static void multiply_wide(const Product& p, Share columns) {
  Fp8<T> f(p.matrix);
  const int64_t bytes = f.bytes(p.matrix.inputs), wide_bytes = Wider(p.matrix).bytes(WIDE_INPUTS);
  for_tiles(p.matrix, columns, [&](int strip, int num_strips) {
    for (int k = 0; k < p.matrix.inputs; k += WIDE_INPUTS) {
      int inputs = smaller(WIDE_INPUTS, p.matrix.inputs - k);
      const char* from = (const char*)p.matrix.data + strip * bytes + f.bytes(k);
      for (int s = 0; s < num_strips; s++)
        widen_strip<T>(from + s * bytes, inputs, f.group, p.wide + s * wide_bytes);
      compute_block<Wider>(p, strip, num_strips, k, inputs, p.wide, wide_bytes);
    }
  });
}

template <typename T, typename Wider>
static void multiply_fp8(const Product& p, Share columns) {
  if (p.num_rows == 1) return multiply_of<Fp8<T>>(p, columns);
  p.matrix.group ? multiply_wide<T, Scaled<Wider>>(p, columns) : multiply_wide<T, Wider>(p, columns);
}

void multiply(const Product& p, Share columns) {
  switch (p.matrix.format) {
#if defined(__AMX_BF16__)
    case DENSE_BFLOAT16: return multiply_tiled(p, columns);
#else
    case DENSE_BFLOAT16: return multiply_of<Bfloat16>(p, columns);
#endif
    case DENSE_FLOAT32: return multiply_of<Float32>(p, columns);
    case INT8: return multiply_of<Int8>(p, columns);
    case INT4: return multiply_of<Int4>(p, columns);
    case INT4_GROUPS: return multiply_of<Int4Groups<false>>(p, columns);
    case INT4_ZEROS: return multiply_of<Int4Groups<true>>(p, columns);
    case FP8_FLOAT32: return multiply_fp8<float, Float32>(p, columns);
    case FP8_BFLOAT16: return multiply_fp8<bf16, Bfloat16>(p, columns);
  }
}

int count_columns(const Matrix& m) { return ((m.gate ? m.outputs / 2 : m.outputs) + LANES - 1) / LANES; }

int count_strips(const Matrix& m) { return count_columns(m) * (m.gate ? 2 : 1); }

static int64_t count_strip_bytes(const Matrix& m) {
  switch (m.format) {
    case DENSE_BFLOAT16: return Bfloat16(m).bytes(m.inputs);
    case DENSE_FLOAT32: return Float32(m).bytes(m.inputs);
    case INT8: return Int8(m).bytes(m.inputs);
    case INT4: return Int4(m).bytes(m.inputs);
    case INT4_GROUPS: return Int4Groups<false>(m).bytes(m.inputs);
    case INT4_ZEROS: return Int4Groups<true>(m).bytes(m.inputs);
    default: return Fp8<float>(m).bytes(m.inputs);
  }
}

int64_t count_bytes(const Matrix& m) { return count_strips(m) * count_strip_bytes(m); }

void linear(const Program& p, const Op& op, int num_rows, const Worker& w) {
  Output first = {row<char>(p, op.y, 0), 1.0f, op.kind == LINEAR_ADD};
  char* wide = w.scratch + (int64_t)num_rows * SUMS * sizeof(float);
  multiply({*op.matrix, row<char>(p, op.x, 0), op.x.stride, num_rows, op.y.type, (float*)w.scratch, wide, nullptr,
            first, op.y.stride},
           share(count_columns(*op.matrix), w));
}

}  // namespace MILLRACE_ISA
