// The inner layout of a block of the KV cache on CPUs, made for dot products. One (block, kv head) holds
//   keys    bfloat16 [head_dim / 2][16 tokens][2]   float32 [head_dim][16 tokens]
//   values  bfloat16 [8][head_dim][2 tokens]        float32 [16 tokens][head_dim]
//   int8    keys [head_dim][16 tokens], values [16 tokens][head_dim]; for bfloat16 on a CPU with VNNI in quads: keys
//           [head_dim / 4][16 tokens][4] and, of an odd pair, [16 tokens][2]; values [4][head_dim][4 tokens]
// so a vector is 16 tokens' keys at one pair of dimensions, or one pair of tokens' values at 16 dimensions. Memory that
// no token has written may hold anything, also in the second half of a pair. The scales of int8 are beside the data:
// bfloat16 [16 tokens] of keys, and as many of values.
#pragma once

#include "../native/program.h"

namespace MILLRACE_ISA {

constexpr int BLOCK = 16;  // tokens
constexpr int SLACK = 64;  // numbers after a layer's last block: reads are whole vectors, past a narrow head

constexpr int TILE = 64, SPAN = 512;  // keys
constexpr int TASK_ROWS = 48;         // scores and sums of this many stay in the first two caches

// Whether numbers have scales.
template <typename S>
constexpr bool is_rounded = sizeof(S) == 1;

// Whether int8 lies in quads, for the products of quads.h.
template <typename T, typename S>
#if defined(__AVX512VNNI__)
constexpr bool is_in_quads = is_rounded<S> && sizeof(T) == 2;
#else
constexpr bool is_in_quads = false;
#endif

// What is rounded to 8 or 16 bits counts as zeros where its largest number is smaller: a scale's inverse might not be
// finite.
constexpr float SMALLEST_ROUNDED = 1e-30f;
constexpr int32_t INFINITY_AT = 0x7f800000;  // the bits of infinity

template <typename S>  // of its numbers
struct Cache {
  S* data;
  bf16* scales;  // of int8
  int64_t kv_heads, head_dim;

  INLINE_MEMBER int64_t keys_at(int64_t block, int64_t head) const { return (block * 2 * kv_heads + head) * BLOCK; }
  INLINE_MEMBER int64_t values_at(int64_t block, int64_t head) const { return keys_at(block, head + kv_heads); }
  INLINE_MEMBER S* keys(int64_t block, int64_t head) const { return data + keys_at(block, head) * head_dim; }
  INLINE_MEMBER S* values(int64_t block, int64_t head) const { return data + values_at(block, head) * head_dim; }
};

}  // namespace MILLRACE_ISA
