// Rotates queries and keys by their positions' angles; writes queries to the workspace, keys and values to the cache.
//
// A token writes only its own memory: the values of two tokens are interleaved in the cache, and the other token may
// belong to an earlier step, or to another sequence that shares the block.
#include "../paged_attention/cache.h"

namespace MILLRACE_ISA {

struct Turn {
  const float *cos, *sin;
  int half;
};

template <typename T>
INLINE void turn(const Turn& angle, const T* x, T* y) {
  for (int i = 0; i < angle.half; i += LANES) {
    int n = angle.half - i;
    Floats first = load(x + i, n), second = load(x + angle.half + i, n);
    Floats cos = load(angle.cos + i, n), sin = load(angle.sin + i, n);
    store(y + i, sub(mul(first, cos), mul(second, sin)), n);
    store(y + angle.half + i, fma(second, cos, mul(first, sin)), n);
  }
}

template <typename T>
INLINE void write_key(T* keys, int offset, const T* key, int head_dim) {
  if constexpr (sizeof(T) == 2) {
    for (int d = 0; d < head_dim; d += 2) memcpy(keys + (d / 2 * BLOCK + offset) * 2, key + d, 4);
  } else {
    for (int d = 0; d < head_dim; d++) keys[d * BLOCK + offset] = key[d];
  }
}

template <typename T>
INLINE void write_value(T* values, int offset, const T* value, int head_dim) {
  if constexpr (sizeof(T) == 2) {
    T* pair = values + offset / 2 * head_dim * 2 + offset % 2;
    for (int d = 0; d < head_dim; d++) pair[2 * d] = value[d];
  } else {
    memcpy(values + offset * head_dim, value, 4 * head_dim);
  }
}

template <typename T>
static void write_token(const Program& p, const Step& step, const Op& op, int t) {
  int half = op.head_dim / 2, position = step.position[t];
  const float* table = (const float*)op.weight;
  Turn angle = {table + (int64_t)position * half, table + ((int64_t)op.length + position) * half, half};
  const T* qkv = row<const T>(p, op.x, t);
  T* query = row<T>(p, op.y, t);
  for (int h = 0; h < op.heads; h++) turn(angle, qkv + h * op.head_dim, query + h * op.head_dim);
  const T *keys = qkv + op.heads * op.head_dim, *values = keys + op.kv_heads * op.head_dim;
  Cache<T> cache = {(T*)p.kv_caches[op.layer], op.kv_heads, op.head_dim};
  int64_t block = step.blocks[step.slot[step.row_of[t]] * step.blocks_stride + position / BLOCK];
  T key[op.head_dim];
  for (int h = 0; h < op.kv_heads; h++) {
    turn(angle, keys + h * op.head_dim, key);
    write_key(cache.keys(block, h), position % BLOCK, key, op.head_dim);
    write_value(cache.values(block, h), position % BLOCK, values + h * op.head_dim, op.head_dim);
  }
}

template <typename T>
static void rotary_of(const Program& p, const Step& step, const Op& op, const Worker& w) {
  Share mine = share(step.num_tokens, w);
  for (int t = mine.begin; t < mine.end; t++) write_token<T>(p, step, op, t);
}

void rotary_kv_write(const Program& p, const Step& step, const Op& op, const Worker& w) {
  p.kv_type == FLOAT32 ? rotary_of<float>(p, step, op, w) : rotary_of<bf16>(p, step, op, w);
}

}  // namespace MILLRACE_ISA
