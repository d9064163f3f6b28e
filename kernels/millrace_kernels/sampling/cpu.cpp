// From logits to tokens: each row by one thread.
#include "../native/program.h"
#include "select.h"

namespace MILLRACE_ISA {

constexpr int64_t WHOLE = 1ll << 32;

// floor(total · part / 2^32)
INLINE uint64_t fraction(uint64_t total, uint64_t part) { return (uint64_t)((unsigned __int128)total * part >> 32); }

// SplitMix64's finaliser, as in randomness.py.
INLINE uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

INLINE uint32_t random_bits(int64_t seed, int64_t position) {
  return (uint32_t)(mix(mix((uint64_t)seed) + (uint64_t)position * 0x9E3779B97F4A7C15ull) >> 32);
}

static void drop_below(uint32_t least, uint32_t* weights, int n) {
  for (int i = 0; i < n; i++) weights[i] = weights[i] < least ? 0 : weights[i];
}

struct Row {
  const float* z;
  int vocabulary;
  float peak;
  const Parameters* wanted;

  bool is_cut_by_count() const { return 0 < wanted->top_k && wanted->top_k < vocabulary; }
  List all() const { return {z, nullptr, vocabulary}; }
  List above(float bound, Scratch& s) const {
    return {s.list, s.ids, gather_above(z, vocabulary, bound, s.list, s.ids)};
  }
  void weigh(const List& list, uint32_t* weights) const {
    weigh_all(list.z, list.count, peak, wanted->inverse_temperature, weights);
    if (wanted->least > 0) drop_below((uint32_t)wanted->least, weights, list.count);
  }
};

static void fill_ones(uint32_t* weights, int n) {
  for (int i = 0; i < n; i++) weights[i] = 1;
}

// Return a set of tokens that contains the top_k, with weights only for these.
static List cut_top_k(const Row& row, Scratch& s) {
  List list = row.all();
  int num_maxima = (row.vocabulary + CHUNK - 1) / CHUNK * LANES, k = row.wanted->top_k;
  if (k <= row.vocabulary / CHUNK * LANES) {
    // At least k tokens reach the k-th largest of maxima over disjoint sets.
    fill_ones(s.weights, num_maxima);
    list = row.above(select({s.maxima, nullptr, num_maxima}, s.weights, row.peak, k, s).bound, s);
  }
  fill_ones(s.weights, list.count);
  Cut cut = select(list, s.weights, row.peak, k, s);
  row.weigh(list, s.weights);
  apply(cut, list, s.weights);
  return list;
}

// A z below which all tokens together weigh less than top_p may drop: a guess, which is then checked.
static float guess_bound(const Row& row, uint64_t dropped) {
  uint64_t each = dropped / row.vocabulary;
  if (each == 0) return -__builtin_inff();
  return row.peak + (63 - __builtin_clzll(each) - 30) / row.wanted->inverse_temperature;
}

static List cut_top_p(const Row& row, List list, Scratch& s) {
  uint64_t total = sum_of(s.weights, list.count), need = fraction(total, row.wanted->share);
  if (need == 0) need = 1;
  if (!row.is_cut_by_count()) {
    list = row.above(guess_bound(row, total - need), s);
    row.weigh(list, s.weights);
    if (sum_of(s.weights, list.count) < need) row.weigh(list = row.all(), s.weights);
  }
  apply(select(list, s.weights, row.peak, need, s), list, s.weights);
  return list;
}

// The first token whose cumulative weight exceeds a random share of the total.
static int draw(const List& list, const uint32_t* weights, uint32_t bits) {
  uint64_t target = fraction(sum_of(weights, list.count), bits), before = 0;
  int at = 0;
  for (; at + CHUNK < list.count; at += CHUNK) {
    uint64_t here = sum_of(weights + at, CHUNK);
    if (before + here > target) break;
    before += here;
  }
  while (at + 1 < list.count && before + weights[at] <= target) before += weights[at++];
  return list.ids == nullptr ? at : list.ids[at];
}

static void add_biases(float* z, const int64_t* entry, const int64_t* end) {
  for (; entry < end; entry++) {
    float value;
    memcpy(&value, entry, 4);
    z[*entry >> 32] += value;
  }
}

constexpr int32_t IN_PROMPT = 1 << 30;  // beside the number of times that the output has the token

static void penalise(float* z, const Parameters& wanted, const Place& place, const int64_t* tokens, int32_t* counts) {
  int64_t begin = wanted.repetition != 1 ? 0 : place.num_prompt;
  for (int64_t i = begin; i < place.num_prompt; i++) counts[tokens[i]] |= IN_PROMPT;
  for (int64_t i = place.num_prompt; i < place.position; i++) counts[tokens[i]]++;
  for (int64_t i = begin; i < place.position; i++) {
    int32_t& seen = counts[tokens[i]];
    if (seen == 0) continue;
    int32_t times = seen & ~IN_PROMPT;
    float& x = z[tokens[i]];
    x = x > 0 ? x / wanted.repetition : x * wanted.repetition;
    if (times > 0) x -= (float)times * wanted.frequency + wanted.presence;
    seen = 0;
  }
}

// Return the row after biases, penalties and masks: a copy, or the unchanged logits.
static const float* edit(const Sampling& a, int r, const float* z, Scratch& s) {
  const Parameters& wanted = a.parameters[r];
  const Place& place = a.places[r];
  bool is_biased = place.bias_begin < place.bias_end;
  bool counts_output = (wanted.frequency != 0 || wanted.presence != 0) && place.position > place.num_prompt;
  bool is_penalised = wanted.repetition != 1 || counts_output;
  if (!is_biased && !is_penalised && !wanted.has_fixed_mask && place.mask < 0) return z;
  memcpy(s.edited, z, sizeof(float) * a.vocabulary);
  const int64_t* biases = a.biases + place.slot * a.biases_stride;
  if (is_biased) add_biases(s.edited, biases + place.bias_begin, biases + place.bias_end);
  if (is_penalised) penalise(s.edited, wanted, place, a.tokens + place.slot * a.tokens_stride, s.counts);
  if (wanted.has_fixed_mask) forbid(s.edited, a.vocabulary, a.fixed_masks + place.slot * a.fixed_masks_stride);
  if (place.mask >= 0) forbid(s.edited, a.vocabulary, a.masks + place.mask * a.masks_stride);
  return s.edited;
}

static Fault sample_row(const Sampling& a, int r, Scratch& s) {
  const float* logits = a.logits + r * a.logits_stride;
  Row row = {logits, a.vocabulary, 0, &a.parameters[r]};
  if (!scan(logits, a.vocabulary, s.maxima, &row.peak)) return NOT_FINITE;
  row.z = edit(a, r, logits, s);
  if (row.z != logits) scan(row.z, a.vocabulary, s.maxima, &row.peak);
  if (row.peak == __builtin_inff()) return NOT_FINITE;
  if (row.peak == -__builtin_inff()) return NOTHING_ALLOWED;
  if (row.wanted->inverse_temperature == 0) {
    a.drawn[r] = first_peak(row.z, a.vocabulary, s.maxima, row.peak);
    return NONE;
  }
  List list = row.all();
  if (row.is_cut_by_count()) list = cut_top_k(row, s);
  else row.weigh(list, s.weights);
  if (row.wanted->share < WHOLE) list = cut_top_p(row, list, s);
  a.drawn[r] = draw(list, s.weights, random_bits(row.wanted->seed, a.places[r].position));
  return NONE;
}

void sample(Sampling& a, const Worker& w) {
  Scratch s;
  s.place(a.scratch + w.index * a.scratch_bytes, a.vocabulary);
  for (;;) {
    int r = __atomic_fetch_add(&a.next_row, 1, __ATOMIC_RELAXED);
    if (r >= a.num_rows) return;
    a.drawn[r] = 0;
    a.faults[r] = sample_row(a, r, s);
  }
}

}  // namespace MILLRACE_ISA

using namespace MILLRACE_ISA;

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void millrace_run(void* pool, Program* program, const Step* step);

// The scratch memory of one thread.
EXPORT int64_t millrace_sample_bytes(int32_t vocabulary) {
  Scratch s;
  return s.place(nullptr, vocabulary) - (char*)nullptr;
}

// The weights of a row, for checks: a draw hardly ever shows an error of one unit. Needs room for n + 16.
EXPORT void millrace_weigh(const float* z, int32_t n, float peak, float inverse, uint32_t* weights) {
  weigh_all(z, n, peak, inverse, weights);
}

// Draw a token for each row, on the pool's threads, or without a pool on the caller's.
EXPORT void millrace_sample(void* pool, Sampling* asked) {
  if (pool == nullptr) return sample(*asked, {0, 1, nullptr});
  Op op = {};
  op.kind = SAMPLE, op.weight = asked;
  Program program = {&op, 1, 1, nullptr, nullptr, 0, 0};
  Step step = {};
  millrace_run(pool, &program, &step);
}
