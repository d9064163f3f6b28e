// Sixteen integers, and sixteen groups of four bytes, on each instruction set. Every operation is exact.
#pragma once

#include "../native/vec.h"

// x86 without VNNI multiplies bytes fast only where sums fit in 16 bits. README.md explains how.
#if defined(__AVX2__) && !defined(__AVX512VNNI__)
#define SUMS_ARE_SHORT
#endif

namespace MILLRACE_ISA {

#if defined(__AVX512F__)

struct Ints { __m512i v; };
struct Bytes { __m512i v; };  // lane i: four bytes, the first in the lowest eight bits

INLINE Ints splat_int(int32_t x) { return {_mm512_set1_epi32(x)}; }
INLINE Ints add(Ints a, Ints b) { return {_mm512_add_epi32(a.v, b.v)}; }
INLINE Ints max(Ints a, Ints b) { return {_mm512_max_epi32(a.v, b.v)}; }
INLINE int32_t sum(Ints x) { return _mm512_reduce_add_epi32(x.v); }
INLINE int32_t largest(Ints x) { return _mm512_reduce_max_epi32(x.v); }
INLINE Ints magnitude_bits(Floats x) {
  return {_mm512_and_si512(_mm512_castps_si512(x.v), _mm512_set1_epi32(0x7fffffff))};
}
INLINE Ints nearest(Floats x) { return {_mm512_cvtps_epi32(x.v)}; }
INLINE Floats to_floats(Ints x) { return {_mm512_cvtepi32_ps(x.v)}; }
INLINE void store_bytes(int8_t* p, Ints x) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(x.v)); }
INLINE Ints load_times_16(const uint8_t* p) {
  return {_mm512_slli_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)), 4)};
}
INLINE Ints multiply_shorts(Ints plain, Ints with_sign) { return {_mm512_madd_epi16(plain.v, with_sign.v)}; }

INLINE Bytes load_bytes(const void* p) { return {_mm512_loadu_si512(p)}; }
INLINE Bytes splat_bytes(const void* p) {
  int32_t four;
  memcpy(&four, p, 4);
  return {_mm512_set1_epi32(four)};
}
#if defined(SUMS_ARE_SHORT)
struct Shorts { __m512i v; };  // two sums a lane

INLINE Shorts no_shorts() { return {_mm512_setzero_si512()}; }
INLINE Bytes low_nibbles(Bytes x) { return {_mm512_and_si512(x.v, _mm512_set1_epi8(15))}; }
INLINE Bytes high_nibbles(Bytes x) { return low_nibbles({_mm512_srli_epi16(x.v, 4)}); }
INLINE Shorts dot(Shorts acc, Bytes nibbles, Bytes with_sign) {
  return {_mm512_add_epi16(acc.v, _mm512_maddubs_epi16(nibbles.v, with_sign.v))};
}
INLINE Ints add_times(Ints acc, Shorts x, int16_t factor) {
  return {_mm512_add_epi32(acc.v, _mm512_madd_epi16(x.v, _mm512_set1_epi16(factor)))};
}
#else
INLINE Bytes low_nibbles(Bytes x) {
  return {_mm512_and_si512(_mm512_slli_epi16(x.v, 4), _mm512_set1_epi8((char)0xf0))};
}
INLINE Bytes high_nibbles(Bytes x) { return {_mm512_and_si512(x.v, _mm512_set1_epi8((char)0xf0))}; }
INLINE Ints dot(Ints acc, Bytes plain, Bytes with_sign) {
  return {_mm512_dpbusd_epi32(acc.v, plain.v, with_sign.v)};
}
#endif

#elif defined(__AVX2__)

struct Ints { __m256i a, b; };
struct Bytes { __m256i a, b; };

INLINE Ints splat_int(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
INLINE Ints add(Ints x, Ints y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
INLINE Ints max(Ints x, Ints y) { return {_mm256_max_epi32(x.a, y.a), _mm256_max_epi32(x.b, y.b)}; }
INLINE int32_t sum(Ints x) {
  __m256i both = _mm256_add_epi32(x.a, x.b);
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}
INLINE int32_t largest(Ints x) {
  __m256i both = _mm256_max_epi32(x.a, x.b);
  __m128i four = _mm_max_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}
INLINE Ints magnitude_bits(Floats x) {
  __m256i mask = _mm256_set1_epi32(0x7fffffff);
  return {_mm256_and_si256(_mm256_castps_si256(x.a), mask), _mm256_and_si256(_mm256_castps_si256(x.b), mask)};
}
INLINE Ints nearest(Floats x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
INLINE Floats to_floats(Ints x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
INLINE void store_bytes(int8_t* p, Ints x) {
  __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8);
  __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128((__m128i*)p, bytes);
}
INLINE Ints load_times_16(const uint8_t* p) {
  __m128i bytes = _mm_loadu_si128((const __m128i*)p);
  return {_mm256_slli_epi32(_mm256_cvtepu8_epi32(bytes), 4),
          _mm256_slli_epi32(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)), 4)};
}
INLINE Ints multiply_shorts(Ints plain, Ints with_sign) {
  return {_mm256_madd_epi16(plain.a, with_sign.a), _mm256_madd_epi16(plain.b, with_sign.b)};
}

INLINE Bytes load_bytes(const void* p) {
  return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)p + 1)};
}
INLINE Bytes splat_bytes(const void* p) {
  int32_t four;
  memcpy(&four, p, 4);
  return {_mm256_set1_epi32(four), _mm256_set1_epi32(four)};
}
struct Shorts { __m256i a, b; };  // two sums a lane

INLINE Shorts no_shorts() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
INLINE Bytes low_nibbles(Bytes x) {
  __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(x.a, mask), _mm256_and_si256(x.b, mask)};
}
INLINE Bytes high_nibbles(Bytes x) { return low_nibbles({_mm256_srli_epi16(x.a, 4), _mm256_srli_epi16(x.b, 4)}); }
INLINE Shorts dot(Shorts acc, Bytes nibbles, Bytes with_sign) {
  return {_mm256_add_epi16(acc.a, _mm256_maddubs_epi16(nibbles.a, with_sign.a)),
          _mm256_add_epi16(acc.b, _mm256_maddubs_epi16(nibbles.b, with_sign.b))};
}
INLINE Ints add_times(Ints acc, Shorts x, int16_t factor) {
  __m256i factors = _mm256_set1_epi16(factor);
  return {_mm256_add_epi32(acc.a, _mm256_madd_epi16(x.a, factors)),
          _mm256_add_epi32(acc.b, _mm256_madd_epi16(x.b, factors))};
}

#else  // any CPU that GCC supports

struct Ints { int32_t v[16]; };
struct Bytes { uint8_t v[64]; };

#define EACH for (int i = 0; i < 16; i++)
INLINE Ints splat_int(int32_t x) { Ints r; EACH r.v[i] = x; return r; }
INLINE Ints add(Ints a, Ints b) { EACH a.v[i] += b.v[i]; return a; }
INLINE Ints max(Ints a, Ints b) { EACH a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i]; return a; }
INLINE int32_t sum(Ints x) { int32_t r = 0; EACH r += x.v[i]; return r; }
INLINE int32_t largest(Ints x) { int32_t r = x.v[0]; EACH r = x.v[i] > r ? x.v[i] : r; return r; }
INLINE Ints magnitude_bits(Floats x) {
  Ints r;
  memcpy(r.v, x.v, 64);
  EACH r.v[i] &= 0x7fffffff;
  return r;
}
INLINE Ints nearest(Floats x) { Ints r; EACH r.v[i] = (int32_t)__builtin_rintf(x.v[i]); return r; }
INLINE Floats to_floats(Ints x) { Floats r; EACH r.v[i] = (float)x.v[i]; return r; }
INLINE void store_bytes(int8_t* p, Ints x) { EACH p[i] = (int8_t)x.v[i]; }
INLINE Ints load_times_16(const uint8_t* p) { Ints r; EACH r.v[i] = p[i] * 16; return r; }
INLINE Ints multiply_shorts(Ints plain, Ints with_sign) { EACH plain.v[i] *= with_sign.v[i]; return plain; }
INLINE Bytes load_bytes(const void* p) { Bytes r; memcpy(r.v, p, 64); return r; }
INLINE Bytes splat_bytes(const void* p) { Bytes r; EACH memcpy(r.v + 4 * i, p, 4); return r; }
INLINE Bytes low_nibbles(Bytes x) { for (int i = 0; i < 64; i++) x.v[i] <<= 4; return x; }
INLINE Bytes high_nibbles(Bytes x) { for (int i = 0; i < 64; i++) x.v[i] &= 0xf0; return x; }
INLINE Ints dot(Ints acc, Bytes plain, Bytes with_sign) {
  EACH for (int j = 4 * i; j < 4 * i + 4; j++) acc.v[i] += plain.v[j] * (int8_t)with_sign.v[j];
  return acc;
}
#undef EACH

#endif

// magnitude_bits: the bits of |x|, in the order of |x|, with infinity and then NaN above all numbers.
// nearest: ties to even.
// multiply_shorts: of numbers below 2¹⁵ by size, of which the first ones are not negative.
// dot: acc + the four products of an unsigned byte with a signed one, in each lane; of a nibble, two and two.
// low_nibbles, high_nibbles: each in the upper half of its byte, or in the lower where sums are short.
// add_times: acc + factor · both sums of a lane.

}  // namespace MILLRACE_ISA
