// The inner layout of a block of the KV cache on CPUs, made for dot products. One (block, kv head) holds
//   keys    bfloat16 [head_dim / 2][16 tokens][2]   float32 [head_dim][16 tokens]
//   values  bfloat16 [8][head_dim][2 tokens]        float32 [16 tokens][head_dim]
// so a vector is 16 tokens' keys at one pair of dimensions, or one pair of tokens' values at 16 dimensions. Memory that
// no token has written may hold anything, also in the second half of a pair.
#pragma once

#include "../native/program.h"

namespace MILLRACE_ISA {

constexpr int BLOCK = 16;  // tokens
constexpr int SLACK = 64;  // numbers after a layer's last block: reads are whole vectors, past a narrow head

constexpr int TILE = 64, SPAN = 512;  // keys
constexpr int TASK_ROWS = 48;         // scores and sums of this many stay in the first two caches

template <typename T>
struct Cache {
  T* data;
  int64_t kv_heads, head_dim;

  INLINE_MEMBER T* keys(int64_t block, int64_t head) const { return data + ((block * 2) * kv_heads + head) * BLOCK * head_dim; }
  INLINE_MEMBER T* values(int64_t block, int64_t head) const {
    return data + ((block * 2 + 1) * kv_heads + head) * BLOCK * head_dim;
  }
};

}  // namespace MILLRACE_ISA
