// The threshold of top_k and top_p, found without sorting: by histograms of ever finer buckets.
#pragma once

#include "weights.h"

namespace MILLRACE_ISA {

constexpr int BUCKETS = 1024;

// Tokens in id order.
struct List {
  const float* z;
  const int32_t* ids;  // null: every token of the row
  int count;
};

// Memory of one thread.
struct Scratch {
  float* edited;  // a copy of the row, with biases, penalties and masks
  float* list;
  int32_t* ids;
  uint32_t* weights;
  uint32_t* keys;
  uint32_t* key_weights;
  float* maxima;
  uint64_t* histogram;
  int32_t* counts;  // zeros between rows

  // Set the addresses from `at`, which may be null, and return the end.
  char* place(char* at, int vocabulary) {
    int64_t row = 4 * ((int64_t)vocabulary / 64 * 64 + 128);
    char** parts[] = {(char**)&edited, (char**)&list, (char**)&ids, (char**)&weights,
                      (char**)&keys, (char**)&key_weights, (char**)&counts, (char**)&maxima};
    for (char** part : parts) *part = at, at += row;
    histogram = (uint64_t*)at;
    return at + 2 * BUCKETS * sizeof(uint64_t);
  }
};

// Tokens above `bound` are kept, and the first `ties` of those at it.
struct Cut {
  float bound;
  uint64_t ties;
};

// Integers in the order of floats; the two zeros are equal.
INLINE uint32_t key_of(float z) {
  float plain = z + 0.0f;
  uint32_t bits;
  memcpy(&bits, &plain, 4);
  return bits >> 31 ? ~bits : bits | 0x80000000;
}

INLINE float float_of(uint32_t key) {
  uint32_t bits = key >> 31 ? key & 0x7fffffff : ~key;
  float z;
  memcpy(&z, &bits, 4);
  return z;
}

// Bucket i holds the tokens about i / scale below the peak. Any scale is right; a good one spreads them.
INLINE void fill_buckets(const List& list, float peak, uint32_t* buckets) {
  float range = peak - lowest_of(list.z, list.count);
  float scale = (BUCKETS - 1) / (range < 1e3f ? range : 64.0f);
  if (!(scale < 1e9f)) scale = 0;
  for (int i = 0; i < list.count; i += LANES) {
    Floats below = sub(splat(peak), load(list.z + i, list.count - i));
    store_rounded(buckets + i, min(mul(below, splat(scale)), splat(BUCKETS - 1)));
  }
}

// The fewest tokens whose weights sum to `need`, by falling z and for ties by rising id. All together must reach it.
static Cut select(const List& list, const uint32_t* weights, float peak, uint64_t need, Scratch& s) {
  fill_buckets(list, peak, s.keys);
  memset(s.histogram, 0, 2 * BUCKETS * sizeof(uint64_t));
  // Two histograms alternate: consecutive equal buckets would wait for each other's store.
  for (int i = 0; i < list.count; i++) s.histogram[i % 2 * BUCKETS + s.keys[i]] += weights[i];
  uint64_t before = 0, here;
  uint32_t bucket = 0;
  for (; before + (here = s.histogram[bucket] + s.histogram[BUCKETS + bucket]) < need; bucket++) before += here;
  int count = 0;
  for (int i = 0; i < list.count; i++)
    if (s.keys[i] == bucket) s.keys[count] = key_of(list.z[i]), s.key_weights[count++] = weights[i];
  uint32_t differing = 0;
  for (int i = 0; i < count; i++) differing |= s.keys[i] ^ s.keys[0];
  for (int shift = 24; shift >= 0; shift -= 8) {
    if ((differing >> shift & 255) == 0) continue;
    memset(s.histogram, 0, 256 * sizeof(uint64_t));
    for (int i = 0; i < count; i++) s.histogram[s.keys[i] >> shift & 255] += s.key_weights[i];
    uint32_t digit = 255;
    for (; before + s.histogram[digit] < need; digit--) before += s.histogram[digit];
    int left = 0;
    for (int i = 0; i < count; i++)
      if ((s.keys[i] >> shift & 255) == digit) s.keys[left] = s.keys[i], s.key_weights[left++] = s.key_weights[i];
    count = left;
  }
  // Equal z have equal weights; tokens without weight by top_k come after those with weight.
  return {float_of(s.keys[0]), (need - before + s.key_weights[0] - 1) / s.key_weights[0]};
}

// Set the weight of all dropped tokens to 0.
static void apply(const Cut& cut, const List& list, uint32_t* weights) {
  uint64_t num_equal = 0;
  for (int i = 0; i < list.count; i++) {
    weights[i] = list.z[i] >= cut.bound ? weights[i] : 0;
    num_equal += list.z[i] == cut.bound;
  }
  if (num_equal <= cut.ties) return;
  uint64_t seen = 0;
  for (int i = 0; i < list.count; i++)
    if (list.z[i] == cut.bound && seen++ >= cut.ties) weights[i] = 0;
}

}  // namespace MILLRACE_ISA
