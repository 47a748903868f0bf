#include "losses.hpp"

#include "classes.hpp"
#include "threads.hpp"

namespace drago {

void single_output(int code, double parameter, In y, In raw, Out losses, Out dlosses) {
    with_code(code, [=](auto tag) {
        const double *__restrict target = y.data, *__restrict z = raw.data;
        double *__restrict loss = losses.data, *__restrict slope = dlosses.data;
        const Index n = y.size;
#pragma GCC ivdep  // `omp simd` would keep the pair in memory
        for (Index i = 0; i < n; ++i) {
            const LossSlope here = one_loss<decltype(tag)::value>(parameter, target[i], z[i]);
            loss[i] = here.loss;
            slope[i] = here.slope;
        }
    });
}

void slopes_at(int code, double parameter, const double* y, double* z, Index n) {
    with_code(code, [=](auto tag) {
        const double* __restrict target = y;
        double* __restrict at = z;
#pragma GCC ivdep  // `omp simd` would keep the pair in memory
        for (Index i = 0; i < n; ++i)
            at[i] = one_loss<decltype(tag)::value>(parameter, target[i], at[i]).slope;
    });
}

bool multinomial(Vec<const std::int64_t> y, Mat<const double> raw, Out losses,
                        Mat<double> dlosses) {
    for (Index i = 0; i < raw.rows; ++i)
        if (y[i] < 0 || y[i] >= raw.cols) return false;
    softmax_rows(y, raw.data, raw.cols, raw.cols, losses, dlosses.data);
    return true;
}

void second_single_output(int code, double parameter, In y, In raw, In q, Out out) {
    with_code(code, [=](auto tag) {
        const double *__restrict target = y.data, *__restrict z = raw.data;
        double* __restrict second = out.data;
        const Index n = y.size;
#pragma omp simd
        for (Index i = 0; i < n; ++i)
            second[i] = one_curvature<decltype(tag)::value>(parameter, target[i], z[i]);
        if (q.empty()) return;
        const double* __restrict weight = q.data;
#pragma omp simd
        for (Index i = 0; i < n; ++i) second[i] *= weight[i];
    });
}

std::array<double, 3> binary_masses(In y, In p) {
    const double *__restrict label = y.data, *__restrict nominal = p.data;
    return long_sums<3>(y.size, [=](Index i) DRAGO_INLINED {
        const double here = label[i], part = nominal[i];
        const bool is_zero = here == 0.0, is_one = here == 1.0;
        return std::array<double, 3>{is_zero ? part : 0.0, is_one ? part : 0.0,
                                     is_zero | is_one ? 0.0 : 1.0};
    });
}

}  // namespace drago
