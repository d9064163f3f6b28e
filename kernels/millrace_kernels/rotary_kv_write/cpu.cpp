// Normalises queries and keys, and rotates them by their positions' angles; writes queries to the workspace, keys and
// values to the cache.
//
// A token writes only its own memory: the values of two tokens are interleaved in the cache, and the other token may
// belong to an earlier step, or to another sequence that shares the block.
#include "../paged_attention/cache.h"

namespace MILLRACE_ISA {

struct Turn {
  const float *cos, *sin;  // null without rotation
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

// The quotient is rounded to T before its product with the weight, and the product too.
template <typename T>
INLINE void normalise(const T* x, const T* weight, float epsilon, int width, T* y) {
  Floats squares = splat(0.0f);
  for (int i = 0; i < width; i += LANES) {
    Floats part = load(x + i, width - i);
    squares = fma(part, part, squares);
  }
  Floats inverse = splat(1.0f / __builtin_sqrtf(sum(squares) / width + epsilon));
  for (int i = 0; i < width; i += LANES) {
    int n = width - i;
    store(y + i, mul(load(x + i, n), inverse), n);
    store(y + i, mul(load(y + i, n), load(weight + i, n)), n);
  }
}

// Write a query or a key to y as attention reads it.
template <typename T>
INLINE void prepare(const Op& op, const void* norm, const Turn& angle, const T* x, T* y) {
  T normed[op.head_dim];
  if (norm != nullptr) {
    normalise(x, (const T*)norm, op.number, op.head_dim, normed);
    x = normed;
  }
  if (angle.cos != nullptr) turn(angle, x, y);
  else memcpy(y, x, op.head_dim * sizeof(T));
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
  Turn angle = {nullptr, nullptr, half};
  if (const float* table = (const float*)op.weight) {
    angle.cos = table + (int64_t)position * half;
    angle.sin = angle.cos + (int64_t)op.length * half;
  }
  const T* qkv = row<const T>(p, op.x, t);
  T* query = row<T>(p, op.y, t);
  for (int h = 0; h < op.heads; h++) prepare(op, op.query_norm, angle, qkv + h * op.head_dim, query + h * op.head_dim);
  const T *keys = qkv + op.heads * op.head_dim, *values = keys + op.kv_heads * op.head_dim;
  Cache<T> cache = {(T*)p.kv_caches[op.layer], op.kv_heads, op.head_dim};
  int64_t block = step.blocks[op.group][step.slot[step.row_of[t]] * step.blocks_stride + position / BLOCK];
  T key[op.head_dim];
  for (int h = 0; h < op.kv_heads; h++) {
    prepare(op, op.key_norm, angle, keys + h * op.head_dim, key);
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
