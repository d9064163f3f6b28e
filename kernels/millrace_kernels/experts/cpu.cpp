// Mixtures of experts on CPUs: the choice of each row's experts, and their products. README.md has the maths.
#include "../linear/product.h"
#include "../native/exp.h"

namespace MILLRACE_ISA {

// Reading a strip takes about as long as multiplying it with this many rows.
constexpr int ROWS_PER_READ = 8;

// The number of an expert and its score, in the order of the choice: the highest score, and of equal ones the first
// expert. NaN has a place, too.
INLINE int64_t order_key(float score, int expert) {
  score += 0.0f;  // so that -0 equals 0
  int32_t bits;
  memcpy(&bits, &score, 4);
  if (bits < 0) bits ^= 0x7fffffff;
  return (int64_t)bits * ((int64_t)1 << 32) + (INT32_MAX - expert);
}

// Write the chosen experts in ascending order.
static void choose(const float* scores, int num_experts, float* chosen, int num_chosen) {
  int64_t last = INT64_MAX;
  for (int j = 0; j < num_chosen; j++) {
    int64_t best = INT64_MIN;
    for (int e = 0; e < num_experts; e++) {
      int64_t key = order_key(scores[e], e);
      if (key < last && key > best) best = key;
    }
    last = best;
    float expert = INT32_MAX - (int32_t)best;
    int at = j;
    for (; at > 0 && chosen[at - 1] > expert; at--) chosen[at] = chosen[at - 1];
    chosen[at] = expert;
  }
}

struct Peak {
  Floats highest, total;  // total: of e^(score - highest)
};

static Peak find_peak(const float* scores, int n) {
  Floats low = splat(-__builtin_inff()), highest = low, total = splat(0.0f);
  for (int i = 0; i < n; i += LANES) highest = max(highest, within(load(scores + i, n - i), 0, n - i, low));
  highest = splat(largest(highest));
  for (int i = 0; i < n; i += LANES)
    total = add(total, within(exp(sub(load(scores + i, n - i), highest)), 0, n - i, splat(0.0f)));
  return {highest, splat(sum(total))};
}

// Replace the chosen experts' scores by their weights.
static void weigh(const Op& op, const float* scores, float* weights) {
  Floats one = splat(1.0f);
  Peak peak = op.is_softmax ? find_peak(scores, op.x.width) : Peak{one, one};
  for (int j = 0; j < op.parts; j += LANES) {
    Floats score = load(weights + j, op.parts - j);
    Floats weight = op.is_softmax ? div(exp(sub(score, peak.highest)), peak.total)
                                  : div(one, add(one, exp(sub(splat(0.0f), score))));
    store(weights + j, weight, op.parts - j);
  }
  if (!op.is_normalised) return;
  float total = weights[0];
  for (int j = 1; j < op.parts; j++) total += weights[j];
  for (int j = 0; j < op.parts; j++) weights[j] /= total;
}

void route(const Program& p, const Op& op, int num_rows, const Worker& w) {
  Share mine = share(num_rows, w);
  for (int r = mine.begin; r < mine.end; r++) {
    const float* scores = row<float>(p, op.x, r);
    float *chosen = row<float>(p, op.y, r), *weights = chosen + op.parts;
    choose(scores, op.x.width, chosen, op.parts);
    for (int j = 0; j < op.parts; j++) weights[j] = scores[(int)chosen[j]];
    weigh(op, scores, weights);
  }
}

// A unit's scratch memory. Each unit sorts the rows: that takes less time than to wait for one that does.
struct Scratch {
  float* sums;
  char* wide;
  char* x;  // [EXPERT_ROWS]: an expert's inputs
  int64_t x_stride;
  Output* outputs;   // [EXPERT_ROWS]
  int32_t* ends;     // [experts]: expert e has entries from ends[e - 1] up to ends[e]
  int32_t* entries;  // [rows * chosen]: row * chosen + rank, by expert and then by row
};

INLINE int64_t whole_lines(int64_t bytes) { return (bytes + 63) / 64 * 64; }

INLINE int64_t part_bytes(const Op& op) {
  int64_t bytes = (int64_t)op.x.width * (op.x.type == FLOAT32 ? 4 : op.x.type == BFLOAT16 ? 2 : 1);
  return op.kind == EXPERTS_SILU_MUL ? bytes : bytes / op.parts;
}

static Scratch divide(const Op& op, char* memory) {
  Scratch s;
  s.sums = (float*)memory, memory += EXPERT_ROWS * SUMS * sizeof(float);
  s.wide = memory, memory += WIDE_BYTES;
  s.x_stride = whole_lines(part_bytes(op));
  if (s.x_stride % 1024 == 0) s.x_stride += 64;  // as in native/workspace.py
  s.x = memory, memory += EXPERT_ROWS * s.x_stride;
  s.outputs = (Output*)memory, memory += EXPERT_ROWS * sizeof(Output);
  s.ends = (int32_t*)memory, memory += whole_lines(op.num_experts * sizeof(int32_t));
  s.entries = (int32_t*)memory;
  return s;
}

static void sort_rows(const Program& p, const Op& op, int num_rows, const Scratch& s) {
  memset(s.ends, 0, op.num_experts * sizeof(int32_t));
  for (int r = 0; r < num_rows; r++)
    for (int j = 0; j < op.parts; j++) s.ends[(int)row<float>(p, op.routes, r)[j]]++;
  int begin = 0;
  for (int e = 0; e < op.num_experts; e++) {
    int count = s.ends[e];
    s.ends[e] = begin, begin += count;
  }
  for (int r = 0; r < num_rows; r++)
    for (int j = 0; j < op.parts; j++) s.entries[s.ends[(int)row<float>(p, op.routes, r)[j]]++] = r * op.parts + j;
}

// Copy an entry's inputs beside the expert's others, and find the place of its results.
static void gather_row(const Program& p, const Op& op, const Scratch& s, int entry, int to) {
  int r = entry / op.parts, rank = entry % op.parts;
  bool is_gated = op.kind == EXPERTS_SILU_MUL;
  int64_t bytes = part_bytes(op);
  memcpy(s.x + to * s.x_stride, row<char>(p, op.x, r) + (is_gated ? 0 : rank * bytes), bytes);
  char* y = row<char>(p, op.y, r);
  if (is_gated) s.outputs[to] = {y + (int64_t)rank * (op.y.width / op.parts) * (op.y.type == FLOAT32 ? 4 : 2), 1, false};
  else s.outputs[to] = {y, row<float>(p, op.routes, r)[op.parts + rank], op.kind == EXPERTS_ADD || rank > 0};
}

static void multiply_expert(const Program& p, const Op& op, const Scratch& s, int expert, Share columns) {
  Matrix m = *op.matrix;
  m.data = (const char*)m.data + expert * count_bytes(m);
  if (m.scales != nullptr) m.scales += (int64_t)expert * count_strips(m) * LANES;
  if (m.bias != nullptr) m.bias += (int64_t)expert * m.outputs;
  if (op.kind == EXPERTS_SILU_MUL && op.number > 0) m.gate = GATED_CLAMPED;
  int end = s.ends[expert];
  for (int at = expert ? s.ends[expert - 1] : 0; at < end; at += EXPERT_ROWS) {
    int num_rows = smaller(EXPERT_ROWS, end - at);
    for (int i = 0; i < num_rows; i++) gather_row(p, op, s, s.entries[at + i], i);
    multiply({m, s.x, s.x_stride, num_rows, op.y.type, s.sums, s.wide, s.outputs, {}, 0, op.number}, columns);
  }
}

// The columns of an expert that begin in a unit's part of the work. `at` is the work before the expert.
static Share columns_within(int64_t begin, int64_t end, int64_t at, int64_t cost, int num_columns) {
  int64_t first = (begin - at + cost - 1) / cost, last = (end - at + cost - 1) / cost;
  if (begin < at) first = 0;
  if (end < at) last = 0;
  return {(int)(first < num_columns ? first : num_columns), (int)(last < num_columns ? last : num_columns)};
}

// Gated products: the units share columns of all experts, by the number of rows. Sums: each unit has the same columns of
// every expert, because it adds them up, in the order of the experts.
void experts(const Program& p, const Op& op, int num_rows, const Worker& w) {
  Scratch s = divide(op, w.scratch);
  sort_rows(p, op, num_rows, s);
  int num_columns = count_columns(*op.matrix);
  auto cost = [&](int e) -> int64_t {
    int count = s.ends[e] - (e ? s.ends[e - 1] : 0);
    return count ? count + ROWS_PER_READ : 0;
  };
  int64_t total = 0, at = 0;
  for (int e = 0; e < op.num_experts; e++) total += cost(e) * num_columns;
  int64_t begin = total * w.index / w.count, end = total * (w.index + 1) / w.count;
  for (int e = 0; e < op.num_experts; e++) {
    if (cost(e) == 0) continue;
    Share mine = share(num_columns, w);
    if (op.kind == EXPERTS_SILU_MUL) mine = columns_within(begin, end, at, cost(e), num_columns);
    if (mine.begin < mine.end) multiply_expert(p, op, s, e, mine);
    at += cost(e) * num_columns;
  }
}

}  // namespace MILLRACE_ISA
