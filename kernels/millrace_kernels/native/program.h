// A recorded step, written by `program.py` and read by the native library. Field for field as in `abi.py`.
#pragma once

#include "vec.h"

namespace MILLRACE_ISA {

enum Type : int32_t { FLOAT32 = 0, BFLOAT16 = 1, GROUPS = 2 };  // GROUPS: see linear/quantized.h

enum Format : int32_t {
  DENSE_FLOAT32 = 0,
  DENSE_BFLOAT16 = 1,
  INT8 = 2,
  INT4 = 3,  // with a bfloat16 scale for each group of inputs
  INT4_GROUPS = 4,
  INT4_ZEROS = 5,  // the same with zero points
  FP8_FLOAT32 = 6,
  FP8_BFLOAT16 = 7,  // by the type of the inputs
};

enum Kind : int32_t {
  EMBED = 0,
  RMS_NORM = 1,
  LINEAR = 2,
  LINEAR_ADD = 3,
  LINEAR_SILU_MUL = 4,
  ROTARY_KV_WRITE = 5,
  ATTENTION = 6,
  SELECT = 7,
  QUANTIZE = 8,
  SUM = 9,       // of all workers' x, into y
  SUM_ADD = 10,  // the same, added to y
  GATHER = 11,   // all workers' x side by side
  ADD = 12,      // y += x
  ROUTE = 13,    // the experts of each row; experts/README.md has the maths
  EXPERTS_SILU_MUL = 14,
  EXPERTS_SUM = 15,  // the weighted sum of a row's experts, into y
  EXPERTS_ADD = 16,  // the same, added to y
  LINEAR_GELU_MUL = 17,
  SAMPLE = 64,  // in no record, only in `millrace_sample`
};

// Rows in the workspace: row r starts at `offset + r * stride` bytes. Rows for other workers are in the exchange, at
// offsets beyond the workspace; SUM and GATHER read x there, at an offset in each worker's memory.
struct Rows {
  int64_t offset;
  int64_t stride;
  int32_t width;
  int32_t type;
};

// A matrix [outputs, inputs], packed as in linear/README.md.
struct Matrix {
  const void* data;
  const float* scales;  // one for each packed column, or null
  const float* bias;  // null without one
  int32_t format;
  int32_t inputs;
  int32_t outputs;
  int32_t gate;      // GATED_*: strips of gate and up columns alternate; 0: they are plain
  int32_t group;     // INT4_*, FP8_*: inputs with one scale in the strips; 0: none there
};

enum Gate : int32_t { GATED_SILU = 1, GATED_GELU = 2, GATED_CLAMPED = 3 };  // the last: in no record

struct Op {
  int32_t kind;
  int32_t layer, group;  // of the KV cache and of its block tables
  Rows x, y;
  Rows routes;  // EXPERTS_*: y of ROUTE. Each row has its experts' numbers, ascending, and then their weights
  const Matrix* matrix;
  const void* weight;  // RMS_NORM: [width] of the rows' type. ROTARY_KV_WRITE: cos then sin, each [length, head_dim / 2],
                       // or null: not rotated. ATTENTION: float32 [heads], a sink of each, or null. SAMPLE: its Sampling. GATHER: int32 [workers + 1], the first column of each worker's.
                       // QUANTIZE: int32 [inputs], the input that each column of the matrix multiplies, or null: as they come
  const void *query_norm, *key_norm;  // ROTARY_KV_WRITE: [head_dim] of the rows' type, or null: not normalised
  float number;        // RMS_NORM, ROTARY_KV_WRITE: epsilon. ATTENTION: scale. EXPERTS_SILU_MUL: limit of clamped gates, or 0
  int32_t weight_type;
  int32_t heads, kv_heads, head_dim;
  int32_t length;  // ROTARY_KV_WRITE: positions in the table. EMBED: tokens before the matrix' first row
  int32_t window;  // ATTENTION: the keys that a query sees at most, its own too; 0: no limit
  int32_t parts;   // ROUTE, EXPERTS_*: the experts of a row. QUANTIZE: parts of a row, each with groups of its own
  int32_t num_experts;                // EXPERTS_*: one after the other, each with the shape of the matrix
  int32_t is_softmax, is_normalised;  // ROUTE
};

// One step's rows. Token t of the step has the sequence `row_of[t]` and the position `position[t]` in it.
struct Step {
  int32_t num_rows, num_tokens, num_emits;
  const int32_t* slot;      // by row
  const int32_t* begin;     // by row: its first position in this step
  const int32_t* count;     // by row: its tokens in this step
  const int32_t* start;     // by row: its first token in this step
  const int32_t* row_of;    // by token
  const int32_t* position;  // by token
  const int32_t* emits;     // tokens that need logits
  const int64_t* tokens;    // [slots, tokens_stride]
  const int64_t* const* blocks;  // by KV group: [slots, blocks_stride]
  int64_t tokens_stride, blocks_stride;
};

struct Exchange;

struct Program {
  const Op* ops;
  int32_t num_ops, num_forward_ops;  // the others compute logits, if a step emits any
  char* workspace;
  char* const* kv_caches;  // by layer
  bf16* const* kv_scales;  // by layer, beside int8; null for a cache of kv_type
  int32_t kv_type;         // the model's
  char* spans;  // the sums of long sequences' attention, where threads share it
  int64_t spans_bytes;
  uint32_t* spans_done;  // by row and KV head; 0 between operations
  volatile int64_t progress;  // counts operations, to show the progress of a long step
  const Exchange* exchange;   // null for the only worker
};

// One of an operation's units, and the scratch memory of its thread.
struct Worker {
  int index, count;
  char* scratch;
};

// The number of columns whose sums a product keeps there for each row, between two blocks of inputs.
constexpr int SUMS = 64;

// The inputs of four strips that a product widens at once, as floats, with a scale for every 16 of them.
constexpr int WIDE_INPUTS = 256;
constexpr int64_t WIDE_BYTES = 4 * WIDE_INPUTS * LANES * 4 / 16 * 17;

// The number of rows of an expert that are gathered at once.
constexpr int EXPERT_ROWS = 48;

template <typename T>
INLINE T* row(const Program& p, const Rows& rows, int64_t r) {
  return (T*)(p.workspace + rows.offset + r * rows.stride);
}

// A unit's part of `total`.
struct Share {
  int begin, end;
};
INLINE Share share(int total, const Worker& w) {
  return {(int)((int64_t)total * w.index / w.count), (int)((int64_t)total * (w.index + 1) / w.count)};
}

void embed(const Program&, const Step&, const Op&, const Worker&);
void rms_norm(const Program&, const Op&, int num_rows, const Worker&);
void linear(const Program&, const Op&, int num_rows, const Worker&);
void route(const Program&, const Op&, int num_rows, const Worker&);
void experts(const Program&, const Op&, int num_rows, const Worker&);
void quantize(const Program&, const Op&, int num_rows, const Worker&);
void rotary_kv_write(const Program&, const Step&, const Op&, const Worker&);
void attention(const Program&, const Step&, const Op&, const Worker&);
void select(const Program&, const Step&, const Op&, const Worker&);
void sum_parts(const Program&, const Op&, int num_rows, const Worker&);
void gather_parts(const Program&, const Op&, int num_rows, const Worker&);
void add_rows(const Program&, const Op&, int num_rows, const Worker&);
struct Sampling;
void sample(Sampling&, const Worker&);

}  // namespace MILLRACE_ISA
