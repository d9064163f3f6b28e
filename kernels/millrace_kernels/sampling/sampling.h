// The arguments of `millrace_sample`. Field for field as in `native/abi.py` and `columns.py`.
#pragma once

#include "../native/vec.h"

namespace MILLRACE_ISA {

struct Parameters {
  float inverse_temperature;  // log2(e) / temperature; 0: greedy
  float frequency, presence;
  float repetition;        // 1: no penalty
  int32_t top_k;           // 0: no limit
  int32_t has_fixed_mask;  // its slot's one binds it
  int64_t share;  // top_p in units of 2^-32
  int64_t seed;
  int64_t least;  // min_p in units of 2^-30: smaller weights become 0
};

struct Place {
  int64_t slot;  // the penalties count its tokens up to position
  int64_t num_prompt;
  int64_t position;
  int64_t mask;                  // its row in the masks; negative: no mask
  int64_t bias_begin, bias_end;  // the range of its slot's biases
};

struct Sampling {
  const float* logits;  // [num_rows, vocabulary], never written
  int64_t logits_stride;
  const Parameters* parameters;  // by row
  const Place* places;           // by row
  const int64_t* tokens;         // [slots, tokens_stride]
  int64_t tokens_stride;
  const int64_t* biases;  // [slots, biases_stride]: ids in the high half, float32 in the low one
  int64_t biases_stride;
  const uint32_t* fixed_masks;  // [slots, fixed_masks_stride]
  int64_t fixed_masks_stride;
  const uint32_t* masks;  // bit i of word w allows token 32 w + i
  int64_t masks_stride;
  char* scratch;  // zeros at first; `scratch_bytes` for each thread
  int64_t scratch_bytes;
  int64_t* drawn;
  uint8_t* faults;
  int32_t num_rows, vocabulary;
  int32_t next_row;  // starts at 0; threads take one row after the other
};

enum Fault : uint8_t { NONE = 0, NOT_FINITE = 1, NOTHING_ALLOWED = 2 };

}  // namespace MILLRACE_ISA
