// Scores and mixed values of bfloat16 caches in AMX tiles, where a head has a multiple of 32 dimensions.
//
// A block's keys are packed as tiles of 32 dimensions and 16 tokens, and its values as tiles of 16 tokens and 16
// dimensions. So 16 rows meet a tile of 64 keys by blocks, in the order of the keys.
#pragma once

#include "../native/amx.h"
#include "cache.h"

namespace MILLRACE_ISA {

#if defined(__AMX_BF16__)
// Whether a task of these types may be computed in tiles.
template <typename T, typename S>
constexpr bool can_be_tiled = sizeof(T) == 2 && sizeof(S) == 2;

struct Tiled {
  Tiles* tiles;   // null: the task is computed with vectors
  bf16* queries;  // [rows, head_dim]
  bf16* edges;    // two blocks of values: of those that some row sees in part
};

constexpr int TILE_ROWS_AT_ONCE = 16;

// Tiles 4 and 5 are 32 dimensions of the queries and of a block's keys; 6 and 7 are a block's weights and values.
INLINE void use_rows(Tiles& tiles, int rows) {
  tiles.use(rows, [rows](Tiles::Shape& shape) {
    constexpr int BY_ROWS[] = {0, 1, 2, 3, 4, 6};
    for (int tile : BY_ROWS) shape.rows[tile] = rows;
    shape.bytes[6] = BLOCK * sizeof(bf16);
    shape.rows[7] = BLOCK / 2;
  });
}

// scores [rows, TILE] of the keys of TILE / BLOCK = 4 blocks.
static __attribute__((noinline)) void score_tiled(const Tiled& t, int num_rows, int64_t head_dim, const bf16* const* keys,
                                                  float* scores) {
  static_assert(TILE / BLOCK == 4, "each block has a tile of sums");
  constexpr int64_t STRIDE = TILE * sizeof(float);
  for (int r = 0; r < num_rows; r += TILE_ROWS_AT_ONCE) {
    use_rows(*t.tiles, smaller(TILE_ROWS_AT_ONCE, num_rows - r));
    zero_sums();
    for (int64_t d = 0; d < head_dim; d += 32) {
      LOAD_TILE(4, t.queries + r * head_dim + d, head_dim * sizeof(bf16));
      LOAD_TILE(5, keys[0] + d * BLOCK, 64);
      _tile_dpbf16ps(0, 4, 5);
      LOAD_TILE(5, keys[1] + d * BLOCK, 64);
      _tile_dpbf16ps(1, 4, 5);
      LOAD_TILE(5, keys[2] + d * BLOCK, 64);
      _tile_dpbf16ps(2, 4, 5);
      LOAD_TILE(5, keys[3] + d * BLOCK, 64);
      _tile_dpbf16ps(3, 4, 5);
    }
    STORE_TILE(0, scores + r * TILE, STRIDE);
    STORE_TILE(1, scores + r * TILE + BLOCK, STRIDE);
    STORE_TILE(2, scores + r * TILE + 2 * BLOCK, STRIDE);
    STORE_TILE(3, scores + r * TILE + 3 * BLOCK, STRIDE);
  }
}

// Copy a block's values with zeros for the tokens before `begin` and from `end` on: their memory may hold NaNs.
INLINE const bf16* cut_values(const bf16* block, int64_t head_dim, int begin, int end, bf16* to) {
  for (int pair = 0; pair < BLOCK / 2; pair++) {
    const bf16* from = block + pair * head_dim * 2;
    bf16* line = to + pair * head_dim * 2;
    bool has_first = 2 * pair >= begin && 2 * pair < end, has_second = 2 * pair + 1 >= begin && 2 * pair + 1 < end;
    for (int64_t d = 0; d < head_dim * 2; d += 2) {
      line[d] = has_first ? from[d] : bf16{};
      line[d + 1] = has_second ? from[d + 1] : bf16{};
    }
  }
  return to;
}

// `COUNT` times 16 dimensions, of all blocks from `first` to `last`.
template <int COUNT>
INLINE void mix_blocks(const bf16* const* values, int first, int last, int64_t d, int64_t head_dim, const bf16* weights,
                       float* mixed) {
  const int64_t stride = head_dim * sizeof(float);
  publish();
  LOAD_TILE(0, mixed + d, stride);
  LOAD_TILE(1, mixed + d + LANES, stride);
  if constexpr (COUNT > 2) {
    LOAD_TILE(2, mixed + d + 2 * LANES, stride);
    LOAD_TILE(3, mixed + d + 3 * LANES, stride);
  }
  for (int b = first; b <= last; b++) {
    const bf16* at = values[b] + d * 2;
    LOAD_TILE(6, weights + b * BLOCK, TILE * sizeof(bf16));
    LOAD_TILE(7, at, stride);
    _tile_dpbf16ps(0, 6, 7);
    LOAD_TILE(7, at + 2 * LANES, stride);
    _tile_dpbf16ps(1, 6, 7);
    if constexpr (COUNT > 2) {
      LOAD_TILE(7, at + 4 * LANES, stride);
      _tile_dpbf16ps(2, 6, 7);
      LOAD_TILE(7, at + 6 * LANES, stride);
      _tile_dpbf16ps(3, 6, 7);
    }
  }
  STORE_TILE(0, mixed + d, stride);
  STORE_TILE(1, mixed + d + LANES, stride);
  if constexpr (COUNT > 2) {
    STORE_TILE(2, mixed + d + 2 * LANES, stride);
    STORE_TILE(3, mixed + d + 3 * LANES, stride);
  }
}

// mixed [rows, head_dim] += weights [rows, TILE] · values, of the keys that some row sees.
static __attribute__((noinline)) void mix_tiled(const Tiled& t, int num_rows, int64_t head_dim, const bf16* const* values,
                                                int begin, int end, const bf16* weights, float* mixed) {
  const bf16* blocks[TILE / BLOCK];
  int first = begin / BLOCK, last = (end - 1) / BLOCK, num_cut = 0;
  for (int b = first; b <= last; b++) {
    int from = begin - b * BLOCK, until = end - b * BLOCK;
    bool is_whole = from <= 0 && until >= BLOCK;
    blocks[b] = is_whole ? values[b]
                         : cut_values(values[b], head_dim, from, until, t.edges + num_cut++ * BLOCK * head_dim);
  }
  for (int r = 0; r < num_rows; r += TILE_ROWS_AT_ONCE) {
    use_rows(*t.tiles, smaller(TILE_ROWS_AT_ONCE, num_rows - r));
    int64_t d = 0;
    for (; d + 4 * LANES <= head_dim; d += 4 * LANES)
      mix_blocks<4>(blocks, first, last, d, head_dim, weights + r * TILE, mixed + r * head_dim);
    if (d < head_dim) mix_blocks<2>(blocks, first, last, d, head_dim, weights + r * TILE, mixed + r * head_dim);
  }
}
#else
struct Tiled {};
#endif

}  // namespace MILLRACE_ISA
