// Attention straight from the cache's blocks, for decode and prefill alike. README.md has the maths.
//
// A task is one KV head of some of a sequence's queries: the query heads of a group and the tokens are its rows. Keys
// come in tiles of 64 anchored at position 0, with an online softmax inside a span of 512; spans are merged in order.
// Tiles and spans before the window are skipped, and the values of a tile's first keys where no row sees them.
// So a query's arithmetic depends only on its position: not on other rows, nor on the chunks of its prompt.
//
// If a sequence has one task for each head, as in decode, all threads share its spans, and the thread of the last span
// merges them: a single long sequence keeps all threads busy. The arithmetic is the same.
#include "../native/exp.h"
#include "tile.h"

namespace MILLRACE_ISA {

INLINE float exp_of(float x) {
  float lanes[LANES];
  store(lanes, exp(splat(x)));
  return lanes[0];
}

static void scale_by(float* mixed, int64_t width, float factor) {
  for (int64_t d = 0; d < width; d += LANES) store(mixed + d, mul(load(mixed + d), splat(factor)));
}

// The scales of a tile's keys and values, by block.
struct Scales {
  const bf16 *keys[TILE / BLOCK], *values[TILE / BLOCK];
};

// Give a row no weights.
template <typename T, typename S>
INLINE void hide_row(const Task<T, S>& t, int r) {
  if constexpr (is_in_quads<T, S>) {
    memset(t.halves[r].high, 0, TILE), memset(t.halves[r].low, 0, TILE);
    t.halves[r].scale = 0, t.halves[r].high_bias = t.halves[r].low_bias = 0;
  } else {
    memset(t.weights + r * TILE, 0, TILE * sizeof(T));
  }
}

// Turn a row's scores into weights under the running maximum, and rescale its sums to it.
template <typename T, typename S>
static void weigh_row(const Task<T, S>& t, int r, int first_key, const Scales& scales) {
  T* weights = t.weights + r * TILE;
  int before = t.before(r, first_key), until = t.until(r, first_key);
  if (before >= until) return hide_row(t, r);
  Floats score[TILE / LANES], best = splat(-__builtin_inff());
  for (int v = 0; v < TILE / LANES; v++) {
    score[v] = mul(load(t.scores + r * TILE + v * LANES), splat(t.scale));
    if constexpr (is_rounded<S>) score[v] = mul(score[v], load(scales.keys[v]));
    score[v] = within(score[v], before - v * LANES, until - v * LANES, splat(-__builtin_inff()));
    best = max(best, score[v]);
  }
  float now = largest(best);
  if (now > t.now.best[r]) {
    float shrink = exp_of(t.now.best[r] - now);
    t.now.total[r] *= shrink;
    scale_by(t.now.mixed + r * t.width, t.width, shrink);
    t.now.best[r] = now;
  }
  Floats sums = splat(0.0f);
  for (int v = 0; v < TILE / LANES; v++) {
    Floats weight = exp(sub(score[v], splat(t.now.best[r])));
    if constexpr (is_rounded<S>) {
      sums = add(sums, weight);
      weight = mul(weight, load(scales.values[v]));  // which may be unwritten and NaN where the weight is 0
      weight = within(weight, before - v * LANES, until - v * LANES, splat(0.0f));
      if constexpr (is_in_quads<T, S>) store(t.scores + r * TILE + v * LANES, weight);
      else store(weights + v * LANES, weight);
    } else {
      store(weights + v * LANES, weight);
      sums = add(sums, load(weights + v * LANES));  // as they were rounded
    }
  }
#if defined(__AVX512VNNI__)
  if constexpr (is_in_quads<T, S>) round_halves(t.scores + r * TILE, TILE, t.halves + r);
#endif
  t.now.total[r] += sum(sums);
}

template <typename T, typename S>
static void begin_span(const Task<T, S>& t) {
  for (int r = 0; r < t.num_rows; r++) t.now.best[r] = -__builtin_inff(), t.now.total[r] = 0;
  memset(t.now.mixed, 0, t.num_rows * t.width * 4);
}

// Merge a row's sums of the span into those of earlier spans.
template <typename T, typename S>
static void merge_row(const Task<T, S>& t, int r) {
  float* all = t.all.mixed + r * t.width;
  const float* mine = t.now.mixed + r * t.width;
  float best = t.now.best[r] > t.all.best[r] ? t.now.best[r] : t.all.best[r];
  float before = exp_of(t.all.best[r] - best), now = exp_of(t.now.best[r] - best);
  t.all.total[r] = t.all.total[r] * before + t.now.total[r] * now;
  for (int64_t d = 0; d < t.width; d += LANES)
    store(all + d, fma(load(all + d), splat(before), mul(load(mine + d), splat(now))));
  t.all.best[r] = best;
}

template <typename T, typename S>
static void end_span(const Task<T, S>& t, int first_key) {
  for (int r = 0; r < t.num_rows; r++) {
    if (first_key == floor_to(SPAN, t.first_seen(r))) {
      t.all.best[r] = t.now.best[r], t.all.total[r] = t.now.total[r];
      memcpy(t.all.mixed + r * t.width, t.now.mixed + r * t.width, t.width * 4);
    } else if (first_key > t.first_seen(r) && t.until(r, first_key) > 0) {
      merge_row(t, r);
    }
  }
}

template <typename T, typename S>
static void attend_tile(const Task<T, S>& t, int first_key) {
  const S *keys[TILE / BLOCK], *values[TILE / BLOCK];
  Scales scales;
  int seen = t.first_seen(0);
  for (int b = 0; b < TILE / BLOCK; b++) {  // outside of these blocks scores are masked, and values are not read
    int64_t block = t.blocks[larger(seen / BLOCK, smaller(first_key / BLOCK + b, (t.num_keys - 1) / BLOCK))];
    keys[b] = t.cache.keys(block, t.head), values[b] = t.cache.values(block, t.head);
    if constexpr (is_rounded<S>) {
      scales.keys[b] = t.cache.scales + t.cache.keys_at(block, t.head);
      scales.values[b] = t.cache.scales + t.cache.values_at(block, t.head);
    }
  }
  score_tile(t, keys);
  for (int r = 0; r < t.num_rows; r++) weigh_row(t, r, first_key, scales);
  mix_tile(t, values, {larger(0, floor_to(2, seen) - first_key), smaller(TILE, t.num_keys - first_key)});
}

template <typename T, typename S>
static void attend_span(const Task<T, S>& t, int first_key) {
  begin_span(t);
  int key = larger(first_key, floor_to(TILE, t.first_seen(0)));
  for (; key < smaller(first_key + SPAN, t.num_keys); key += TILE) attend_tile(t, key);
}

// Compute a whole task in this thread.
template <typename T, typename S>
static bool attend(const Task<T, S>& t) {
  for (int span = floor_to(SPAN, t.first_seen(0)); span < t.num_keys; span += SPAN) {
    attend_span(t, span);
    end_span(t, span);
  }
  return true;
}

template <typename V>
INLINE V* carve(char*& scratch, int64_t count) {
  char* at = scratch;
  scratch += (count * sizeof(V) + 63) / 64 * 64;
  return (V*)at;
}

INLINE int64_t whole_vectors(int64_t width) { return (width + LANES - 1) / LANES * LANES; }

INLINE Halves* carve_halves(char*& scratch, int num_rows, int64_t width) {
  Halves* rows = carve<Halves>(scratch, num_rows);
  int8_t* bytes = carve<int8_t>(scratch, 2 * num_rows * width);
  for (int r = 0; r < num_rows; r++) rows[r].high = bytes + 2 * r * width, rows[r].low = rows[r].high + width;
  return rows;
}

INLINE Sums carve_sums(char*& memory, int num_rows, int64_t width) {
  return {carve<float>(memory, num_rows), carve<float>(memory, num_rows), carve<float>(memory, num_rows * width)};
}

template <typename T, typename S>
static Task<T, S> prepare(const Program& p, const Step& step, const Op& op, int seq, int head, int first, int count,
                          char* scratch, [[maybe_unused]] Tiles* tiles) {
  bf16* scales = is_rounded<S> ? p.kv_scales[op.layer] : nullptr;
  Task<T, S> t = {{(S*)p.kv_caches[op.layer], scales, op.kv_heads, op.head_dim}, step.blocks[op.group] + step.slot[seq] * step.blocks_stride};
  t.head = head, t.group = op.heads / op.kv_heads, t.num_rows = count * t.group;
  t.first_position = step.begin[seq] + first, t.num_keys = t.first_position + count;
  t.window = op.window > 0 ? op.window : t.num_keys;
  t.scale = op.number, t.width = whole_vectors(op.head_dim);
  t.query = carve<const T*>(scratch, t.num_rows);
  t.now = carve_sums(scratch, t.num_rows, t.width), t.all = carve_sums(scratch, t.num_rows, t.width);
  t.scores = carve<float>(scratch, t.num_rows * TILE), t.weights = carve<T>(scratch, t.num_rows * TILE);
  for (int r = 0; r < t.num_rows; r++) {
    int token = step.start[seq] + first + r / t.group;
    t.query[r] = row<const T>(p, op.x, token) + (head * t.group + r % t.group) * op.head_dim;
  }
#if defined(__AVX512VNNI__)
  if constexpr (is_in_quads<T, S>) {
    t.queries = carve_halves(scratch, t.num_rows, t.width), t.halves = carve_halves(scratch, t.num_rows, TILE);
    float wide[t.width];
    for (int r = 0; r < t.num_rows; r++) {
      for (int d = 0; d < op.head_dim; d += LANES) store(wide + d, load(t.query[r] + d, op.head_dim - d));
      round_halves(wide, t.width, t.queries + r);
    }
  }
#endif
#if defined(__AMX_BF16__)
  if constexpr (can_be_tiled<T, S>) {
    t.tiled = {};
    if (op.head_dim % 32 == 0) {
      t.tiled = {tiles, carve<bf16>(scratch, t.num_rows * op.head_dim), carve<bf16>(scratch, 2 * BLOCK * op.head_dim)};
      for (int r = 0; r < t.num_rows; r++)
        memcpy(t.tiled.queries + (int64_t)r * op.head_dim, t.query[r], op.head_dim * sizeof(bf16));
    }
  }
#endif
  return t;
}

// What a row's sink adds to the sum of its weights.
template <typename T, typename S>
INLINE float weigh_sink(const Op& op, const Task<T, S>& t, int r) {
  const float* sinks = (const float*)op.weight;
  return sinks == nullptr ? 0 : exp_of(sinks[t.head * t.group + r % t.group] - t.all.best[r]);
}

template <typename T, typename S>
static void write_rows(const Program& p, const Step& step, const Op& op, const Task<T, S>& t, int seq, int first) {
  for (int r = 0; r < t.num_rows; r++) {
    int token = step.start[seq] + first + r / t.group;
    T* to = row<T>(p, op.y, token) + (t.head * t.group + r % t.group) * op.head_dim;
    Floats total = splat(t.all.total[r] + weigh_sink(op, t, r));
    for (int d = 0; d < op.head_dim; d += LANES)
      store(to + d, div(load(t.all.mixed + r * t.width + d), total), op.head_dim - d);
  }
}

// The spans of a sequence that several threads share: the addresses of their sums, by head and then by span.
struct Shared {
  char* memory;   // null if one thread has all spans of a head
  int64_t bytes;  // of one span
  int first_key;  // of the first span
  int num_spans;
  uint32_t* num_done;  // spans, by head

  INLINE_MEMBER Sums sums(int head, int span, int num_rows, int64_t width) const {
    char* at = memory + (head * num_spans + span) * bytes;
    return carve_sums(at, num_rows, width);
  }
};

// Reserve memory for a sequence's spans, if it has several and the rest of the memory is enough.
static Shared share_spans(const Program& p, const Step& step, const Op& op, int seq, int64_t* used) {
  int first_key = op.window > 0 ? floor_to(SPAN, larger(step.begin[seq] + 1 - op.window, 0)) : 0;
  int num_spans = (step.begin[seq] + step.count[seq] - first_key + SPAN - 1) / SPAN;
  char *begin = p.spans + *used, *end = begin;
  carve_sums(end, step.count[seq] * (op.heads / op.kv_heads), whole_vectors(op.head_dim));
  int64_t needed = (end - begin) * num_spans * op.kv_heads;
  if (num_spans == 1 || *used + needed > p.spans_bytes) return {};
  *used += needed;
  return {begin, end - begin, first_key, num_spans, p.spans_done + seq * op.kv_heads};
}

// Compute one span of a task; the thread of the last span merges all. Return whether this one did.
template <typename T, typename S>
static bool attend_shared(Task<T, S>& t, const Shared& shared, int span) {
  t.now = shared.sums(t.head, span, t.num_rows, t.width);
  attend_span(t, shared.first_key + span * SPAN);
  uint32_t* num_done = shared.num_done + t.head;
  if (__atomic_add_fetch(num_done, 1, __ATOMIC_ACQ_REL) < (uint32_t)shared.num_spans) return false;
  *num_done = 0;  // for the next layer
  for (int i = 0; i < shared.num_spans; i++) {
    t.now = shared.sums(t.head, i, t.num_rows, t.width);
    end_span(t, shared.first_key + i * SPAN);
  }
  return true;
}

template <typename T, typename S>
static void attention_of(const Program& p, const Step& step, const Op& op, const Worker& w) {
  int tokens = larger(1, TASK_ROWS / (op.heads / op.kv_heads));
  int64_t used = 0;
  int number = 0;
  Tiles tiles;
  for (int seq = 0; seq < step.num_rows; seq++) {
    Shared shared = {};
    if (w.count > 1 && step.count[seq] <= tokens) shared = share_spans(p, step, op, seq, &used);
    int num_parts = shared.memory == nullptr ? 1 : shared.num_spans;
    for (int first = 0; first < step.count[seq]; first += tokens)
      for (int head = 0; head < op.kv_heads; head++)
        for (int part = 0; part < num_parts; part++) {
          if (number++ % w.count != w.index) continue;
          int count = smaller(tokens, step.count[seq] - first);
          Task<T, S> t = prepare<T, S>(p, step, op, seq, head, first, count, w.scratch, &tiles);
          bool is_done = shared.memory == nullptr ? attend(t) : attend_shared(t, shared, part);
          if (is_done) write_rows(p, step, op, t, seq, first);
        }
  }
}

void attention(const Program& p, const Step& step, const Op& op, const Worker& w) {
  bool is_wide = p.kv_type == FLOAT32;
  if (p.kv_scales != nullptr)
    is_wide ? attention_of<float, int8_t>(p, step, op, w) : attention_of<bf16, int8_t>(p, step, op, w);
  else is_wide ? attention_of<float, float>(p, step, op, w) : attention_of<bf16, bf16>(p, step, op, w);
}

}  // namespace MILLRACE_ISA
