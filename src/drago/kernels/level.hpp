// Whether this processor has the instructions of a level of x86-64: 1 for all of them, 3 or 4.
#pragma once

#ifndef DRAGO_LEVEL
#error "set DRAGO_LEVEL"
#endif

namespace drago {

inline bool is_supported() {
#if DRAGO_LEVEL == 3
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
#elif DRAGO_LEVEL == 4
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
#else
    return true;
#endif
}

}  // namespace drago
