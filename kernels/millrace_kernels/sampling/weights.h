// Integer weights, and the vectorised operations on all tokens of a row. README.md has the maths.
#pragma once

#include "sampling.h"

namespace MILLRACE_ISA {

constexpr int CHUNK = 256;

// Store x, which lies in [0, 2^31), rounded to nearest, ties to even.
INLINE void store_rounded(uint32_t* p, Floats x) {
#if defined(__AVX512F__)
  _mm512_storeu_si512(p, _mm512_cvtps_epi32(x.v));
#elif defined(__AVX2__)
  _mm256_storeu_si256((__m256i*)p, _mm256_cvtps_epi32(x.a));
  _mm256_storeu_si256((__m256i*)p + 1, _mm256_cvtps_epi32(x.b));
#else
  for (int i = 0; i < LANES; i++) p[i] = (uint32_t)__builtin_rintf(x.v[i]);
#endif
}

// 2^y · 2^30 for y = (z - peak) · inverse <= 0, with each product and sum rounded: fma would differ.
INLINE Floats weigh(Floats z, Floats peak, Floats inverse) {
  const float series[] = {0x1.5f0890p-10f, 0x1.3b2a54p-7f, 0x1.c6af6cp-5f, 0x1.ebfbe0p-3f, 0x1.62e430p-1f, 1.0f};
  Floats y = max(splat(-32.0f), mul(sub(z, peak), inverse));
  Floats n = round(y);
  Floats f = sub(y, n);
  Floats p = splat(0x1.44138ap-13f);
  UNROLL for (int i = 0; i < 6; i++) p = add(mul(p, f), splat(series[i]));
  return mul(p, power_of_two(add(n, splat(30.0f))));
}

// Needs room for n + 16 weights.
INLINE void weigh_all(const float* z, int n, float peak, float inverse, uint32_t* weights) {
  for (int i = 0; i < n; i += LANES)
    store_rounded(weights + i, weigh(load(z + i, n - i), splat(peak), splat(inverse)));
}

INLINE uint64_t sum_of(const uint32_t* weights, int n) {
  uint64_t total = 0;
  for (int i = 0; i < n; i++) total += weights[i];
  return total;
}

// Whether all are finite. `maxima` has sixteen numbers for each chunk, of every sixteenth token.
INLINE bool scan(const float* z, int n, float* maxima, float* peak) {
  Floats top = splat(-__builtin_inff()), spoilt[4] = {splat(0.0f), splat(0.0f), splat(0.0f), splat(0.0f)};
  for (int c = 0; c < n; c += CHUNK) {
    Floats best[4] = {splat(-__builtin_inff()), splat(-__builtin_inff()), splat(-__builtin_inff()), splat(-__builtin_inff())};
    UNROLL for (int j = 0; j < CHUNK / LANES; j++) {
      int at = c + j * LANES;
      if (at >= n) break;
      Floats x = c + CHUNK <= n ? load(z + at) : load(z + at, n - at);
      spoilt[j % 4] = fma(x, splat(0.0f), spoilt[j % 4]);
      best[j % 4] = max(best[j % 4], c + CHUNK <= n ? x : within(x, 0, n - at, best[j % 4]));
    }
    Floats chunk = max(max(best[0], best[1]), max(best[2], best[3]));
    store(maxima + c / LANES, chunk);
    top = max(top, chunk);
  }
  *peak = largest(top);
  return sum(add(add(spoilt[0], spoilt[1]), add(spoilt[2], spoilt[3]))) == 0;
}

// The first token with the row's maximum.
INLINE int first_peak(const float* z, int n, const float* maxima, float peak) {
  int c = 0;
  while (c + CHUNK < n && largest(load(maxima + c / LANES)) < peak) c += CHUNK;
  while (c + 1 < n && z[c] != peak) c++;
  return c;
}

INLINE float lowest_of(const float* z, int n) {
  Floats low = splat(__builtin_inff());
  for (int i = 0; i < n; i += LANES) low = min(low, within(load(z + i, n - i), 0, n - i, low));
  return -largest(sub(splat(-0.0f), low));
}

// Collect the tokens with z >= bound in order; return their number. Needs room for n + 16.
INLINE int gather_above(const float* z, int n, float bound, float* to_z, int32_t* to_ids) {
  int count = 0;
#if defined(__AVX512F__)
  // Compressed in a register: compressing to memory is microcode on Zen 4.
  __m512i ids = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  for (int i = 0; i < n; i += LANES) {
    __m512 x = load(z + i, n - i).v;
    __mmask16 keep = _mm512_mask_cmp_ps_mask(first_lanes(n - i), x, _mm512_set1_ps(bound), _CMP_GE_OQ);
    _mm512_storeu_ps(to_z + count, _mm512_maskz_compress_ps(keep, x));
    _mm512_storeu_si512(to_ids + count, _mm512_maskz_compress_epi32(keep, ids));
    count += __builtin_popcount(keep);
    ids = _mm512_add_epi32(ids, _mm512_set1_epi32(LANES));
  }
#else
  for (int i = 0; i < n; i++) {
    to_z[count] = z[i], to_ids[count] = i;
    count += z[i] >= bound;
  }
#endif
  return count;
}

// Set forbidden tokens to -infinity. z needs room for sixteen more than n tokens.
INLINE void forbid(float* z, int n, const uint32_t* mask) {
  for (int i = 0; i < n; i += LANES) {
    uint32_t allowed = mask[i / 32] >> (i % 32);
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(z + i, first_lanes(n - i) & ~(__mmask16)allowed, _mm512_set1_ps(-__builtin_inff()));
#elif defined(__AVX2__)
    const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    UNROLL for (int j = 0; j < LANES; j += 8) {
      __m256i is_out = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(allowed >> j), bit), _mm256_setzero_si256());
      __m256 kept = _mm256_blendv_ps(_mm256_loadu_ps(z + i + j), splat(-__builtin_inff()).a, _mm256_castsi256_ps(is_out));
      _mm256_storeu_ps(z + i + j, kept);
    }
#else
    for (int j = 0; j < LANES && i + j < n; j++) z[i + j] = allowed >> j & 1 ? z[i + j] : -__builtin_inff();
#endif
  }
}

}  // namespace MILLRACE_ISA
