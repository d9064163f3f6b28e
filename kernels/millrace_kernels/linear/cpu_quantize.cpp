// Inputs to groups of int8, before a product with quantised weights: each group scaled by its largest.
#include "quantized.h"

namespace MILLRACE_ISA {

constexpr float SMALLEST = 1e-30f;  // smaller groups are zeros: the inverse of their scale might not be finite
constexpr int32_t INFINITY_BITS = 0x7f800000;
constexpr int VECTORS = GROUP / LANES;

template <typename T>
INLINE void load_group(const T* x, int n, Floats* values) {
  UNROLL for (int i = 0; i < VECTORS; i++) values[i] = n > i * LANES ? load(x + i * LANES, n - i * LANES) : splat(0.0f);
}

INLINE int32_t largest_bits(const Floats* values) {
  Ints most = magnitude_bits(values[0]);
  UNROLL for (int i = 1; i < VECTORS; i++) most = max(most, magnitude_bits(values[i]));
  return largest(most);
}

// A group with a NaN or an infinity gets the scale NaN: the results of its row are NaN, and of no other.
template <typename T>
INLINE void quantize_group(const T* x, int n, Group* to) {
  Floats values[VECTORS];
  load_group(x, n, values);
  int32_t bits = largest_bits(values);
  float most;
  memcpy(&most, &bits, 4);
  bool is_zero = bits >= INFINITY_BITS || most < SMALLEST;
  Floats inverse = splat(is_zero ? 0.0f : 127.0f / most);
  Ints sums = splat_int(0);
  UNROLL for (int i = 0; i < VECTORS; i++) {
    Ints whole = is_zero ? splat_int(0) : nearest(mul(values[i], inverse));
    store_bytes(to->values + i * LANES, whole);
    sums = add(sums, whole);
  }
  to->scale = bits >= INFINITY_BITS ? __builtin_nanf("") : is_zero ? 0.0f : most / 127.0f;
  to->sum = -sum(sums);
  to->start = 128 * to->sum;
}

// With an order, column i of the result is x[order[i]].
template <typename T>
static void quantize_row(const T* x, int width, const int32_t* order, Group* to) {
  for (int begin = 0; begin < width; begin += GROUP, to++) {
    int n = smaller(GROUP, width - begin);
    if (order == nullptr) {
      quantize_group(x + begin, n, to);
      continue;
    }
    T some[GROUP];
    for (int i = 0; i < n; i++) some[i] = x[order[begin + i]];
    quantize_group(some, n, to);
  }
}

void quantize(const Program& p, const Op& op, int num_rows, const Worker& w) {
  Share mine = share(num_rows, w);
  int width = op.x.width / op.parts;
  const int32_t* order = (const int32_t*)op.weight;
  for (int r = mine.begin; r < mine.end; r++)
    for (int part = 0; part < op.parts; part++) {
      Group* to = row<Group>(p, op.y, r) + part * num_groups(width);
      if (op.x.type == FLOAT32) quantize_row(row<float>(p, op.x, r) + part * width, width, order, to);
      else quantize_row(row<bf16>(p, op.x, r) + part * width, width, order, to);
    }
}

}  // namespace MILLRACE_ISA
