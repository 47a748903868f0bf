// A visit near to an earlier one: rows that provably have no weight are not read.
//
// Between the two points a prediction moves by at most rho_i = reach_i distance + shift, with
// reach_i = ||unit x_i||, distance = ||dw / unit|| and shift = |db|. So for a loss l of bounded
// curvature c and slope s
//
//     l_i(w') <= l_i(w) + |s_i(w)| rho_i + (c / 2) rho_i^2,    |s_i(w')| <= |s_i(w)| + c rho_i.
//
// The weights of a capped simplex with chi2 are 0 up to a threshold. Rows whose bound is below a
// `cut` hold these two bounds for their loss and slope, and the prediction of before: if the
// threshold turns out to be no less than the cut, their weight is 0, and nothing was lost. As what
// they hold are bounds, the next visit can start from them.
#pragma once

#include "visits.hpp"

namespace drago {

// The vectors of the earlier visit, how far each row reaches, and how far away it was.
struct Near {
    In raw, losses, slopes, reach;
    double distance, shift, curvature, cut;
};

// Rows whose bounds are found together.
inline constexpr Index BOUNDED = 1024;

// Fills in the bounds of the rows lo to hi, and lists those that are to be read.
inline Index bounded(const Near& near, Index lo, Index hi, const Seen& seen, std::int64_t* rows) {
    const double *__restrict raw = near.raw.data + lo, *__restrict reach = near.reach.data + lo;
    const double* __restrict loss = near.losses.data + lo;
    const double* __restrict slope = near.slopes.data + lo;
    double *__restrict raw_out = seen.raw.data + lo, *__restrict loss_out = seen.losses.data + lo;
    double* __restrict slope_out = seen.slopes.data + lo;
    const double distance = near.distance, shift = near.shift, curvature = near.curvature;
#pragma omp simd
    for (Index r = 0; r < hi - lo; ++r) {
        const double moves = reach[r] * distance + shift, steep = std::fabs(slope[r]);
        raw_out[r] = raw[r];
        loss_out[r] = loss[r] + moves * (steep + 0.5 * curvature * moves);
        slope_out[r] = steep + curvature * moves;
    }
    Index count = 0;
    const double cut = near.cut;
    each_where(
        0, hi - lo, [=](Index r) DRAGO_INLINED { return !(loss_out[r] < cut); },  // NaN too
        [&](Index r) DRAGO_INLINED { rows[count++] = lo + r; });
    return count;
}

// What the rows that are listed tell, at most MOST of them; `at` is where they are in the list.
template <class T>
inline void visit_listed(DenseRows<T>& rows, const Listed<T>& listed, Index at, Index size,
                         const Model& model, const Guess& guess, const Seen& seen, Tally& tally,
                         Out first, Out second) {
    const std::int64_t* i = listed.of.rows + at;
    double z[MOST], y[MOST], own[MOST], loss[MOST], slope[MOST];
    const bool is_even = seen.p.size == 1;
    const In p = is_even ? seen.p : In{own, size};
    predict(listed, at, at + size, model.w, 0.0, z);
    for (Index r = 0; r < size; ++r) {
        z[r] += model.b;
        y[r] = seen.y[i[r]];
        if (!is_even) own[r] = seen.p[i[r]];
    }
    single_output(model.code, model.parameter, {y, size}, {z, size}, {loss, size}, {slope, size});
    if (!seen.baseline.empty())
        for (Index r = 0; r < size; ++r) loss[r] -= seen.baseline[i[r]];
    tally.bad += not_finite({loss, size}, {slope, size});
    for (Index r = 0; r < size; ++r) {
        seen.raw[i[r]] = z[r];
        seen.losses[i[r]] = loss[r];
        seen.slopes[i[r]] = slope[r];
    }
    add_guessed(rows, [=](Index r) { return i[r]; }, guess, p, {loss, size}, {slope, size},
                tally, first, second);
}

// As `visit`, with a guess for chi2.
template <class T>
inline Tally visit_near(const DenseRows<T>& rows, Parts parts, Index n_threads, const Model& model,
                        const Guess& guess, const Near& near, const Seen& seen, Out first,
                        Out second) {
    return visit_parts(
        rows, parts, n_threads, first, second,
        [&](DenseRows<T>& own, Index lo, Index hi, Out one, Out two) {
            Tally tally;
            std::int64_t list[BOUNDED];
            for (Index start = lo; start < hi; start += BOUNDED) {
                const Index stop = std::min(start + BOUNDED, hi);
                const Index count = bounded(near, start, stop, seen, list);
                const Listed<T> listed = own.visited(Picked{list, nullptr, count});
                for (Index at = 0; at < count; at += own.some())
                    visit_listed(own, listed, at, std::min(own.some(), count - at), model, guess,
                                 seen, tally, one, two);
                tally.read += count;
            }
            return tally;
        });
}

}  // namespace drago
