// Attention straight from the cache's blocks, for decode and prefill alike. README.md has the maths.
//
// A task is one KV head of some of a sequence's queries: the query heads of a group and the tokens are its rows. Keys
// come in tiles of 64 anchored at position 0, with an online softmax inside a span of 512; spans are merged in order.
// So a query's arithmetic depends only on its position: not on other rows, nor on the chunks of its prompt.
//
// If a sequence has one task for each head, as in decode, all threads share its spans, and the thread of the last span
// merges them: a single long sequence keeps all threads busy. The arithmetic is the same.
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
  float scale;
  int64_t width;       // head_dim, rounded up to whole vectors
  const T** query;     // by row
  Sums now, all;       // of the span, and of the spans before
  float* scores;       // [rows, TILE]
  T* weights;          // [rows, TILE]

  INLINE_MEMBER int position(int r) const { return first_position + r / group; }
  // The number of a tile's keys that the row sees; 0 or negative if the tile lies after it.
  INLINE_MEMBER int seen(int r, int first_key) const { return smaller(position(r) + 1 - first_key, TILE); }
};

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

// acc += weights · values over the tile's first `num_keys` keys, at 16 · VECTORS dimensions from d on.
template <int ROWS, int VECTORS>
INLINE void add_values(const Task<bf16>& t, int r, int d, const bf16* const* values, int num_keys,
                       Floats acc[ROWS][VECTORS]) {
  for (int key = 0; key < num_keys; key += 2) {
    const bf16* line = values[key / BLOCK] + ((key % BLOCK) / 2 * t.cache.head_dim + d) * 2;
    Pairs value[VECTORS];
    UNROLL for (int v = 0; v < VECTORS; v++) value[v] = load_pairs(line + v * LANES * 2);
    if (key + 1 == num_keys)  // the second's values may be unwritten and hold NaN, and 0 · NaN is not 0
      UNROLL for (int v = 0; v < VECTORS; v++) value[v] = first_of_pairs(value[v]);
    UNROLL for (int i = 0; i < ROWS; i++) {
      Pairs weight = splat_pair(t.weights + (r + i) * TILE + key);
      UNROLL for (int v = 0; v < VECTORS; v++) acc[i][v] = dot(acc[i][v], value[v], weight);
    }
  }
}

template <int ROWS, int VECTORS>
INLINE void add_values(const Task<float>& t, int r, int d, const float* const* values, int num_keys,
                       Floats acc[ROWS][VECTORS]) {
  for (int key = 0; key < num_keys; key++) {
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
static __attribute__((noinline)) void mix_rows(const Task<T>& t, int r, int d, const T* const* values, int num_keys) {
  Floats acc[ROWS][VECTORS];
  UNROLL for (int i = 0; i < ROWS; i++)
    UNROLL for (int v = 0; v < VECTORS; v++) acc[i][v] = load(t.now.mixed + (r + i) * t.width + d + v * LANES);
  add_values<ROWS, VECTORS>(t, r, d, values, num_keys, acc);
  UNROLL for (int i = 0; i < ROWS; i++)
    UNROLL for (int v = 0; v < VECTORS; v++) store(t.now.mixed + (r + i) * t.width + d + v * LANES, acc[i][v]);
}

template <typename T, int ROWS>
static void mix_width(const Task<T>& t, int r, const T* const* values, int num_keys) {
  int d = 0;
  for (; d + VECTORS_AT_ONCE * LANES <= t.width; d += VECTORS_AT_ONCE * LANES)
    mix_rows<T, ROWS, VECTORS_AT_ONCE>(t, r, d, values, num_keys);
  for (; d < t.width; d += LANES) mix_rows<T, ROWS, 1>(t, r, d, values, num_keys);
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
static void mix_tile(const Task<T>& t, const T* const* values, int num_keys) {
  int r = 0;
  for (; r + ROWS_AT_ONCE <= t.num_rows; r += ROWS_AT_ONCE) mix_width<T, ROWS_AT_ONCE>(t, r, values, num_keys);
  if (t.num_rows - r == 3 && ROWS_AT_ONCE > 3) return mix_width<T, 3>(t, r, values, num_keys);
  for (; r + 2 <= t.num_rows; r += 2) mix_width<T, 2>(t, r, values, num_keys);
  if (r < t.num_rows) mix_width<T, 1>(t, r, values, num_keys);
}

INLINE float exp_of(float x) {
  float lanes[LANES];
  store(lanes, exp(splat(x)));
  return lanes[0];
}

static void scale_by(float* mixed, int64_t width, float factor) {
  for (int64_t d = 0; d < width; d += LANES) store(mixed + d, mul(load(mixed + d), splat(factor)));
}

// Turn a row's scores into weights under the running maximum, and rescale its sums to it.
template <typename T>
static void weigh_row(const Task<T>& t, int r, int first_key) {
  T* weights = t.weights + r * TILE;
  int seen = t.seen(r, first_key);
  if (seen <= 0) {
    memset(weights, 0, TILE * sizeof(T));
    return;
  }
  Floats score[TILE / LANES], best = splat(-__builtin_inff());
  for (int v = 0; v < TILE / LANES; v++) {
    score[v] = mul(load(t.scores + r * TILE + v * LANES), splat(t.scale));
    score[v] = within(score[v], 0, seen - v * LANES, splat(-__builtin_inff()));
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
    store(weights + v * LANES, exp(sub(score[v], splat(t.now.best[r]))));
    sums = add(sums, load(weights + v * LANES));  // as they were rounded
  }
  t.now.total[r] += sum(sums);
}

template <typename T>
static void begin_span(const Task<T>& t) {
  for (int r = 0; r < t.num_rows; r++) t.now.best[r] = -__builtin_inff(), t.now.total[r] = 0;
  memset(t.now.mixed, 0, t.num_rows * t.width * 4);
}

// Merge a row's sums of the span into those of earlier spans.
template <typename T>
static void merge_row(const Task<T>& t, int r) {
  float* all = t.all.mixed + r * t.width;
  const float* mine = t.now.mixed + r * t.width;
  float best = t.now.best[r] > t.all.best[r] ? t.now.best[r] : t.all.best[r];
  float before = exp_of(t.all.best[r] - best), now = exp_of(t.now.best[r] - best);
  t.all.total[r] = t.all.total[r] * before + t.now.total[r] * now;
  for (int64_t d = 0; d < t.width; d += LANES)
    store(all + d, fma(load(all + d), splat(before), mul(load(mine + d), splat(now))));
  t.all.best[r] = best;
}

template <typename T>
static void end_span(const Task<T>& t, int first_key) {
  for (int r = 0; r < t.num_rows; r++) {
    if (first_key == 0) {
      t.all.best[r] = t.now.best[r], t.all.total[r] = t.now.total[r];
      memcpy(t.all.mixed + r * t.width, t.now.mixed + r * t.width, t.width * 4);
    } else if (t.seen(r, first_key) > 0) {
      merge_row(t, r);
    }
  }
}

template <typename T>
static void attend_tile(const Task<T>& t, int first_key) {
  const T *keys[TILE / BLOCK], *values[TILE / BLOCK];
  for (int b = 0; b < TILE / BLOCK; b++) {  // beyond the last block scores are masked, and values are not read
    int64_t block = t.blocks[smaller(first_key / BLOCK + b, (t.num_keys - 1) / BLOCK)];
    keys[b] = t.cache.keys(block, t.head), values[b] = t.cache.values(block, t.head);
  }
  score_tile(t, keys);
  for (int r = 0; r < t.num_rows; r++) weigh_row(t, r, first_key);
  mix_tile(t, values, smaller(TILE, t.num_keys - first_key));
}

template <typename T>
static void attend_span(const Task<T>& t, int first_key) {
  begin_span(t);
  for (int key = first_key; key < smaller(first_key + SPAN, t.num_keys); key += TILE) attend_tile(t, key);
}

// Compute a whole task in this thread.
template <typename T>
static bool attend(const Task<T>& t) {
  for (int span = 0; span < t.num_keys; span += SPAN) {
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

INLINE Sums carve_sums(char*& memory, int num_rows, int64_t width) {
  return {carve<float>(memory, num_rows), carve<float>(memory, num_rows), carve<float>(memory, num_rows * width)};
}

template <typename T>
static Task<T> prepare(const Program& p, const Step& step, const Op& op, int seq, int head, int first, int count,
                       char* scratch) {
  Task<T> t = {{(T*)p.kv_caches[op.layer], op.kv_heads, op.head_dim}, step.blocks + step.slot[seq] * step.blocks_stride};
  t.head = head, t.group = op.heads / op.kv_heads, t.num_rows = count * t.group;
  t.first_position = step.begin[seq] + first, t.num_keys = t.first_position + count;
  t.scale = op.number, t.width = whole_vectors(op.head_dim);
  t.query = carve<const T*>(scratch, t.num_rows);
  t.now = carve_sums(scratch, t.num_rows, t.width), t.all = carve_sums(scratch, t.num_rows, t.width);
  t.scores = carve<float>(scratch, t.num_rows * TILE), t.weights = carve<T>(scratch, t.num_rows * TILE);
  for (int r = 0; r < t.num_rows; r++) {
    int token = step.start[seq] + first + r / t.group;
    t.query[r] = row<const T>(p, op.x, token) + (head * t.group + r % t.group) * op.head_dim;
  }
  return t;
}

template <typename T>
static void write_rows(const Program& p, const Step& step, const Op& op, const Task<T>& t, int seq, int first) {
  for (int r = 0; r < t.num_rows; r++) {
    int token = step.start[seq] + first + r / t.group;
    T* to = row<T>(p, op.y, token) + (t.head * t.group + r % t.group) * op.head_dim;
    Floats total = splat(t.all.total[r]);
    for (int d = 0; d < op.head_dim; d += LANES)
      store(to + d, div(load(t.all.mixed + r * t.width + d), total), op.head_dim - d);
  }
}

// The spans of a sequence that several threads share: the addresses of their sums, by head and then by span.
struct Shared {
  char* memory;   // null if one thread has all spans of a head
  int64_t bytes;  // of one span
  int num_spans;
  uint32_t* num_done;  // spans, by head

  INLINE_MEMBER Sums sums(int head, int span, int num_rows, int64_t width) const {
    char* at = memory + (head * num_spans + span) * bytes;
    return carve_sums(at, num_rows, width);
  }
};

// Reserve memory for a sequence's spans, if it has several and the rest of the memory is enough.
static Shared share_spans(const Program& p, const Step& step, const Op& op, int seq, int64_t* used) {
  int num_spans = (step.begin[seq] + step.count[seq] + SPAN - 1) / SPAN;
  char *begin = p.spans + *used, *end = begin;
  carve_sums(end, step.count[seq] * (op.heads / op.kv_heads), whole_vectors(op.head_dim));
  int64_t needed = (end - begin) * num_spans * op.kv_heads;
  if (num_spans == 1 || *used + needed > p.spans_bytes) return {};
  *used += needed;
  return {begin, end - begin, num_spans, p.spans_done + seq * op.kv_heads};
}

// Compute one span of a task; the thread of the last span merges all. Return whether this one did.
template <typename T>
static bool attend_shared(Task<T>& t, const Shared& shared, int span) {
  t.now = shared.sums(t.head, span, t.num_rows, t.width);
  attend_span(t, span * SPAN);
  uint32_t* num_done = shared.num_done + t.head;
  if (__atomic_add_fetch(num_done, 1, __ATOMIC_ACQ_REL) < (uint32_t)shared.num_spans) return false;
  *num_done = 0;  // for the next layer
  for (int i = 0; i < shared.num_spans; i++) {
    t.now = shared.sums(t.head, i, t.num_rows, t.width);
    end_span(t, i * SPAN);
  }
  return true;
}

template <typename T>
static void attention_of(const Program& p, const Step& step, const Op& op, const Worker& w) {
  int tokens = larger(1, TASK_ROWS / (op.heads / op.kv_heads));
  int64_t used = 0;
  int number = 0;
  for (int seq = 0; seq < step.num_rows; seq++) {
    Shared shared = {};
    if (w.count > 1 && step.count[seq] <= tokens) shared = share_spans(p, step, op, seq, &used);
    int num_parts = shared.memory == nullptr ? 1 : shared.num_spans;
    for (int first = 0; first < step.count[seq]; first += tokens)
      for (int head = 0; head < op.kv_heads; head++)
        for (int part = 0; part < num_parts; part++) {
          if (number++ % w.count != w.index) continue;
          int count = smaller(tokens, step.count[seq] - first);
          Task<T> t = prepare<T>(p, step, op, seq, head, first, count, w.scratch);
          bool is_done = shared.memory == nullptr ? attend(t) : attend_shared(t, shared, part);
          if (is_done) write_rows(p, step, op, t, seq, first);
        }
  }
}

void attention(const Program& p, const Step& step, const Op& op, const Worker& w) {
  p.kv_type == FLOAT32 ? attention_of<float>(p, step, op, w) : attention_of<bf16>(p, step, op, w);
}

}  // namespace MILLRACE_ISA
