// Sixteen floats, and sixteen pairs of bfloat16, on four instruction sets.
//
// The build compiles every source once for each instruction set, into a library of its own, so that nothing leaks from
// one into another. MILLRACE_ISA is the namespace, so that a debugger shows the running one.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#define INLINE_MEMBER inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

namespace MILLRACE_ISA {

typedef uint16_t bf16;  // the upper half of a float's bits

constexpr int LANES = 16;

INLINE int smaller(int a, int b) { return a < b ? a : b; }
INLINE int larger(int a, int b) { return a > b ? a : b; }

INLINE float widen(bf16 x) {
  uint32_t bits = (uint32_t)x << 16;
  float wide;
  memcpy(&wide, &bits, 4);
  return wide;
}

// Round to nearest, ties to even. A NaN stays a NaN.
INLINE bf16 narrow(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  if ((bits & 0x7fffffff) > 0x7f800000) return (bf16)((bits >> 16) | 0x40);
  return (bf16)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

#if defined(__AVX512F__)

struct Floats { __m512 v; };
struct Pairs { __m512i v; };  // lane i: two bfloat16, the first in the lower half

INLINE __mmask16 first_lanes(int n) { return n >= 16 ? 0xffff : (__mmask16)((1u << n) - 1); }
INLINE Floats splat(float x) { return {_mm512_set1_ps(x)}; }
INLINE Floats load(const float* p) { return {_mm512_loadu_ps(p)}; }
INLINE void store(float* p, Floats x) { _mm512_storeu_ps(p, x.v); }
INLINE Floats widen(__m256i x) { return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16))}; }
INLINE Floats load(const bf16* p) { return widen(_mm256_loadu_si256((const __m256i*)p)); }
INLINE Floats load(const int8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)))};
}
INLINE __m256i narrow(Floats x) {
#if defined(__AVX512BF16__)
  return (__m256i)_mm512_cvtneps_pbh(x.v);
#else
  __m512i bits = _mm512_castps_si512(x.v);
  __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i near = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7fff)), 16);
  __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
  return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(near, _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q), quiet));
#endif
}
INLINE void store(bf16* p, Floats x) { _mm256_storeu_si256((__m256i*)p, narrow(x)); }
#if !defined(__SANITIZE_ADDRESS__)
INLINE Floats load(const float* p, int n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
INLINE void store(float* p, Floats x, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), x.v); }
INLINE Floats load(const bf16* p, int n) { return widen(_mm256_maskz_loadu_epi16(first_lanes(n), p)); }
INLINE void store(bf16* p, Floats x, int n) { _mm256_mask_storeu_epi16(p, first_lanes(n), narrow(x)); }
#endif
INLINE Floats add(Floats a, Floats b) { return {_mm512_add_ps(a.v, b.v)}; }
INLINE Floats sub(Floats a, Floats b) { return {_mm512_sub_ps(a.v, b.v)}; }
INLINE Floats mul(Floats a, Floats b) { return {_mm512_mul_ps(a.v, b.v)}; }
INLINE Floats div(Floats a, Floats b) { return {_mm512_div_ps(a.v, b.v)}; }
INLINE Floats fma(Floats a, Floats b, Floats c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// A NaN in the second operand stays.
INLINE Floats max(Floats a, Floats b) { return {_mm512_max_ps(a.v, b.v)}; }
INLINE Floats min(Floats a, Floats b) { return {_mm512_min_ps(a.v, b.v)}; }
INLINE float sum(Floats x) { return _mm512_reduce_add_ps(x.v); }
INLINE float largest(Floats x) { return _mm512_reduce_max_ps(x.v); }
// Lanes from `begin` up to `end` of x, and `other` elsewhere.
INLINE Floats within(Floats x, int begin, int end, Floats other) {
  __mmask16 keep = first_lanes(end > 0 ? end : 0) & ~first_lanes(begin > 0 ? begin : 0);
  return {_mm512_mask_mov_ps(other.v, keep, x.v)};
}
INLINE Floats power_of_two(Floats whole) {  // 2^x for whole x
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(whole.v), _mm512_set1_epi32(127)), 23))};
}
// y where x >= limit or x is NaN, else 0.
INLINE Floats zero_below(Floats y, Floats x, float limit) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, _mm512_set1_ps(limit), _CMP_NLT_UQ), y.v)};
}
INLINE Floats round(Floats x) { return {_mm512_roundscale_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }

INLINE Pairs load_pairs(const void* p) { return {_mm512_loadu_si512(p)}; }
INLINE Pairs splat_pair(const bf16* p) {
  int32_t bits;
  memcpy(&bits, p, 4);
  return {_mm512_set1_epi32(bits)};
}
// With 0 for the second of each pair.
INLINE Pairs first_of_pairs(Pairs x) { return {_mm512_and_si512(x.v, _mm512_set1_epi32(0xffff))}; }
INLINE Floats lower(Pairs x) { return {_mm512_castsi512_ps(_mm512_slli_epi32(x.v, 16))}; }
INLINE Floats upper(Pairs x) {
  return {_mm512_castsi512_ps(_mm512_and_si512(x.v, _mm512_set1_epi32((int)0xffff0000)))};
}

#elif defined(__AVX2__)

struct Floats { __m256 a, b; };
struct Pairs { __m256i a, b; };

INLINE __m256i first_lanes(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
INLINE Floats splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
INLINE Floats load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
INLINE void store(float* p, Floats x) { _mm256_storeu_ps(p, x.a), _mm256_storeu_ps(p + 8, x.b); }
#if !defined(__SANITIZE_ADDRESS__)
INLINE Floats load(const float* p, int n) {
  return {_mm256_maskload_ps(p, first_lanes(n)), _mm256_maskload_ps(p + 8, first_lanes(n - 8))};
}
INLINE void store(float* p, Floats x, int n) {
  _mm256_maskstore_ps(p, first_lanes(n), x.a);
  _mm256_maskstore_ps(p + 8, first_lanes(n - 8), x.b);
}
#endif
INLINE __m256 widen(__m128i x) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16)); }
INLINE Floats load(const bf16* p) {
  return {widen(_mm_loadu_si128((const __m128i*)p)), widen(_mm_loadu_si128((const __m128i*)(p + 8)))};
}
INLINE __m256 widen_bytes(const int8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
}
INLINE Floats load(const int8_t* p) { return {widen_bytes(p), widen_bytes(p + 8)}; }
INLINE __m256i narrow(__m256 x) {
  __m256i bits = _mm256_castps_si256(x);
  __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i near = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, odd), _mm256_set1_epi32(0x7fff)), 16);
  __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
  return _mm256_blendv_epi8(near, quiet, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
}
INLINE void store(bf16* p, Floats x) {
  __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(narrow(x.a), narrow(x.b)), 0xd8);
  _mm256_storeu_si256((__m256i*)p, packed);
}
INLINE Floats add(Floats x, Floats y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
INLINE Floats sub(Floats x, Floats y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
INLINE Floats mul(Floats x, Floats y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
INLINE Floats div(Floats x, Floats y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
INLINE Floats fma(Floats x, Floats y, Floats z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
INLINE Floats max(Floats x, Floats y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
INLINE Floats min(Floats x, Floats y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
INLINE float sum(Floats x) {
  __m256 both = _mm256_add_ps(x.a, x.b);
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(both), _mm256_extractf128_ps(both, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
INLINE float largest(Floats x) {
  __m256 both = _mm256_max_ps(x.a, x.b);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(both), _mm256_extractf128_ps(both, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}
INLINE __m256 within(__m256 x, int begin, int end, __m256 other) {
  __m256i keep = _mm256_andnot_si256(first_lanes(begin), first_lanes(end));
  return _mm256_blendv_ps(other, x, _mm256_castsi256_ps(keep));
}
INLINE Floats within(Floats x, int begin, int end, Floats other) {
  return {within(x.a, begin, end, other.a), within(x.b, begin - 8, end - 8, other.b)};
}
INLINE __m256 power_of_two(__m256 whole) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127)), 23));
}
INLINE Floats power_of_two(Floats x) { return {power_of_two(x.a), power_of_two(x.b)}; }
INLINE Floats zero_below(Floats y, Floats x, float limit) {
  __m256 bound = _mm256_set1_ps(limit);
  return {_mm256_and_ps(_mm256_cmp_ps(x.a, bound, _CMP_NLT_UQ), y.a),
          _mm256_and_ps(_mm256_cmp_ps(x.b, bound, _CMP_NLT_UQ), y.b)};
}
INLINE Floats round(Floats x) {
  return {_mm256_round_ps(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
          _mm256_round_ps(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

INLINE Pairs load_pairs(const void* p) {
  return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)p + 1)};
}
INLINE Pairs splat_pair(const bf16* p) {
  int32_t bits;
  memcpy(&bits, p, 4);
  return {_mm256_set1_epi32(bits), _mm256_set1_epi32(bits)};
}
INLINE Pairs first_of_pairs(Pairs x) {
  __m256i mask = _mm256_set1_epi32(0xffff);
  return {_mm256_and_si256(x.a, mask), _mm256_and_si256(x.b, mask)};
}
INLINE Floats lower(Pairs x) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(x.a, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(x.b, 16))};
}
INLINE Floats upper(Pairs x) {
  __m256i mask = _mm256_set1_epi32((int)0xffff0000);
  return {_mm256_castsi256_ps(_mm256_and_si256(x.a, mask)), _mm256_castsi256_ps(_mm256_and_si256(x.b, mask))};
}

#else  // any CPU that GCC supports

struct Floats { float v[16]; };
struct Pairs { bf16 v[32]; };

#define EACH for (int i = 0; i < 16; i++)
INLINE Floats splat(float x) { Floats r; EACH r.v[i] = x; return r; }
INLINE Floats load(const float* p) { Floats r; memcpy(r.v, p, 64); return r; }
INLINE Floats load(const float* p, int n) { Floats r; EACH r.v[i] = i < n ? p[i] : 0; return r; }
INLINE void store(float* p, Floats x) { memcpy(p, x.v, 64); }
INLINE void store(float* p, Floats x, int n) { EACH if (i < n) p[i] = x.v[i]; }
INLINE Floats load(const bf16* p) { Floats r; EACH r.v[i] = widen(p[i]); return r; }
INLINE Floats load(const int8_t* p) { Floats r; EACH r.v[i] = p[i]; return r; }
INLINE Floats load(const bf16* p, int n) { Floats r; EACH r.v[i] = i < n ? widen(p[i]) : 0; return r; }
INLINE void store(bf16* p, Floats x) { EACH p[i] = narrow(x.v[i]); }
INLINE void store(bf16* p, Floats x, int n) { EACH if (i < n) p[i] = narrow(x.v[i]); }
INLINE Floats add(Floats a, Floats b) { EACH a.v[i] += b.v[i]; return a; }
INLINE Floats sub(Floats a, Floats b) { EACH a.v[i] -= b.v[i]; return a; }
INLINE Floats mul(Floats a, Floats b) { EACH a.v[i] *= b.v[i]; return a; }
INLINE Floats div(Floats a, Floats b) { EACH a.v[i] /= b.v[i]; return a; }
INLINE Floats fma(Floats a, Floats b, Floats c) { EACH c.v[i] += a.v[i] * b.v[i]; return c; }
INLINE Floats max(Floats a, Floats b) { EACH b.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i]; return b; }
INLINE Floats min(Floats a, Floats b) { EACH b.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i]; return b; }
INLINE float sum(Floats x) { float r = 0; EACH r += x.v[i]; return r; }
INLINE float largest(Floats x) { float r = x.v[0]; EACH r = x.v[i] > r ? x.v[i] : r; return r; }
INLINE Floats within(Floats x, int begin, int end, Floats other) {
  EACH if (i < begin || i >= end) x.v[i] = other.v[i];
  return x;
}
INLINE Floats power_of_two(Floats x) {
  EACH {
    uint32_t bits = (uint32_t)((int32_t)x.v[i] + 127) << 23;
    memcpy(&x.v[i], &bits, 4);
  }
  return x;
}
INLINE Floats zero_below(Floats y, Floats x, float limit) { EACH if (x.v[i] < limit) y.v[i] = 0; return y; }
INLINE Floats round(Floats x) { EACH x.v[i] = __builtin_rintf(x.v[i]); return x; }
INLINE Pairs load_pairs(const void* p) { Pairs r; memcpy(r.v, p, 64); return r; }
INLINE Pairs splat_pair(const bf16* p) { Pairs r; EACH { r.v[2 * i] = p[0]; r.v[2 * i + 1] = p[1]; } return r; }
INLINE Pairs first_of_pairs(Pairs x) { EACH x.v[2 * i + 1] = 0; return x; }
INLINE Floats lower(Pairs x) { Floats r; EACH r.v[i] = widen(x.v[2 * i]); return r; }
INLINE Floats upper(Pairs x) { Floats r; EACH r.v[i] = widen(x.v[2 * i + 1]); return r; }
#undef EACH

#endif

#if defined(__AVX2__)
// The first n lanes, without a masking instruction. AddressSanitizer does not see masked ones, so it uses these too.
template <typename T>
INLINE Floats load(const T* p, int n) {
  T part[LANES] = {};
  memcpy(part, p, sizeof(T) * smaller(n, LANES));
  return load(part);
}
template <typename T>
INLINE void store(T* p, Floats x, int n) {
  T part[LANES];
  store(part, x);
  memcpy(p, part, sizeof(T) * smaller(n, LANES));
}
#endif

// acc + x's first · y's first + x's second · y's second, in each lane.
INLINE Floats dot(Floats acc, Pairs x, Pairs y) {
#if defined(__AVX512BF16__)
  return {_mm512_dpbf16_ps(acc.v, (__m512bh)y.v, (__m512bh)x.v)};
#else
  return fma(upper(x), upper(y), fma(lower(x), lower(y), acc));
#endif
}

// Pairs of two vectors' numbers, for the same products.
struct WidePairs { Floats first, second; };
INLINE Floats dot(Floats acc, WidePairs x, Pairs y) { return fma(x.second, upper(y), fma(x.first, lower(y), acc)); }

}  // namespace MILLRACE_ISA
