// A task of attention, and the two matrix products over one of its tiles: scores of keys, and mixed values.
#pragma once

#include "quads.h"
#include "tiled.h"

namespace MILLRACE_ISA {

#if defined(__AVX512BF16__)
constexpr int ROWS_AT_ONCE = 6, VECTORS_AT_ONCE = 4;
#elif defined(__AVX512F__)
constexpr int ROWS_AT_ONCE = 4, VECTORS_AT_ONCE = 4;
#else
constexpr int ROWS_AT_ONCE = 2, VECTORS_AT_ONCE = 2;
#endif

// An online softmax's state.
struct Sums {
  float *best, *total, *mixed;  // [rows], [rows], [rows, width]
};

template <typename T, typename S>  // of queries and weights, and of the cache's numbers
struct Task {
  Cache<S> cache;
  const int64_t* blocks;
  int head, num_rows, group;
  int first_position;  // of the rows' first token
  int num_keys;        // of the rows' last token
  int window;          // the keys that a row sees at most
  float scale;
  int64_t width;       // head_dim, rounded up to whole vectors
  const T** query;     // by row
  Sums now, all;       // of the span, and of the spans before
  float* scores;       // [rows, TILE]
  T* weights;          // [rows, TILE]
  Halves *queries, *halves;  // in quads: the queries and the weights, by row
  Tiled tiled;               // with AMX

  INLINE_MEMBER int position(int r) const { return first_position + r / group; }
  // The first key that the row sees. Memory before the one of row 0 may belong to other sequences.
  INLINE_MEMBER int first_seen(int r) const { return larger(position(r) + 1 - window, 0); }
  // The number of a tile's keys that are not after the row; 0 or negative if the tile is.
  INLINE_MEMBER int until(int r, int first_key) const { return smaller(position(r) + 1 - first_key, TILE); }
  // The number of a tile's keys that are before the row's window; TILE or more if the tile is.
  INLINE_MEMBER int before(int r, int first_key) const { return larger(first_seen(r) - first_key, 0); }
};

// The first key of a key's pair, tile or span, which has `size` keys.
INLINE int floor_to(int size, int key) { return key / size * size; }

INLINE Pairs key_pairs(const bf16* at) { return load_pairs(at); }
INLINE WidePairs key_pairs(const int8_t* at) { return {load(at), load(at + BLOCK)}; }

template <int ROWS, int VECTORS, typename S>
INLINE void score(const Task<bf16, S>& t, int r, const S* const* keys, Floats acc[ROWS][VECTORS]) {
  for (int d = 0; d < t.cache.head_dim; d += 2) {
    decltype(key_pairs(keys[0])) key[VECTORS];
    UNROLL for (int v = 0; v < VECTORS; v++) key[v] = key_pairs(keys[v] + d * BLOCK);
    UNROLL for (int i = 0; i < ROWS; i++) {
      Pairs query = splat_pair(t.query[r + i] + d);
      UNROLL for (int v = 0; v < VECTORS; v++) acc[i][v] = dot(acc[i][v], key[v], query);
    }
  }
}

template <int ROWS, int VECTORS, typename S>
INLINE void score(const Task<float, S>& t, int r, const S* const* keys, Floats acc[ROWS][VECTORS]) {
  for (int d = 0; d < t.cache.head_dim; d++) {
    Floats key[VECTORS];
    UNROLL for (int v = 0; v < VECTORS; v++) key[v] = load(keys[v] + d * BLOCK);
    UNROLL for (int i = 0; i < ROWS; i++) {
      Floats query = splat(t.query[r + i][d]);
      UNROLL for (int v = 0; v < VECTORS; v++) acc[i][v] = fma(key[v], query, acc[i][v]);
    }
  }
}

template <int ROWS, typename T, typename S>
static __attribute__((noinline)) void score_rows(const Task<T, S>& t, int r, const S* const* keys) {
#if defined(__AVX512VNNI__)
  if constexpr (is_in_quads<T, S>)
    return score_quads<ROWS>(t.queries + r, t.cache.head_dim, keys, t.scores + r * TILE);
#endif
  for (int v = 0; v < TILE / BLOCK; v += VECTORS_AT_ONCE) {
    Floats acc[ROWS][VECTORS_AT_ONCE];
    UNROLL for (int i = 0; i < ROWS; i++)
      UNROLL for (int j = 0; j < VECTORS_AT_ONCE; j++) acc[i][j] = splat(0.0f);
    score<ROWS, VECTORS_AT_ONCE>(t, r, keys + v, acc);
    UNROLL for (int i = 0; i < ROWS; i++)
      UNROLL for (int j = 0; j < VECTORS_AT_ONCE; j++) store(t.scores + (r + i) * TILE + (v + j) * BLOCK, acc[i][j]);
  }
}

// A tile's keys that some row of the task may see.
struct Keys {
  int begin, end;  // `begin` is even: the first key of a pair
};

// Values at 16 · VECTORS dimensions from d on, of a block's tokens `key` and `key` + 1. The second may be unwritten: if
// the first is the last, its NaN must not count, because 0 · NaN is not 0. An integer is never NaN, and its weight is 0.
template <int VECTORS>
INLINE void value_pairs(const bf16* block, int key, int d, int64_t head_dim, bool is_last, Pairs value[VECTORS]) {
  const bf16* line = block + (key / 2 * head_dim + d) * 2;
  UNROLL for (int v = 0; v < VECTORS; v++) value[v] = load_pairs(line + v * LANES * 2);
  if (is_last) UNROLL for (int v = 0; v < VECTORS; v++) value[v] = first_of_pairs(value[v]);
}
template <int VECTORS>
INLINE void value_pairs(const int8_t* block, int key, int d, int64_t head_dim, bool, WidePairs value[VECTORS]) {
  const int8_t *first = block + key * head_dim + d, *second = first + head_dim;
  UNROLL for (int v = 0; v < VECTORS; v++) value[v] = {load(first + v * LANES), load(second + v * LANES)};
}

// acc += weights · values over a tile's keys, at 16 · VECTORS dimensions from d on.
template <int ROWS, int VECTORS, typename S>
INLINE void add_values(const Task<bf16, S>& t, int r, int d, const S* const* values, Keys keys,
                       Floats acc[ROWS][VECTORS]) {
  for (int key = keys.begin; key < keys.end; key += 2) {
    decltype(key_pairs(values[0])) value[VECTORS];
    value_pairs<VECTORS>(values[key / BLOCK], key % BLOCK, d, t.cache.head_dim, key + 1 == keys.end, value);
    UNROLL for (int i = 0; i < ROWS; i++) {
      Pairs weight = splat_pair(t.weights + (r + i) * TILE + key);
      UNROLL for (int v = 0; v < VECTORS; v++) acc[i][v] = dot(acc[i][v], value[v], weight);
    }
  }
}

template <int ROWS, int VECTORS, typename S>
INLINE void add_values(const Task<float, S>& t, int r, int d, const S* const* values, Keys keys,
                       Floats acc[ROWS][VECTORS]) {
  for (int key = keys.begin; key < keys.end; key++) {
    const S* line = values[key / BLOCK] + key % BLOCK * t.cache.head_dim + d;
    Floats value[VECTORS];
    UNROLL for (int v = 0; v < VECTORS; v++) value[v] = load(line + v * LANES);
    UNROLL for (int i = 0; i < ROWS; i++) {
      Floats weight = splat(t.weights[(r + i) * TILE + key]);
      UNROLL for (int v = 0; v < VECTORS; v++) acc[i][v] = fma(value[v], weight, acc[i][v]);
    }
  }
}

template <int ROWS, int VECTORS, typename T, typename S>
static __attribute__((noinline)) void mix_rows(const Task<T, S>& t, int r, int d, const S* const* values, Keys keys) {
  Floats acc[ROWS][VECTORS];
  UNROLL for (int i = 0; i < ROWS; i++)
    UNROLL for (int v = 0; v < VECTORS; v++) acc[i][v] = load(t.now.mixed + (r + i) * t.width + d + v * LANES);
  add_values<ROWS, VECTORS>(t, r, d, values, keys, acc);
  UNROLL for (int i = 0; i < ROWS; i++)
    UNROLL for (int v = 0; v < VECTORS; v++) store(t.now.mixed + (r + i) * t.width + d + v * LANES, acc[i][v]);
}

template <int ROWS, typename T, typename S>
static void mix_width(const Task<T, S>& t, int r, const S* const* values, Keys keys) {
  int d = 0;
#if defined(__AVX512VNNI__)
  if constexpr (is_in_quads<T, S>) {
    float* mixed = t.now.mixed + r * t.width;
    int dim = t.cache.head_dim;
    for (; d + QUAD_VECTORS * LANES <= t.width; d += QUAD_VECTORS * LANES)
      mix_quads<ROWS, QUAD_VECTORS>(t.halves + r, dim, d, values, keys.begin, keys.end, mixed, t.width);
    for (; d < t.width; d += LANES)
      mix_quads<ROWS, 1>(t.halves + r, dim, d, values, keys.begin, keys.end, mixed, t.width);
    return;
  }
#endif
  for (; d + VECTORS_AT_ONCE * LANES <= t.width; d += VECTORS_AT_ONCE * LANES)
    mix_rows<ROWS, VECTORS_AT_ONCE>(t, r, d, values, keys);
  for (; d < t.width; d += LANES) mix_rows<ROWS, 1>(t, r, d, values, keys);
}

// Run F<ROWS> over all rows of a task, a few at a time.
template <typename T, typename S>
static void score_tile(const Task<T, S>& t, const S* const* keys) {
#if defined(__AMX_BF16__)
  if constexpr (can_be_tiled<T, S>)
    if (t.tiled.tiles != nullptr) return score_tiled(t.tiled, t.num_rows, t.cache.head_dim, keys, t.scores);
#endif
  int r = 0;
  for (; r + ROWS_AT_ONCE <= t.num_rows; r += ROWS_AT_ONCE) score_rows<ROWS_AT_ONCE>(t, r, keys);
  if (t.num_rows - r == 3 && ROWS_AT_ONCE > 3) return score_rows<3>(t, r, keys);
  for (; r + 2 <= t.num_rows; r += 2) score_rows<2>(t, r, keys);
  if (r < t.num_rows) score_rows<1>(t, r, keys);
}

template <typename T, typename S>
static void mix_tile(const Task<T, S>& t, const S* const* values, Keys keys) {
#if defined(__AMX_BF16__)
  if constexpr (can_be_tiled<T, S>)
    if (t.tiled.tiles != nullptr)
      return mix_tiled(t.tiled, t.num_rows, t.cache.head_dim, values, keys.begin, keys.end, t.weights, t.now.mixed);
#endif
  int r = 0;
  for (; r + ROWS_AT_ONCE <= t.num_rows; r += ROWS_AT_ONCE) mix_width<ROWS_AT_ONCE>(t, r, values, keys);
  if (t.num_rows - r == 3 && ROWS_AT_ONCE > 3) return mix_width<3>(t, r, values, keys);
  for (; r + 2 <= t.num_rows; r += 2) mix_width<2>(t, r, values, keys);
  if (r < t.num_rows) mix_width<1>(t, r, values, keys);
}

}  // namespace MILLRACE_ISA
