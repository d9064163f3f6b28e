// Dense bfloat16 strips times rows in AMX tiles: 16 rows, 16 columns and 32 inputs at once. README.md has the order.
//
// 32 inputs of a strip, as they are packed, are a tile: 16 rows of 16 pairs. So are 32 inputs of 16 rows.
#pragma once

#include "../native/amx.h"
#include "product.h"

#if defined(__AMX_BF16__)
namespace MILLRACE_ISA {

constexpr int TILE_INPUTS = 32, TILE_BYTES = 1024;

// Sums are in tiles 0 to 3, rows in 4 and 5, strips in the others. Up to 16 rows meet four strips at once, whose sums
// have a tile each. Up to 32 meet two: the sums of the first 16 rows are in 0 and 1.
INLINE void use_rows(Tiles& tiles, int rows) {
  tiles.use(rows, [rows](Tiles::Shape& shape) {
    constexpr int FEW[] = {0, 1, 2, 3, 4}, MORE[] = {2, 3, 5};
    if (rows <= 16)
      for (int tile : FEW) shape.rows[tile] = rows;
    else
      for (int tile : MORE) shape.rows[tile] = rows - 16;
  });
}

// The operations of a tile, for a single row: it waits for memory, and vectors wait a tenth less for it than tiles. Sums
// of even and of odd inputs start again in each tile, with fused products, and subnormal numbers are zeros.
template <int STRIPS>
INLINE void multiply_single(const char* x, int64_t, const char* w, int64_t strip, int inputs, float* sums,
                            bool is_first) {
  constexpr unsigned ZERO_SUBNORMALS = 0x8040;
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | ZERO_SUBNORMALS);
  publish();
  const __m512i odd_half = _mm512_set1_epi32((int)0xffff0000);
  __m512 sum[STRIPS];
  UNROLL for (int s = 0; s < STRIPS; s++) sum[s] = is_first ? _mm512_setzero_ps() : _mm512_loadu_ps(sums + s * LANES);
  for (int k = 0; k < inputs; k += TILE_INPUTS, x += 2 * TILE_INPUTS, w += TILE_BYTES) {
    __m512 even[STRIPS], odd[STRIPS];
    UNROLL for (int s = 0; s < STRIPS; s++) even[s] = odd[s] = _mm512_setzero_ps();
    for (int line = 0; line < TILE_BYTES; line += 64) {
      uint32_t pair;
      __builtin_memcpy(&pair, x + line / 16, 4);
      const __m512 x_even = _mm512_castsi512_ps(_mm512_set1_epi32((int)(pair << 16)));
      const __m512 x_odd = _mm512_castsi512_ps(_mm512_set1_epi32((int)(pair & 0xffff0000)));
      UNROLL for (int s = 0; s < STRIPS; s++) {
        __builtin_prefetch(w + (s + STRIPS) * strip + line, 0, 2);
        const __m512i pairs = _mm512_loadu_si512(w + s * strip + line);
        even[s] = _mm512_fmadd_ps(x_even, _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)), even[s]);
        odd[s] = _mm512_fmadd_ps(x_odd, _mm512_castsi512_ps(_mm512_and_si512(pairs, odd_half)), odd[s]);
      }
    }
    UNROLL for (int s = 0; s < STRIPS; s++) sum[s] = _mm512_add_ps(sum[s], _mm512_add_ps(even[s], odd[s]));
  }
  UNROLL for (int s = 0; s < STRIPS; s++) _mm512_storeu_ps(sums + s * LANES, sum[s]);
  publish();
  _mm_setcsr(before);
}

// sums [rows, SUMS] of `inputs`, a multiple of 32; `is_first`: they begin with 0.
template <int STRIPS>
INLINE void multiply_few(const char* x, int64_t x_stride, const char* w, int64_t strip, int inputs, float* sums,
                         bool is_first) {
  constexpr int64_t STRIDE = SUMS * sizeof(float);
  zero_sums();
  if (!is_first) {
    LOAD_TILE(0, sums, STRIDE);
    if constexpr (STRIPS > 1) LOAD_TILE(1, sums + LANES, STRIDE);
    if constexpr (STRIPS > 2) LOAD_TILE(2, sums + 2 * LANES, STRIDE);
    if constexpr (STRIPS > 3) LOAD_TILE(3, sums + 3 * LANES, STRIDE);
  }
  for (int k = 0; k < inputs; k += TILE_INPUTS, x += 2 * TILE_INPUTS, w += TILE_BYTES) {
    LOAD_TILE(4, x, x_stride);
    LOAD_TILE(5, w, 64);
    _tile_dpbf16ps(0, 4, 5);
    if constexpr (STRIPS > 1) {
      LOAD_TILE(6, w + strip, 64);
      _tile_dpbf16ps(1, 4, 6);
    }
    if constexpr (STRIPS > 2) {
      LOAD_TILE(7, w + 2 * strip, 64);
      _tile_dpbf16ps(2, 4, 7);
    }
    if constexpr (STRIPS > 3) {
      LOAD_TILE(5, w + 3 * strip, 64);
      _tile_dpbf16ps(3, 4, 5);
    }
  }
  STORE_TILE(0, sums, STRIDE);
  if constexpr (STRIPS > 1) STORE_TILE(1, sums + LANES, STRIDE);
  if constexpr (STRIPS > 2) STORE_TILE(2, sums + 2 * LANES, STRIDE);
  if constexpr (STRIPS > 3) STORE_TILE(3, sums + 3 * LANES, STRIDE);
}

// The same for 17 to 32 rows and one or two strips.
template <int STRIPS>
INLINE void multiply_many(const char* x, int64_t x_stride, const char* w, int64_t strip, int inputs, float* sums,
                          bool is_first) {
  constexpr int64_t STRIDE = SUMS * sizeof(float);
  const char* others = x + 16 * x_stride;
  float* their_sums = sums + 16 * SUMS;
  zero_sums();
  if (!is_first) {
    LOAD_TILE(0, sums, STRIDE);
    LOAD_TILE(2, their_sums, STRIDE);
    if constexpr (STRIPS > 1) LOAD_TILE(1, sums + LANES, STRIDE);
    if constexpr (STRIPS > 1) LOAD_TILE(3, their_sums + LANES, STRIDE);
  }
  for (int k = 0; k < inputs; k += TILE_INPUTS, x += 2 * TILE_INPUTS, others += 2 * TILE_INPUTS, w += TILE_BYTES) {
    LOAD_TILE(4, x, x_stride);
    LOAD_TILE(6, w, 64);
    _tile_dpbf16ps(0, 4, 6);
    LOAD_TILE(5, others, x_stride);
    _tile_dpbf16ps(2, 5, 6);
    if constexpr (STRIPS > 1) {
      LOAD_TILE(7, w + strip, 64);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  STORE_TILE(0, sums, STRIDE);
  STORE_TILE(2, their_sums, STRIDE);
  if constexpr (STRIPS > 1) STORE_TILE(1, sums + LANES, STRIDE);
  if constexpr (STRIPS > 1) STORE_TILE(3, their_sums + LANES, STRIDE);
}

// Any strips up to four, and up to 32 rows.
INLINE void multiply_tiles(Tiles& tiles, int num_rows, int num_strips, const char* x, int64_t x_stride, const char* w,
                           int64_t strip, int inputs, float* sums, bool is_first) {
  if (num_rows > 1) use_rows(tiles, num_rows);
  if (num_rows > 16) {
    for (int s = 0; s < num_strips; s += 2) {
      auto multiply = s + 1 < num_strips ? multiply_many<2> : multiply_many<1>;
      multiply(x, x_stride, w + s * strip, strip, inputs, sums + s * LANES, is_first);
    }
    return;
  }
  auto multiply = num_rows == 1 ? multiply_single<4> : multiply_few<4>;
  switch (num_strips) {
    case 1: multiply = num_rows == 1 ? multiply_single<1> : multiply_few<1>; break;
    case 2: multiply = num_rows == 1 ? multiply_single<2> : multiply_few<2>; break;
    case 3: multiply = num_rows == 1 ? multiply_single<3> : multiply_few<3>; break;
  }
  multiply(x, x_stride, w, strip, inputs, sums, is_first);
}

}  // namespace MILLRACE_ISA
#endif
