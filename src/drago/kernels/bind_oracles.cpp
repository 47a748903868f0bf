// The losses and the dual oracles for Python.
#include <cstdint>
#include <tuple>

#include "bind.hpp"
#include "classes.hpp"
#include "dual_balls.hpp"
#include "dual_capped.hpp"
#include "dual_ranges.hpp"
#include "dual_spectral.hpp"
#include "losses.hpp"
#include "narrow.hpp"
#include "threads.hpp"
#include "vectors.hpp"

namespace drago {

namespace {

using namespace nb::literals;

using Places = Array1<std::int64_t>;
using Owned = NewVector<double>;
using Indices = NewVector<std::int64_t>;
using Pair = std::tuple<double, double>;

Index length(const InArray& a) { return static_cast<Index>(a.shape(0)); }

template <class T>
bool has_shape(const Array2<T>& a, std::size_t rows, std::size_t cols) {
    return a.shape(0) == rows && a.shape(1) == cols;
}

void bind_losses(nb::module_& m) {
    m.attr("SQUARED") = static_cast<int>(SQUARED);
    m.attr("HUBER") = static_cast<int>(HUBER);
    m.attr("LOGISTIC") = static_cast<int>(LOGISTIC);
    m.attr("MULTINOMIAL") = static_cast<int>(MULTINOMIAL);
    m.def(
        "one_single_output",
        [](int code, double parameter, double y, double z) -> Pair {
            const LossSlope found = one_single_output(code, parameter, y, z);
            return {found.loss, found.slope};
        },
        "code"_a, "parameter"_a, "y"_a, "z"_a,
        "Value and derivative of one single-output loss at the raw prediction z.");
    m.def(
        "single_output",
        [](int code, double parameter, InArray y, Array2<const double> raw, OutArray losses,
           Array2<double> dlosses, Index n_threads) {
            const std::size_t n = y.shape(0);
            if (!has_shape(raw, n, 1) || losses.shape(0) != n || !has_shape(dlosses, n, 1))
                return false;
            nb::gil_scoped_release release;
            const Helpers helpers(n_threads);
            const In z{raw.data(), length(y)};
            const Out slopes{dlosses.data(), length(y)};
            in_ranges(length(y), [&](Index lo, Index hi) {
                single_output(code, parameter, view(y).part(lo, hi), z.part(lo, hi),
                              view(losses).part(lo, hi), slopes.part(lo, hi));
            });
            return true;
        },
        "code"_a, "parameter"_a, "y"_a.noconvert(), "raw"_a.noconvert(), "losses"_a.noconvert(),
        "dlosses"_a.noconvert(), "n_threads"_a = 1,
        "Whether the arrays fit together; only then they are filled.");
    m.def(
        "multinomial",
        [](Array1<const std::int64_t> y, Array2<const double> raw, OutArray losses,
           Array2<double> dlosses) {
            const std::size_t n = raw.shape(0);
            if (y.shape(0) != n || losses.shape(0) != n || !has_shape(dlosses, n, raw.shape(1)))
                return false;
            nb::gil_scoped_release release;
            return multinomial(view(y), view(raw), view(losses), view(dlosses));
        },
        "y"_a.noconvert(), "raw"_a.noconvert(), "losses"_a.noconvert(), "dlosses"_a.noconvert(),
        "Softmax cross-entropy; whether the arrays fit together and each label is an output's.");
    m.def(
        "slope_along",
        [](InArray q, Array2<const double> slopes, Array2<const double> step) {
            const std::size_t n = q.shape(0);
            if (slopes.shape(0) != n || !has_shape(step, n, slopes.shape(1)))
                throw nb::value_error("arrays of several outputs that do not fit together");
            nb::gil_scoped_release release;
            return slope_along(view(q), view(slopes), view(step));
        },
        "q"_a.noconvert(), "slopes"_a.noconvert(), "step"_a.noconvert(),
        "sum_i q_i <slopes_i, step_i>.");
    m.def(
        "narrow_predict",
        [](Array2<const double> X, Array2<const double> w, InArray b, Array2<double> raw) {
            const std::size_t k = w.shape(1);
            if (w.shape(0) != X.shape(1) || b.shape(0) != k || !has_shape(raw, X.shape(0), k))
                throw nb::value_error("arrays of several outputs that do not fit together");
            nb::gil_scoped_release release;
            narrow_predict(view(X), view(w), view(b), view(raw));
        },
        "X"_a.noconvert(), "w"_a.noconvert(), "b"_a.noconvert(), "raw"_a.noconvert(),
        "raw = X w + b, for a few outputs.");
    m.def(
        "narrow_gradient",
        [](Array2<const double> X, InArray q, Array2<const double> slopes, Array2<double> out,
           OutArray sums) {
            const std::size_t n = X.shape(0), k = slopes.shape(1);
            if (q.shape(0) != n || slopes.shape(0) != n || !has_shape(out, X.shape(1), k) ||
                sums.shape(0) != k)
                throw nb::value_error("arrays of several outputs that do not fit together");
            nb::gil_scoped_release release;
            narrow_gradient(view(X), view(q), view(slopes), view(out), view(sums));
        },
        "X"_a.noconvert(), "q"_a.noconvert(), "slopes"_a.noconvert(), "out"_a.noconvert(),
        "sums"_a.noconvert(), "X' (q slopes) and the sums of q slopes, over the rows of weight.");
    m.def(
        "second_single_output",
        [](int code, double parameter, InArray y, Array2<const double> raw, InArray q,
           Index n_threads) {
            if (!has_shape(raw, y.shape(0), 1) || (q.size() && q.size() != y.size()))
                throw nb::value_error("y, raw and q must have the shapes (n,), (n, 1) and (n,)");
            Owned out = new_vector(length(y));
            const Out to{out.data(), length(y)};
            nb::gil_scoped_release release;
            const Helpers helpers(n_threads);
            const In z{raw.data(), length(y)};
            in_ranges(length(y), [&](Index lo, Index hi) {
                second_single_output(code, parameter, view(y).part(lo, hi), z.part(lo, hi),
                                     q.size() ? view(q).part(lo, hi) : In{}, to.part(lo, hi));
            });
            return out;
        },
        "code"_a, "parameter"_a, "y"_a.noconvert(), "raw"_a.noconvert(), "q"_a.noconvert(),
        "n_threads"_a = 1, "Second derivative of each loss at raw (n x 1), times q if it has any.");
    m.def(
        "binary_masses",
        [](InArray y, InArray p, Index n_threads) {
            if (y.size() != p.size()) throw nb::value_error("y and p must have the same length");
            nb::gil_scoped_release release;
            const Helpers helpers(n_threads);
            const auto [zeros, ones, others] = binary_masses(view(y), view(p));
            return std::make_tuple(zeros, ones, others);
        },
        "y"_a.noconvert(), "p"_a.noconvert(), "n_threads"_a = 1,
        "The sums of p over the labels 0 and 1, and how many labels are neither.");
}

void bind_vectors(nb::module_& m) {
    m.def(
        "count_above",
        [](InArray u, double level, Index n_threads) {
            nb::gil_scoped_release release;
            const Helpers helpers(n_threads);
            return count_above(view(u), level);
        },
        "u"_a.noconvert(), "level"_a, "n_threads"_a = 1,
        "How many entries are greater than a level.");
    m.def(
        "places_above",
        [](InArray u, double level, Index n_threads) {
            Indices out;
            nb::gil_scoped_release release;
            const Helpers helpers(n_threads);
            places_above(view(u), level, [&](Index size) {
                const nb::gil_scoped_acquire acquire;
                out = new_vector<std::int64_t>(size);
                return out.data();
            });
            return out;
        },
        "u"_a.noconvert(), "level"_a, "n_threads"_a = 1,
        "The places of the entries greater than a level, in order.");
    m.def(
        "extremes",
        [](InArray u, Index n_threads) {
            if (u.size() == 0) throw nb::value_error("there is no extreme of no entries");
            nb::gil_scoped_release release;
            const Helpers helpers(n_threads);
            const auto [least, greatest] = long_extremes(view(u));
            return std::make_tuple(least, greatest);
        },
        "u"_a.noconvert(), "n_threads"_a = 1,
        "The least and the greatest entry; NaN where there is one.");
}

void bind_capped(nb::module_& m) {
    m.attr("PATIENCE") = PATIENCE;
    m.attr("SUBSAMPLE") = SUBSAMPLE;
    m.attr("SAMPLE") = SAMPLE;
    m.def(
        "upper_quantile",
        [](InArray u, InArray p, double mass) {
            require_share_of_each(p, u);
            nb::gil_scoped_release release;
            return upper_quantile(view(u), view(p), mass);
        },
        "u"_a.noconvert(), "p"_a.noconvert(), "mass"_a,
        "The largest value m of u with p(u >= m) >= mass.");
    m.def(
        "capped_vertex",
        [](InArray u, InArray p, double cap, OutArray q, Index n_threads) {
            require_share_of_each(p, u);
            nb::gil_scoped_release release;
            const Helpers helpers(n_threads);
            return capped_vertex(view(u), view(p), cap, view(q));
        },
        "u"_a.noconvert(), "p"_a.noconvert(), "cap"_a, "q"_a.noconvert(), "n_threads"_a = 1,
        "c = 0: the cap is filled from the largest loss down; returns the threshold.");
    m.def(
        "outside",
        [](InArray q, InArray p, double cap, Index n_threads) {
            require_shares(p, q);
            nb::gil_scoped_release release;
            const Helpers helpers(n_threads);
            const auto [total, below, above] = outside(view(q), view(p), cap);
            return std::make_tuple(total, below, above);
        },
        "q"_a.noconvert(), "p"_a.noconvert(), "cap"_a, "n_threads"_a = 1,
        "The sum of q, and the masses below 0 and above cap p.");
    m.def(
        "capped_chi2",
        [](InArray u, InArray p, double c, double cap, double tau, OutArray q, Index n_threads) {
            require_shares(p, u);
            nb::gil_scoped_release release;
            const Helpers helpers(n_threads);
            return capped_chi2(view(u), view(p), c, cap, tau, view(q));
        },
        "u"_a.noconvert(), "p"_a.noconvert(), "c"_a, "cap"_a, "tau"_a, "q"_a.noconvert(),
        "n_threads"_a = 1,
        "Exact weights with the chi2 divergence; returns tau for a warm start (NaN: cold).");
    m.def(
        "capped_kl",
        [](InArray u, InArray p, double c, double cap, double tau, OutArray q, OutArray log_ratio,
           Index n_threads) {
            require_share_of_each(p, u);
            nb::gil_scoped_release release;
            const Helpers helpers(n_threads);
            return capped_kl(view(u), view(p), c, cap, tau, view(q), view(log_ratio));
        },
        "u"_a.noconvert(), "p"_a.noconvert(), "c"_a, "cap"_a, "tau"_a, "q"_a.noconvert(),
        "log_ratio"_a.noconvert(), "n_threads"_a = 1,
        "Exact weights with the KL divergence; returns tau for a warm start (NaN: cold).");
}

// For the tests of their accuracy.
void bind_math(nb::module_& m) {
    m.def("exp_fast", [](double x) { return exp_fast(x); }, "x"_a, "exp(x).");
    m.def("expm1_fast", [](double x) { return expm1_fast(x); }, "x"_a, "exp(x) - 1.");
    m.def("log1p_unit", [](double e) { return log1p_unit(e); }, "e"_a,
          "log(1 + e) for 0 <= e <= 1.");
}

void bind_balls(nb::module_& m) {
    m.def(
        "chi2_divergence",
        [](InArray q, InArray p, Index n_threads) {
            require_share_of_each(p, q);
            nb::gil_scoped_release release;
            const Helpers helpers(n_threads);
            return chi2_divergence(view(q), view(p));
        },
        "q"_a.noconvert(), "p"_a.noconvert(), "n_threads"_a = 1, "1/2 sum_i (q_i - p_i)^2 / p_i.");
    m.def(
        "chi2_value",
        [](InArray u, InArray q, InArray p, double c, Index n_threads) {
            require_shares(p, q);
            nb::gil_scoped_release release;
            const Helpers helpers(n_threads);
            return chi2_value(view(u), view(q), view(p), c);
        },
        "u"_a.noconvert(), "q"_a.noconvert(), "p"_a.noconvert(), "c"_a, "n_threads"_a = 1,
        "sum_i q_i u_i - c / 2 sum_i (q_i - p_i)^2 / p_i.");
    m.def(
        "chi2_ball",
        [](InArray u, InArray p, double c, double radius, double tau, OutArray q,
           Index n_threads) -> Pair {
            require_share_of_each(p, u);
            nb::gil_scoped_release release;
            const Helpers helpers(n_threads);
            const BallAnswer found = chi2_ball(view(u), view(p), c, radius, tau, view(q));
            return {found.cost, found.memory};
        },
        "u"_a.noconvert(), "p"_a.noconvert(), "c"_a, "radius"_a, "tau"_a, "q"_a.noconvert(),
        "n_threads"_a = 1,
        "Exact weights in the chi2 ball; returns c + lambda and the next call's tau.");
    m.def(
        "chi2_ball_sorted",
        [](InArray u, InArray p, double radius) {
            const Boundary found = chi2_ball_sorted(view(u), view(p), radius);
            return std::tuple(found.centre, found.offset, found.cut);
        },
        "u"_a.noconvert(), "p"_a.noconvert(), "radius"_a,
        "Centre, offset and cut of the ball's boundary, by one sort.");
    m.def(
        "kl_ball",
        [](InArray u, InArray p, double c, double radius, double theta, OutArray q,
           OutArray log_ratio, Index n_threads) -> Pair {
            require_share_of_each(p, u);
            nb::gil_scoped_release release;
            const Helpers helpers(n_threads);
            const BallAnswer found =
                kl_ball(view(u), view(p), c, radius, theta, view(q), view(log_ratio));
            return {found.cost, found.memory};
        },
        "u"_a.noconvert(), "p"_a.noconvert(), "c"_a, "radius"_a, "theta"_a, "q"_a.noconvert(),
        "log_ratio"_a.noconvert(), "n_threads"_a = 1,
        "Exact weights in the KL ball; returns c + lambda and the next call's theta.");
}

void bind_spectral(nb::module_& m) {
    m.def(
        "spectral_masses",
        [](int family, double parameter, InArray upper, InArray p) {
            Owned out = new_vector(length(p));
            const Out to{out.data(), length(p)};
            nb::gil_scoped_release release;
            spectral_masses(family, parameter, view(upper), view(p), to);
            return out;
        },
        "family"_a, "parameter"_a, "upper"_a.noconvert(), "p"_a.noconvert(),
        "The spectrum's mass of each row, for the families 1 (extremile) and 2 (ESRM).");
    m.def(
        "spectral_vertex",
        [](InArray u, InArray p, InArray sigma, OutArray ratio, Places first) {
            nb::gil_scoped_release release;
            return spectral_vertex(view(u), view(p), view(sigma), view(ratio), view(first));
        },
        "u"_a.noconvert(), "p"_a.noconvert(), "sigma"_a.noconvert(), "ratio"_a.noconvert(),
        "first"_a.noconvert(), "c = 0: each row gets its spectrum mass; returns how many pools.");
    m.def(
        "spectral_chi2",
        [](InArray u, InArray p, InArray sigma, double c, OutArray ratio, OutArray mean,
           OutArray weight, Places first) {
            nb::gil_scoped_release release;
            return spectral_chi2(view(u), view(p), view(sigma), c, view(ratio), view(mean),
                                 view(weight), view(first));
        },
        "u"_a.noconvert(), "p"_a.noconvert(), "sigma"_a.noconvert(), "c"_a, "ratio"_a.noconvert(),
        "mean"_a.noconvert(), "weight"_a.noconvert(), "first"_a.noconvert(),
        "Ratios q / p with the chi2 divergence; returns how many pools.");
    m.def(
        "spectral_kl",
        [](InArray u, InArray p, InArray sigma, double c, OutArray ratio, OutArray mass,
           OutArray log_ratio, Places first) {
            nb::gil_scoped_release release;
            return spectral_kl(view(u), view(p), view(sigma), c, view(ratio), view(mass),
                               view(log_ratio), view(first));
        },
        "u"_a.noconvert(), "p"_a.noconvert(), "sigma"_a.noconvert(), "c"_a, "ratio"_a.noconvert(),
        "mass"_a.noconvert(), "log_ratio"_a.noconvert(), "first"_a.noconvert(),
        "Ratios q / p with the KL divergence; returns how many pools.");
    m.def(
        "scatter",
        [](InArray ratio, InArray p, Array1<const std::int64_t> order, OutArray q) {
            nb::gil_scoped_release release;
            scatter(view(ratio), view(p), view(order), view(q));
        },
        "ratio"_a.noconvert(), "p"_a.noconvert(), "order"_a.noconvert(), "q"_a.noconvert(),
        "q = ratio p, from the sorted order back to the rows'.");
}

void bind_ranges(nb::module_& m) {
    m.attr("VERTEX_POOLS") = static_cast<int>(VERTEX_POOLS);
    m.attr("CHI2_POOLS") = static_cast<int>(CHI2_POOLS);
    m.attr("KL_POOLS") = static_cast<int>(KL_POOLS);
    m.def("place_of", &place_of, "value"_a, "An integer in the order of the numbers.");
    m.def("value_at", &value_at, "place"_a, "The number at a place.");
    m.def(
        "count_places",
        [](InArray u, double low, double high, int shift, Places counts) {
            nb::gil_scoped_release release;
            count_places(view(u), low, high, shift, view(counts));
        },
        "u"_a.noconvert(), "low"_a, "high"_a, "shift"_a, "counts"_a.noconvert(),
        "Adds how many numbers lie in each of the ranges of 2^shift places from that of low on.");
    m.def(
        "gather_range",
        [](InArray u, InArray p, double low, double high, OutArray out, Index count) {
            nb::gil_scoped_release release;
            return gather_range(view(u), view(p), low, high, view(out), count);
        },
        "u"_a.noconvert(), "p"_a.noconvert(), "low"_a, "high"_a, "out"_a.noconvert(), "count"_a,
        "The numbers of a range, or (number, p) pairs; returns how many there are then.");
    m.def(
        "sort_pairs",
        [](OutArray pairs) {
            nb::gil_scoped_release release;
            sort_pairs(view(pairs));
        },
        "pairs"_a.noconvert(), "Sort pairs that lie behind each other.");
    m.def(
        "next_atoms",
        [](InArray sorted, bool in_pairs, Index start, OutArray values, OutArray masses) {
            nb::gil_scoped_release release;
            const Taken found =
                next_atoms(view(sorted), in_pairs, start, view(values), view(masses));
            return std::tuple(found.row, found.atoms);
        },
        "sorted"_a.noconvert(), "in_pairs"_a, "start"_a, "values"_a.noconvert(),
        "masses"_a.noconvert(), "Distinct numbers and their masses; the next row, and how many.");
    m.def(
        "push_atoms",
        [](int kind, InArray u, InArray p, InArray sigma, double c, OutArray first, OutArray one,
           OutArray two, OutArray three, Index count) {
            nb::gil_scoped_release release;
            return push_atoms(kind, view(u), view(p), view(sigma), c,
                              {view(first), view(one), view(two), view(three)}, count);
        },
        "kind"_a, "u"_a.noconvert(), "p"_a.noconvert(), "sigma"_a.noconvert(), "c"_a,
        "first"_a.noconvert(), "one"_a.noconvert(), "two"_a.noconvert(), "three"_a.noconvert(),
        "count"_a, "Atoms on top of the pools; returns how many pools there are then.");
    m.attr("POOL_STRIDE") = stride;
    m.def(
        "settle_pools",
        [](int kind, double c, double scale, OutArray one, InArray two, OutArray three) {
            nb::gil_scoped_release release;
            settle_pools(kind, c, scale, view(one), view(two), view(three));
        },
        "kind"_a, "c"_a, "scale"_a, "one"_a.noconvert(), "two"_a.noconvert(),
        "three"_a.noconvert(), "The last number of each pool becomes q / p at one of its rows.");
    m.def(
        "pool_weights",
        [](int kind, InArray u, InArray p, double unit, double low, double high, double c,
           InArray first, InArray coarse, InArray last, InArray level, OutArray q,
           OutArray mirror, Index n_threads) {
            nb::gil_scoped_release release;
            pool_weights(kind, view(u), view(p), unit, low, high, c, view(first), view(coarse),
                         view(last), view(level), view(q), view(mirror), n_threads);
        },
        "kind"_a, "u"_a.noconvert(), "p"_a.noconvert(), "unit"_a, "low"_a, "high"_a, "c"_a,
        "first"_a.noconvert(), "coarse"_a.noconvert(), "last"_a.noconvert(),
        "level"_a.noconvert(), "q"_a.noconvert(), "mirror"_a.noconvert(), "n_threads"_a,
        "The weights of the rows of a range of losses.");
}

}  // namespace

void bind_oracles(nb::module_& m) {
    bind_math(m);
    bind_losses(m);
    bind_vectors(m);
    bind_capped(m);
    bind_balls(m);
    bind_spectral(m);
    bind_ranges(m);
}

}  // namespace drago
