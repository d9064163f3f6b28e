// Weights in 8-bit floats (e4m3), widened exactly. README.md explains how.
#pragma once

#include "../native/program.h"

namespace MILLRACE_ISA {

// A byte's sign, exponent and fraction, moved to a bfloat16's, plus the entry of its magnitude, at most 8. The first
// eight magnitudes are subnormal: their entries also make them normal.
constexpr uint16_t ADDENDS[32] = {0, 0x3af0, 0x3b60, 0x3b90, 0x3bc0, 0x3bd0, 0x3be0, 0x3bf0, 0x3c00};
constexpr int ADDEND_OF_NORMALS = 8;

// Four inputs of 16 columns: the first two, and the others.
struct Wide { Pairs first, second; };

// 64 bytes: in each column's four the inputs 0, 2, 1 and 3.
#if defined(__AVX512F__)
INLINE Wide widen_fp8(const void* p) {
  __m512i bytes = _mm512_loadu_si512(p), addends = _mm512_loadu_si512(ADDENDS), kept = _mm512_set1_epi16((short)0x87f0);
  __m512i magnitudes = _mm512_and_si512(bytes, _mm512_set1_epi8(0x7f));
  __m512i index = _mm512_min_epu8(magnitudes, _mm512_set1_epi8(ADDEND_OF_NORMALS));
  __m512i even = _mm512_and_si512(_mm512_srai_epi16(_mm512_slli_epi16(bytes, 8), 4), kept);
  __m512i odd = _mm512_and_si512(_mm512_srai_epi16(bytes, 4), kept);
  return {{_mm512_add_epi16(even, _mm512_permutexvar_epi16(index, addends))},
          {_mm512_add_epi16(odd, _mm512_permutexvar_epi16(_mm512_srli_epi16(index, 8), addends))}};
}
#elif defined(__AVX2__)
struct HalfWide { __m256i first, second; };

INLINE HalfWide widen_fp8(__m256i bytes) {
  __m256i kept = _mm256_set1_epi16((short)0x87f0), low_half = _mm256_set1_epi16(0xff);
  __m256i index = _mm256_and_si256(bytes, _mm256_set1_epi8(0x7f));
  index = _mm256_min_epu8(index, _mm256_set1_epi8(ADDEND_OF_NORMALS));
  __m128i lows = _mm_packus_epi16(_mm_and_si128(_mm_loadu_si128((const __m128i*)ADDENDS), _mm_set1_epi16(0xff)),
                                  _mm_and_si128(_mm_loadu_si128((const __m128i*)(ADDENDS + 8)), _mm_set1_epi16(0xff)));
  __m128i highs = _mm_packus_epi16(_mm_srli_epi16(_mm_loadu_si128((const __m128i*)ADDENDS), 8),
                                   _mm_srli_epi16(_mm_loadu_si128((const __m128i*)(ADDENDS + 8)), 8));
  __m256i low = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(lows), index);
  __m256i high = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(highs), index);
  __m256i even = _mm256_or_si256(_mm256_and_si256(low, low_half), _mm256_slli_epi16(high, 8));
  __m256i odd = _mm256_or_si256(_mm256_srli_epi16(low, 8), _mm256_andnot_si256(low_half, high));
  __m256i moved = _mm256_and_si256(_mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 4), kept);
  return {_mm256_add_epi16(even, moved),
          _mm256_add_epi16(odd, _mm256_and_si256(_mm256_srai_epi16(bytes, 4), kept))};
}
INLINE Wide widen_fp8(const void* p) {
  HalfWide a = widen_fp8(_mm256_loadu_si256((const __m256i*)p)), b = widen_fp8(_mm256_loadu_si256((const __m256i*)p + 1));
  return {{a.first, b.first}, {a.second, b.second}};
}
#else
INLINE bf16 widen_fp8(uint8_t x) {
  int magnitude = x & 0x7f;
  return (bf16)((x & 0x80) << 8 | ((magnitude << 4) + ADDENDS[smaller(magnitude, ADDEND_OF_NORMALS)]));
}
INLINE Wide widen_fp8(const void* p) {
  const uint8_t* bytes = (const uint8_t*)p;
  Wide wide;
  for (int i = 0; i < 2 * LANES; i++) {
    wide.first.v[i] = widen_fp8(bytes[2 * i]);
    wide.second.v[i] = widen_fp8(bytes[2 * i + 1]);
  }
  return wide;
}
#endif

// Append to a dense strip of the inputs' type.
INLINE char* append(char* to, Wide x, bf16) {
  memcpy(to, &x.first, 64), memcpy(to + 64, &x.second, 64);
  return to + 128;
}
INLINE char* append(char* to, Wide x, float) {
  const Floats four[4] = {lower(x.first), upper(x.first), lower(x.second), upper(x.second)};
  UNROLL for (int i = 0; i < 4; i++) store((float*)to + i * LANES, four[i]);
  return to + 256;
}

// acc + the products with a row's next n inputs, at most four, in their order.
INLINE Floats add_products(Floats acc, Wide w, const bf16* x, int n) {
  acc = dot(acc, w.first, splat_pair(x));
  return n < 4 ? acc : dot(acc, w.second, splat_pair(x + 2));
}
INLINE Floats add_products(Floats acc, Wide w, const float* x, int n) {
  acc = fma(lower(w.first), splat(x[0]), acc);
  if (n > 1) acc = fma(upper(w.first), splat(x[1]), acc);
  if (n > 2) acc = fma(lower(w.second), splat(x[2]), acc);
  return n > 3 ? fma(upper(w.second), splat(x[3]), acc) : acc;
}

// Strips of bytes: of each group 16 scales, unless all inputs have one, and then the weights.
template <typename T>
struct Fp8 {
  typedef T Input;
  static constexpr int STEP = 1;
  static constexpr int64_t BYTES_PER_INPUT = LANES;

  int group;

  explicit Fp8(const Matrix& m) : group(m.group) {}

  int64_t bytes(int inputs) const {
    if (group == 0) return (inputs + 3) / 4 * 4 * BYTES_PER_INPUT;
    return (inputs + group - 1) / group * (4 * LANES + group * BYTES_PER_INPUT);
  }
};

// Widen a strip's inputs, with their scales. Writes up to three inputs more, or a whole last group.
template <typename T>
static void widen_strip(const char* from, int inputs, int group, char* to) {
  int step = group ? group : inputs;
  for (int begin = 0; begin < inputs; begin += step) {
    if (group) memcpy(to, from, 4 * LANES), from += 4 * LANES, to += 4 * LANES;
    for (int k = 0; k < step; k += 4, from += 4 * LANES) {
      __builtin_prefetch(from + WIDE_INPUTS * LANES, 0, 2);  // read by the next call
      to = append(to, widen_fp8(from), T());
    }
  }
}

template <typename T, int STRIPS>
INLINE void add_row(const T* x, const char* w, int64_t strip, int inputs, Floats* acc) {
  for (int k = 0; k < inputs; k += 4, w += 4 * LANES)
    UNROLL for (int s = 0; s < STRIPS; s++) {
      // As of bfloat16: the same inputs of the next strips.
      __builtin_prefetch(w + (s + STRIPS) * strip, 0, 2);
      acc[s] = add_products(acc[s], widen_fp8(w + s * strip), x + k, inputs - k);
    }
}

// A single row waits for memory, so it widens in registers.
template <int ROWS, int STRIPS, typename T>
INLINE void multiply(Fp8<T> f, const char* x, int64_t, const char* w, int64_t strip, int inputs,
                     Floats acc[ROWS][STRIPS]) {
  static_assert(ROWS == 1, "several rows multiply widened strips");
  if (f.group == 0) return add_row<T, STRIPS>((const T*)x, w, strip, inputs, acc[0]);
  for (int k = 0; k < inputs; k += f.group, w += f.group * LANES) {
    const char* scales = w;
    w += 4 * LANES;
    Floats part[STRIPS];
    UNROLL for (int s = 0; s < STRIPS; s++) part[s] = splat(0.0f);
    add_row<T, STRIPS>((const T*)x + k, w, strip, smaller(f.group, inputs - k), part);
    UNROLL for (int s = 0; s < STRIPS; s++)
      acc[0][s] = add(acc[0][s], mul(part[s], load((const float*)(scales + s * strip))));
  }
}

}  // namespace MILLRACE_ISA
