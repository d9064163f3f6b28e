// AMX's tiles: 16 rows of 64 bytes each. A product of two has the pairs of bfloat16 of a row and a column.
//
// The sum of a result is, with each product fused into its sum (Intel's manual, TDPBF16PS):
//   e, o = 0;   e += x[2i] · w[2i],   o += x[2i + 1] · w[2i + 1]   for the tile's pairs i;   y += e + o
#pragma once

#include "vec.h"

#if defined(__AMX_BF16__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace MILLRACE_ISA {

// Linux lets a process use tiles once it has asked. instruction_sets.py asks, too, to know the answer.
__attribute__((constructor)) static void ask_for_tiles() {
  constexpr int REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
  syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA);
}

// GCC does not know that tiles are loaded from memory, nor what changes the vectors' operations.
INLINE void publish() { asm volatile("" ::: "memory"); }

// The tiles of a thread: 0 to 3 have sums.
class Tiles {
 public:
  struct alignas(64) Shape {
    uint8_t palette = 1, start = 0, unused[14] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};  // of a row
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  };

  Tiles() = default;
  Tiles(const Tiles&) = delete;
  ~Tiles() {
    if (rows_ != 0) _tile_release();  // else each switch of threads would save 8 KB
  }

  // Shape the tiles for so many rows, unless they are: `describe` fills in a Shape.
  template <typename Describe>
  INLINE_MEMBER void use(int rows, Describe describe) {
    if (rows == rows_) return;
    rows_ = rows;
    Shape shape;
    describe(shape);
    publish();
    _tile_loadconfig(&shape);
  }

 private:
  int rows_ = 0;
};

// AddressSanitizer does not see what tiles load and store: it sees the first and the last byte of each row here.
INLINE void show_tile(int tile, const void* base, int64_t stride) {
#if defined(__SANITIZE_ADDRESS__)
  Tiles::Shape shape;
  _tile_storeconfig(&shape);
  publish();
  for (int r = 0; r < shape.rows[tile]; r++) {
    const volatile char* row = (const char*)base + r * stride;
    (void)row[0];
    (void)row[shape.bytes[tile] - 1];
  }
#else
  (void)tile, (void)base, (void)stride;
#endif
}

// The number of a tile is a part of its instruction's name, so these are no functions.
#define LOAD_TILE(tile, base, stride) \
  do { show_tile(tile, base, stride); _tile_loadd(tile, base, stride); } while (0)
#define STORE_TILE(tile, base, stride) \
  do { show_tile(tile, base, stride); _tile_stored(tile, base, stride); } while (0)

INLINE void zero_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  publish();
}

}  // namespace MILLRACE_ISA
#else
namespace MILLRACE_ISA {
struct Tiles {};
}  // namespace MILLRACE_ISA
#endif
