// Turns queries and keys by their positions' angles; queries go to the workspace, keys and values into the cache.
//
// The work is cut into pairs of tokens that share an even offset, because the values of such a pair lie interleaved in
// the cache: one thread writes both. A first token without its second writes zeros for it, so that attention may read
// whole pairs: memory that nobody wrote may hold NaN, and 0 · NaN is not 0.
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

// Null for a token of the pair that this step does not compute.
template <typename T>
INLINE void write_values(T* values, int offset, const T* first, const T* second, int head_dim) {
  if constexpr (sizeof(T) == 2) {
    T* pair = values + offset / 2 * head_dim * 2;
    if (first != nullptr)
      for (int d = 0; d < head_dim; d++) pair[2 * d] = first[d], pair[2 * d + 1] = second ? second[d] : 0;
    else
      for (int d = 0; d < head_dim; d++) pair[2 * d + 1] = second[d];
  } else {
    if (first != nullptr) memcpy(values + offset * head_dim, first, 4 * head_dim);
    if (second != nullptr) memcpy(values + (offset + 1) * head_dim, second, 4 * head_dim);
    else memset(values + (offset + 1) * head_dim, 0, 4 * head_dim);
  }
}

template <typename T>
static void write_token(const Program& p, const Step& step, const Op& op, int t, const T* qkv, T* values_of[2]) {
  int half = op.head_dim / 2, position = step.position[t];
  const float* table = (const float*)op.weight;
  Turn angle = {table + (int64_t)position * half, table + ((int64_t)op.length + position) * half, half};
  T* query = row<T>(p, op.y, t);
  for (int h = 0; h < op.heads; h++) turn(angle, qkv + h * op.head_dim, query + h * op.head_dim);
  Cache<T> cache = {(T*)p.kv_caches[op.layer], op.kv_heads, op.head_dim};
  int64_t block = step.blocks[step.slot[step.row_of[t]] * step.blocks_stride + position / BLOCK];
  T key[op.head_dim];
  for (int h = 0; h < op.kv_heads; h++) {
    turn(angle, qkv + (op.heads + h) * op.head_dim, key);
    write_key(cache.keys(block, h), position % BLOCK, key, op.head_dim);
  }
  values_of[position % 2] = (T*)qkv + (op.heads + op.kv_heads) * op.head_dim;
}

template <typename T>
static void write_pair(const Program& p, const Step& step, const Op& op, int begin, int end) {
  T* values_of[2] = {};
  for (int t = begin; t < end; t++) write_token(p, step, op, t, row<const T>(p, op.x, t), values_of);
  int position = step.position[begin] / 2 * 2;
  int64_t block = step.blocks[step.slot[step.row_of[begin]] * step.blocks_stride + position / BLOCK];
  Cache<T> cache = {(T*)p.kv_caches[op.layer], op.kv_heads, op.head_dim};
  for (int h = 0; h < op.kv_heads; h++) {
    const T* first = values_of[0] ? values_of[0] + h * op.head_dim : nullptr;
    const T* second = values_of[1] ? values_of[1] + h * op.head_dim : nullptr;
    write_values(cache.values(block, h), position % BLOCK, first, second, op.head_dim);
  }
}

// Whether token t begins a pair of its own: it is the first of its row, or stands at an even position.
INLINE bool begins_pair(const Step& step, int t) {
  return step.position[t] % 2 == 0 || t == step.start[step.row_of[t]];
}

template <typename T>
static void rotary_of(const Program& p, const Step& step, const Op& op, const Worker& w) {
  Share mine = share(step.num_tokens, w);
  int t = mine.begin;
  while (t < mine.end && !begins_pair(step, t)) t++;  // the worker before us has it
  while (t < mine.end) {
    int end = t + 1;
    if (end < step.num_tokens && !begins_pair(step, end)) end++;
    write_pair<T>(p, step, op, t, end);
    t = end;
  }
}

void rotary_kv_write(const Program& p, const Step& step, const Op& op, const Worker& w) {
  p.kv_type == FLOAT32 ? rotary_of<float>(p, step, op, w) : rotary_of<bf16>(p, step, op, w);
}

}  // namespace MILLRACE_ISA
