// Rows times strips of a packed matrix. `cpu.cpp` has the tiles; README.md has the layout.
#pragma once

#include "../native/program.h"

namespace MILLRACE_ISA {

// Where a row's results go: `factor` times the product, added to what is there or not. A gated product has no factor.
struct Output {
  char* y;
  float factor;
  bool is_added;
};

struct Product {
  const Matrix& matrix;
  const char* x;  // row r of the inputs starts at `r * x_stride` bytes
  int64_t x_stride;
  int num_rows;
  int y_type;
  float* sums;  // [num_rows, SUMS]: the sums of earlier inputs
  char* wide;   // WIDE_BYTES, for strips in 8-bit floats
  // Row r's results go to `outputs[r]`; without these to `first`, `r * y_stride` bytes further on.
  const Output* outputs;
  Output first;
  int64_t y_stride;
  float limit;  // of clamped gates
};

int count_strips(const Matrix&);
int64_t count_bytes(const Matrix&);
// Counts a gate's strip and its factor's as one: no unit has one without the other.
int count_columns(const Matrix&);

// Compute some of these columns, for all rows.
void multiply(const Product&, Share columns);

}  // namespace MILLRACE_ISA
