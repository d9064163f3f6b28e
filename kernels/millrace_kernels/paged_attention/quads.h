// Products with a cache of int8, for a model in bfloat16, by the dot products of bytes that VNNI has: nothing of the
// cache is widened. README.md has the maths.
//
// Four numbers of a key, or of four tokens' values, lie side by side: a lane adds their products. Queries and weights are
// rounded to 16 bits, of a scale for each row, and are two bytes: x = scale · (256 · high + low).
#pragma once

#include "../linear/integers.h"
#include "cache.h"

namespace MILLRACE_ISA {

// A row of 16-bit numbers, by their bytes.
struct Halves {
  int8_t *high, *low;
  float scale;
  int32_t high_bias, low_bias;  // what an unsigned byte of the cache, which is 128 too large, adds too much, negative
};

#if defined(__AVX512VNNI__)

constexpr int QUAD_VECTORS = 2;
constexpr float MOST = 32512.0f;  // 127 · 256: so the high byte is at most 127

// Round n numbers. A NaN or an infinity makes the scale NaN.
INLINE void round_halves(const float* x, int n, Halves* to) {
  Ints bits = splat_int(0), highs = splat_int(0), lows = splat_int(0);
  for (int i = 0; i < n; i += LANES) bits = max(bits, magnitude_bits(load(x + i)));
  int32_t most_bits = largest(bits);
  float most;
  memcpy(&most, &most_bits, 4);
  bool is_known = most_bits < INFINITY_AT, is_zero = !is_known || most < SMALLEST_ROUNDED;
  Floats inverse = splat(is_zero ? 0.0f : MOST / most);
  for (int i = 0; i < n; i += LANES) {
    __m512i whole = is_zero ? _mm512_setzero_si512() : nearest(mul(load(x + i), inverse)).v;
    Ints high = {_mm512_srai_epi32(_mm512_add_epi32(whole, _mm512_set1_epi32(128)), 8)};
    Ints low = {_mm512_sub_epi32(whole, _mm512_slli_epi32(high.v, 8))};
    store_bytes(to->high + i, high), store_bytes(to->low + i, low);
    highs = add(highs, high), lows = add(lows, low);
  }
  to->scale = !is_known ? __builtin_nanf("") : is_zero ? 0.0f : most / MOST;
  to->high_bias = -128 * sum(highs), to->low_bias = -128 * sum(lows);
}

INLINE Bytes unsign(Bytes x) { return {_mm512_xor_si512(x.v, _mm512_set1_epi8((char)0x80))}; }
INLINE Bytes load_quads(const int8_t* p) { return unsign(load_bytes(p)); }
// Sixteen tokens' last two dimensions, where those of a head are no multiple of 4.
INLINE Bytes load_rest(const int8_t* p) {
  return unsign({_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p))});
}

// The sums of some rows' products with some vectors of quads. They are exact.
template <int ROWS, int VECTORS>
struct QuadSums {
  Ints high[ROWS][VECTORS], low[ROWS][VECTORS];

  INLINE_MEMBER void begin(const Halves* rows) {
    UNROLL for (int i = 0; i < ROWS; i++)
      UNROLL for (int v = 0; v < VECTORS; v++)
        high[i][v] = splat_int(rows[i].high_bias), low[i][v] = splat_int(rows[i].low_bias);
  }
  INLINE_MEMBER void add_products(const Halves* rows, int at, const Bytes* quads) {
    UNROLL for (int i = 0; i < ROWS; i++) {
      Bytes upper = splat_bytes(rows[i].high + at), lower = splat_bytes(rows[i].low + at);
      UNROLL for (int v = 0; v < VECTORS; v++) {
        high[i][v] = dot(high[i][v], quads[v], upper);
        low[i][v] = dot(low[i][v], quads[v], lower);
      }
    }
  }
  INLINE_MEMBER Floats total(const Halves* rows, int i, int v) const {
    return mul(fma(to_floats(high[i][v]), splat(256.0f), to_floats(low[i][v])), splat(rows[i].scale));
  }
};

// scores [rows, TILE] of some rows with a tile's keys, by block.
template <int ROWS>
static __attribute__((noinline)) void score_quads(const Halves* rows, int head_dim, const int8_t* const* keys,
                                                  float* scores) {
  for (int b = 0; b < TILE / BLOCK; b += QUAD_VECTORS) {
    QuadSums<ROWS, QUAD_VECTORS> sums;
    sums.begin(rows);
    Bytes key[QUAD_VECTORS];
    int d = 0;
    for (; d + 4 <= head_dim; d += 4) {
      UNROLL for (int v = 0; v < QUAD_VECTORS; v++) key[v] = load_quads(keys[b + v] + d * BLOCK);
      sums.add_products(rows, d, key);
    }
    if (d < head_dim) {
      UNROLL for (int v = 0; v < QUAD_VECTORS; v++) key[v] = load_rest(keys[b + v] + d * BLOCK);
      sums.add_products(rows, d, key);
    }
    UNROLL for (int i = 0; i < ROWS; i++)
      UNROLL for (int v = 0; v < QUAD_VECTORS; v++) store(scores + i * TILE + (b + v) * BLOCK, sums.total(rows, i, v));
  }
}

// mixed [rows, width] += weights · values over a tile's keys, at 16 · VECTORS dimensions from d on. Tokens of other
// sequences may be among them: their weights are 0.
template <int ROWS, int VECTORS>
static __attribute__((noinline)) void mix_quads(const Halves* rows, int head_dim, int d, const int8_t* const* values,
                                                int begin, int end, float* mixed, int64_t width) {
  QuadSums<ROWS, VECTORS> sums;
  sums.begin(rows);
  for (int key = begin / 4 * 4; key < end; key += 4) {
    const int8_t* line = values[key / BLOCK] + (key % BLOCK / 4 * head_dim + d) * 4;
    Bytes value[VECTORS];
    UNROLL for (int v = 0; v < VECTORS; v++) value[v] = load_quads(line + v * LANES * 4);
    sums.add_products(rows, key, value);
  }
  UNROLL for (int i = 0; i < ROWS; i++)
    UNROLL for (int v = 0; v < VECTORS; v++) {
      float* to = mixed + i * width + d + v * LANES;
      store(to, add(load(to), sums.total(rows, i, v)));
    }
}

#endif

}  // namespace MILLRACE_ISA
