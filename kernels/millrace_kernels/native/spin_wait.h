// A number on whose change threads wait, in this process or in all processes that share its memory.
//
// A waiting thread spins for at most 50 microseconds and then sleeps: a step has hundreds of operations, so sleeping at
// each would cost milliseconds (a futex wake takes 10 to 50 µs). While it spins, it offers its core to other threads
// every microsecond, because one of them may be the thread that it waits for.
#pragma once

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "vec.h"

namespace MILLRACE_ISA {

constexpr int64_t SPIN_NANOSECONDS = 50000;
constexpr int PAUSES_BETWEEN_OFFERS = 64;

INLINE int64_t now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ll + t.tv_nsec;
}

INLINE void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // waits for the pipeline to empty; `yield` does nothing on most cores
#endif
}

template <bool IS_SHARED>
struct Signal {
  static constexpr int WAIT = IS_SHARED ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE;
  static constexpr int WAKE = IS_SHARED ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE;

  uint32_t value = 0, num_asleep = 0;

  uint32_t read() { return __atomic_load_n(&value, __ATOMIC_ACQUIRE); }

  void change() {
    __atomic_add_fetch(&value, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&num_asleep, __ATOMIC_SEQ_CST))
      syscall(SYS_futex, &value, WAKE, INT32_MAX, nullptr, nullptr, 0);
  }

  void wait_past(uint32_t old) {
    int64_t until = 0;
    for (int turn = 1; read() == old; turn++) {
      pause();
      if (turn % PAUSES_BETWEEN_OFFERS) continue;
      sched_yield();
      if (until == 0) until = now() + SPIN_NANOSECONDS;
      else if (now() > until) break;
    }
    __atomic_add_fetch(&num_asleep, 1, __ATOMIC_SEQ_CST);
    while (read() == old) syscall(SYS_futex, &value, WAIT, old, nullptr, nullptr, 0);
    __atomic_sub_fetch(&num_asleep, 1, __ATOMIC_SEQ_CST);
  }
};

}  // namespace MILLRACE_ISA
