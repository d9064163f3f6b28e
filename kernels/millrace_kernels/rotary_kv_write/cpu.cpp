// Normalises queries and keys, and rotates them by their positions' angles; writes queries to the workspace, keys and
// values to the cache.
//
// A token writes only its own memory: the values of two tokens are interleaved in the cache, and the other token may
// belong to an earlier step, or to another sequence that shares the block.
#include "../linear/integers.h"
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

template <typename S>
INLINE void write_key(S* keys, int offset, const S* key, int head_dim) {
  if constexpr (sizeof(S) == 2) {
    for (int d = 0; d < head_dim; d += 2) memcpy(keys + (d / 2 * BLOCK + offset) * 2, key + d, 4);
  } else {
    for (int d = 0; d < head_dim; d++) keys[d * BLOCK + offset] = key[d];
  }
}

template <typename S>
INLINE void write_value(S* values, int offset, const S* value, int head_dim) {
  if constexpr (sizeof(S) == 2) {
    S* pair = values + offset / 2 * head_dim * 2 + offset % 2;
    for (int d = 0; d < head_dim; d++) pair[2 * d] = value[d];
  } else {
    memcpy(values + offset * head_dim, value, sizeof(S) * head_dim);
  }
}

// The same into quads.
INLINE void write_key_quads(int8_t* keys, int offset, const int8_t* key, int head_dim) {
  int d = 0;
  for (; d + 4 <= head_dim; d += 4) memcpy(keys + d * BLOCK + offset * 4, key + d, 4);
  if (d < head_dim) memcpy(keys + d * BLOCK + offset * 2, key + d, 2);
}

INLINE void write_value_quads(int8_t* values, int offset, const int8_t* value, int head_dim) {
  int8_t* quad = values + offset / 4 * head_dim * 4 + offset % 4;
  for (int d = 0; d < head_dim; d++) quad[4 * d] = value[d];
}

// Round a head to y, which has whole vectors. Return its scale.
template <typename T>
INLINE bf16 round_head(const T* x, int head_dim, int8_t* y) {
  Ints bits = splat_int(0);
  for (int d = 0; d < head_dim; d += LANES) bits = max(bits, magnitude_bits(load(x + d, head_dim - d)));
  int32_t most_bits = largest(bits);
  float most;
  memcpy(&most, &most_bits, 4);
  if (most_bits >= INFINITY_AT || most < SMALLEST_ROUNDED) {
    memset(y, 0, head_dim);
    return most_bits >= INFINITY_AT ? narrow(__builtin_nanf("")) : 0;
  }
  bf16 scale = narrow(most / 127.0f);
  Floats inverse = splat(1.0f / widen(scale));
  for (int d = 0; d < head_dim; d += LANES) store_bytes(y + d, nearest(mul(load(x + d, head_dim - d), inverse)));
  return scale;
}

// A head's place in the cache, for one token.
template <typename T, typename S>
struct Place {
  Cache<S> cache;
  int64_t block;
  int head, offset;

  INLINE_MEMBER void write(const T* key, const T* value) const {
    int dim = cache.head_dim;
    if constexpr (is_rounded<S>) {
      int8_t rounded[(dim + LANES - 1) / LANES * LANES];
      cache.scales[cache.keys_at(block, head) + offset] = round_head(key, dim, rounded);
      if constexpr (is_in_quads<T, S>) write_key_quads(cache.keys(block, head), offset, rounded, dim);
      else write_key(cache.keys(block, head), offset, rounded, dim);
      cache.scales[cache.values_at(block, head) + offset] = round_head(value, dim, rounded);
      if constexpr (is_in_quads<T, S>) write_value_quads(cache.values(block, head), offset, rounded, dim);
      else write_value(cache.values(block, head), offset, rounded, dim);
    } else {
      write_key(cache.keys(block, head), offset, key, dim);
      write_value(cache.values(block, head), offset, value, dim);
    }
  }
};

template <typename T, typename S>
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
  bf16* scales = is_rounded<S> ? p.kv_scales[op.layer] : nullptr;
  Cache<S> cache = {(S*)p.kv_caches[op.layer], scales, op.kv_heads, op.head_dim};
  int64_t block = step.blocks[op.group][step.slot[step.row_of[t]] * step.blocks_stride + position / BLOCK];
  T key[op.head_dim];
  for (int h = 0; h < op.kv_heads; h++) {
    prepare(op, op.key_norm, angle, keys + h * op.head_dim, key);
    Place<T, S>{cache, block, h, position % BLOCK}.write(key, values + h * op.head_dim);
  }
}

template <typename T, typename S>
static void rotary_of(const Program& p, const Step& step, const Op& op, const Worker& w) {
  Share mine = share(step.num_tokens, w);
  for (int t = mine.begin; t < mine.end; t++) write_token<T, S>(p, step, op, t);
}

void rotary_kv_write(const Program& p, const Step& step, const Op& op, const Worker& w) {
  bool is_wide = p.kv_type == FLOAT32;
  if (p.kv_scales != nullptr) is_wide ? rotary_of<float, int8_t>(p, step, op, w) : rotary_of<bf16, int8_t>(p, step, op, w);
  else is_wide ? rotary_of<float, float>(p, step, op, w) : rotary_of<bf16, bf16>(p, step, op, w);
}

}  // namespace MILLRACE_ISA
