// A task of attention, and the two matrix products over one of its tiles: scores of keys, and mixed values.
#pragma once

#include "cache.h"

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

template <typename T>
struct Task {
  Cache<T> cache;
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

template <int ROWS, int VECTORS>
INLINE void score(const Task<bf16>& t, int r, const bf16* const* keys, Floats acc[ROWS][VECTORS]) {
  for (int d = 0; d < t.cache.head_dim; d += 2) {
    Pairs key[VECTORS];
    UNROLL for (int v = 0; v < VECTORS; v++) key[v] = load_pairs(keys[v] + d * BLOCK);
    UNROLL for (int i = 0; i < ROWS; i++) {
      Pairs query = splat_pair(t.query[r + i] + d);
      UNROLL for (int v = 0; v < VECTORS; v++) acc[i][v] = dot(acc[i][v], key[v], query);
    }
  }
}

template <int ROWS, int VECTORS>
INLINE void score(const Task<float>& t, int r, const float* const* keys, Floats acc[ROWS][VECTORS]) {
  for (int d = 0; d < t.cache.head_dim; d++) {
    Floats key[VECTORS];
    UNROLL for (int v = 0; v < VECTORS; v++) key[v] = load(keys[v] + d * BLOCK);
    UNROLL for (int i = 0; i < ROWS; i++) {
      Floats query = splat(t.query[r + i][d]);
      UNROLL for (int v = 0; v < VECTORS; v++) acc[i][v] = fma(key[v], query, acc[i][v]);
    }
  }
}

template <typename T, int ROWS>
static __attribute__((noinline)) void score_rows(const Task<T>& t, int r, const T* const* keys) {
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

// acc += weights · values over a tile's keys, at 16 · VECTORS dimensions from d on.
template <int ROWS, int VECTORS>
INLINE void add_values(const Task<bf16>& t, int r, int d, const bf16* const* values, Keys keys,
                       Floats acc[ROWS][VECTORS]) {
  for (int key = keys.begin; key < keys.end; key += 2) {
    const bf16* line = values[key / BLOCK] + ((key % BLOCK) / 2 * t.cache.head_dim + d) * 2;
    Pairs value[VECTORS];
    UNROLL for (int v = 0; v < VECTORS; v++) value[v] = load_pairs(line + v * LANES * 2);
    if (key + 1 == keys.end)  // the second's values may be unwritten and hold NaN, and 0 · NaN is not 0
      UNROLL for (int v = 0; v < VECTORS; v++) value[v] = first_of_pairs(value[v]);
    UNROLL for (int i = 0; i < ROWS; i++) {
      Pairs weight = splat_pair(t.weights + (r + i) * TILE + key);
      UNROLL for (int v = 0; v < VECTORS; v++) acc[i][v] = dot(acc[i][v], value[v], weight);
    }
  }
}

template <int ROWS, int VECTORS>
INLINE void add_values(const Task<float>& t, int r, int d, const float* const* values, Keys keys,
                       Floats acc[ROWS][VECTORS]) {
  for (int key = keys.begin; key < keys.end; key++) {
    const float* line = values[key / BLOCK] + key % BLOCK * t.cache.head_dim + d;
    Floats value[VECTORS];
    UNROLL for (int v = 0; v < VECTORS; v++) value[v] = load(line + v * LANES);
    UNROLL for (int i = 0; i < ROWS; i++) {
      Floats weight = splat(t.weights[(r + i) * TILE + key]);
      UNROLL for (int v = 0; v < VECTORS; v++) acc[i][v] = fma(value[v], weight, acc[i][v]);
    }
  }
}

template <typename T, int ROWS, int VECTORS>
static __attribute__((noinline)) void mix_rows(const Task<T>& t, int r, int d, const T* const* values, Keys keys) {
  Floats acc[ROWS][VECTORS];
  UNROLL for (int i = 0; i < ROWS; i++)
    UNROLL for (int v = 0; v < VECTORS; v++) acc[i][v] = load(t.now.mixed + (r + i) * t.width + d + v * LANES);
  add_values<ROWS, VECTORS>(t, r, d, values, keys, acc);
  UNROLL for (int i = 0; i < ROWS; i++)
    UNROLL for (int v = 0; v < VECTORS; v++) store(t.now.mixed + (r + i) * t.width + d + v * LANES, acc[i][v]);
}

template <typename T, int ROWS>
static void mix_width(const Task<T>& t, int r, const T* const* values, Keys keys) {
  int d = 0;
  for (; d + VECTORS_AT_ONCE * LANES <= t.width; d += VECTORS_AT_ONCE * LANES)
    mix_rows<T, ROWS, VECTORS_AT_ONCE>(t, r, d, values, keys);
  for (; d < t.width; d += LANES) mix_rows<T, ROWS, 1>(t, r, d, values, keys);
}

// Run F<ROWS> over all rows of a task, a few at a time.
template <typename T>
static void score_tile(const Task<T>& t, const T* const* keys) {
  int r = 0;
  for (; r + ROWS_AT_ONCE <= t.num_rows; r += ROWS_AT_ONCE) score_rows<T, ROWS_AT_ONCE>(t, r, keys);
  if (t.num_rows - r == 3 && ROWS_AT_ONCE > 3) return score_rows<T, 3>(t, r, keys);
  for (; r + 2 <= t.num_rows; r += 2) score_rows<T, 2>(t, r, keys);
  if (r < t.num_rows) score_rows<T, 1>(t, r, keys);
}

template <typename T>
static void mix_tile(const Task<T>& t, const T* const* values, Keys keys) {
  int r = 0;
  for (; r + ROWS_AT_ONCE <= t.num_rows; r += ROWS_AT_ONCE) mix_width<T, ROWS_AT_ONCE>(t, r, values, keys);
  if (t.num_rows - r == 3 && ROWS_AT_ONCE > 3) return mix_width<T, 3>(t, r, values, keys);
  for (; r + 2 <= t.num_rows; r += 2) mix_width<T, 2>(t, r, values, keys);
  if (r < t.num_rows) mix_width<T, 1>(t, r, values, keys);
}

}  // namespace MILLRACE_ISA
