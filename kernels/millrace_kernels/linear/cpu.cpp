// y = x·Wᵀ + b on CPUs, for any number of rows. README.md has the layout, and why a row's bits depend only on the row.
#include "product.h"

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

template <typename F>
INLINE int64_t strip_bytes(const Matrix& m) {
  return (m.inputs + F::STEP - 1) / F::STEP * F::STEP * F::BYTES_PER_INPUT;
}

// The position of a tile.
struct Tile {
  const Product& product;
  int row, strip, first_input, num_inputs;
  bool is_first, is_last;
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

// gate / (1 + e^-gate) · up
INLINE Floats gated(Floats gate, Floats up) {
  Floats one = splat(1.0f);
  return mul(div(gate, add(one, exp(sub(splat(0.0f), gate)))), up);
}

template <int STRIPS>
static __attribute__((noinline)) void finish_row(const Tile& t, int r, Floats* value) {
  const Matrix& m = t.product.matrix;
  Output to = output(t.product, t.row + r);
  if (m.is_gated) {  // strips 2i and 2i + 1 are the gate and up columns of output strip i
    int half = m.outputs / 2;
    UNROLL for (int s = 0; s + 1 < STRIPS; s += 2) {
      int column = (t.strip + s) / 2 * LANES, left = half - column;
      Floats gate = biased(m, value[s], column, left), up = biased(m, value[s + 1], half + column, left);
      write(t.product.y_type, to.y, column, gated(gate, up), left);
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
  int64_t strip = strip_bytes<F>(p.matrix);
  const char* w = (const char*)p.matrix.data + t.strip * strip + t.first_input * F::BYTES_PER_INPUT;
  const char* x = p.x + t.row * p.x_stride + t.first_input / F::STEP * sizeof(typename F::Input);
  multiply<ROWS, STRIPS>(F(), x, p.x_stride, w, strip, t.num_inputs, acc);
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
static void multiply_of(const Product& p, Share columns) {
  const Matrix& m = p.matrix;
  int unit = m.is_gated ? 2 : 1;
  constexpr int WIDTH = TILE_STRIPS < 2 ? 2 : TILE_STRIPS;  // a gated unit is two strips
  int at_once = m.is_gated ? WIDTH : TILE_STRIPS;
  for (int strip = columns.begin * unit; strip < columns.end * unit; strip += at_once) {
    int num_strips = smaller(at_once, columns.end * unit - strip);
    for (int k = 0; k < m.inputs; k += BLOCK_INPUTS) {
      int inputs = smaller(BLOCK_INPUTS, m.inputs - k);
      for (int r = 0; r < p.num_rows; r += TILE_ROWS) {
        Tile tile = {p, r, strip, k, inputs, k == 0, k + inputs == m.inputs};
        compute_strips<F>(tile, smaller(TILE_ROWS, p.num_rows - r), num_strips);
      }
    }
  }
}

void multiply(const Product& p, Share columns) {
  switch (p.matrix.format) {
    case DENSE_BFLOAT16: return multiply_of<Bfloat16>(p, columns);
    case DENSE_FLOAT32: return multiply_of<Float32>(p, columns);
    case INT8: return multiply_of<Int8>(p, columns);
    case INT4: return multiply_of<Int4>(p, columns);
  }
}

int count_columns(const Matrix& m) { return ((m.is_gated ? m.outputs / 2 : m.outputs) + LANES - 1) / LANES; }

int count_strips(const Matrix& m) { return count_columns(m) * (m.is_gated ? 2 : 1); }

int64_t count_bytes(const Matrix& m) {
  switch (m.format) {
    case DENSE_BFLOAT16: return count_strips(m) * strip_bytes<Bfloat16>(m);
    case DENSE_FLOAT32: return count_strips(m) * strip_bytes<Float32>(m);
    case INT8: return count_strips(m) * strip_bytes<Int8>(m);
    default: return count_strips(m) * strip_bytes<Int4>(m);
  }
}

void linear(const Program& p, const Op& op, int num_rows, const Worker& w) {
  Output first = {row<char>(p, op.y, 0), 1.0f, op.kind == LINEAR_ADD};
  multiply({*op.matrix, row<char>(p, op.x, 0), op.x.stride, num_rows, op.y.type, (float*)w.scratch, nullptr, first,
            op.y.stride},
           share(count_columns(*op.matrix), w));
}

}  // namespace MILLRACE_ISA
