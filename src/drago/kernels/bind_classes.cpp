// L-BFGS for several outputs for Python.
#include <cstdint>

#include "bind.hpp"
#include "descend.hpp"

namespace drago {
namespace {

using namespace nb::literals;
using InMatrix = Array2<const double>;
using OutMatrix = Array2<double>;

auto descend(const InMatrix& X, Array1<const std::int64_t> y, const InArray& baseline,
             const InArray& p, bool is_kl, bool intercept, double cap, double nu, double mu,
             const InArray& mean, const InArray& squares, const InMatrix& basis,
             const InMatrix& turned, const OutArray& theta, const OutArray& slope,
             const OutArray& losses, const OutMatrix& slopes, const OutArray& q,
             const OutArray& other_losses, const OutMatrix& other_slopes, const OutArray& other_q,
             const OutArray& step, const OutMatrix& steps, const OutMatrix& changes, Index count,
             Index next, double value, double tau, bool is_start, Index most, double reference,
             double share, double share_of_tangent, bool newton,
             bool has_step, nb::object weights, nb::object rates) {
    // Without an owner they would be copied.
    const auto shown = [](Out array) {
        using View = nb::ndarray<nb::numpy, double, nb::ndim<1>>;
        const std::size_t size[1] = {static_cast<std::size_t>(array.size)};
        return nb::cast(View(array.data, 1, size, nb::handle()), nb::rv_policy::reference);
    };
    std::function<void(Out, Out)> asked;
    std::function<void(Out, Out, Out)> asked_for_rates;
    if (!weights.is_none()) {
        asked = [&](Out losses, Out to) {
            nb::gil_scoped_acquire acquire;
            weights(shown(losses), nu, shown(to));
        };
        asked_for_rates = [&](Out losses, Out at, Out to) {
            nb::gil_scoped_acquire acquire;
            rates(shown(losses), shown(at), shown(to));
        };
    }
    nb::gil_scoped_release release;
    const ClassProblem of{view(X),       view(y),     view(baseline), view(p), is_kl,
                          intercept,     cap,         nu,             mu,      view(mean),
                          view(squares), view(basis), view(turned),   asked,   asked_for_rates};
    const ClassPoint own{view(losses), view(slopes), view(q)};
    const ClassPoint other{view(other_losses), view(other_slopes), view(other_q)};
    ClassMemory memory{view(steps), view(changes), count, next};
    ClassDescent run(of, own, other, view(step), view(theta), view(slope), memory, tau);
    if (is_start) value = run.start();
    const ClassAnswer found =
        run.run(value, is_start ? 0 : most, reference, share, share_of_tangent, newton,
                has_step);
    const bool is_other = run.point().q.data != own.q.data;
    return std::tuple(found.iterations, found.trials, found.value, found.estimate, found.tangent,
                      found.tau, memory.count, memory.next, found.state, is_other,
                      found.has_step);
}

// Whether the arrays fit; only then they are filled.
bool curvature(Array1<const std::int64_t> y, const InMatrix& slopes, const InArray& q,
               const OutMatrix& out) {
    const std::size_t n = slopes.shape(0), k = slopes.shape(1);
    if (y.shape(0) != n || q.shape(0) != n || out.shape(0) != k || out.shape(1) != k) return false;
    const auto labels = view(y);
    for (Index i = 0; i < labels.size; ++i)
        if (labels[i] < 0 || labels[i] >= static_cast<Index>(k)) return false;
    nb::gil_scoped_release release;
    class_curvature(labels, view(slopes), view(q), view(out));
    return true;
}

// The same.
bool balance(Array1<const std::int64_t> y, const InMatrix& raw, const InArray& losses, double keep,
             const InArray& rest, const OutMatrix& slopes, const OutArray& young) {
    const std::size_t n = raw.shape(0), k = raw.shape(1);
    if (y.shape(0) != n || losses.shape(0) != n || rest.shape(0) != k || slopes.shape(0) != n ||
        slopes.shape(1) != k || young.shape(0) != n)
        return false;
    const auto labels = view(y);
    for (Index i = 0; i < labels.size; ++i)
        if (labels[i] < 0 || labels[i] >= static_cast<Index>(k)) return false;
    nb::gil_scoped_release release;
    balance_rows(labels, view(raw), view(losses), keep, view(rest), view(slopes), view(young));
    return true;
}

// The same.
bool hessian(const InMatrix& X, Array1<const std::int64_t> y, const InMatrix& slopes,
             const InArray& q, bool intercept, const OutMatrix& out) {
    const std::size_t n = X.shape(0), k = slopes.shape(1);
    const std::size_t size = k * (X.shape(1) + (intercept ? 1 : 0));
    if (y.shape(0) != n || slopes.shape(0) != n || q.shape(0) != n || out.shape(0) != size ||
        out.shape(1) != size)
        return false;
    const auto labels = view(y);
    for (Index i = 0; i < labels.size; ++i)
        if (labels[i] < 0 || labels[i] >= static_cast<Index>(k)) return false;
    nb::gil_scoped_release release;
    const Scratch nothing(std::max(n, X.shape(1)));
    ClassHessian found(view(X), labels, {nothing.data(), static_cast<Index>(X.shape(1))},
                       intercept, 0.0, static_cast<Index>(k));
    found.set(view(q), view(slopes), {nothing.data(), static_cast<Index>(n)});
    found.fill(view(out));
    return true;
}

}  // namespace

void bind_classes(nb::module_& m) {
    m.def("class_descend", &descend, "X"_a.noconvert(), "y"_a.noconvert(),
          "baseline"_a.noconvert(), "p"_a.noconvert(), "is_kl"_a, "intercept"_a, "cap"_a, "nu"_a,
          "mu"_a, "mean"_a.noconvert(), "squares"_a.noconvert(), "basis"_a.noconvert(),
          "turned"_a.noconvert(), "theta"_a.noconvert(), "slope"_a.noconvert(),
          "losses"_a.noconvert(), "slopes"_a.noconvert(), "q"_a.noconvert(),
          "other_losses"_a.noconvert(), "other_slopes"_a.noconvert(), "other_q"_a.noconvert(),
          "step"_a.noconvert(),
          "steps"_a.noconvert(), "changes"_a.noconvert(), "count"_a, "next"_a, "value"_a, "tau"_a,
          "is_start"_a, "most"_a, "reference"_a, "share"_a, "share_of_tangent"_a, "newton"_a,
          "has_step"_a,
          "weights"_a.none(), "rates"_a.none(),
          "Iterations in place, or with `is_start` none but the point at theta: iterations, "
          "trials, value, estimate, tangent, tau, count, next, state, and whether the point is "
          "in the other arrays, and whether the next step is known.");
    m.def("class_balance", &balance, "y"_a.noconvert(), "raw"_a.noconvert(),
          "losses"_a.noconvert(), "keep"_a, "rest"_a.noconvert(), "slopes"_a.noconvert(),
          "young"_a.noconvert(), "Slopes of mixed probabilities, in place, and what that costs.");
    m.def("class_hessian", &hessian, "X"_a.noconvert(), "y"_a.noconvert(),
          "slopes"_a.noconvert(), "q"_a.noconvert(), "intercept"_a, "out"_a.noconvert(),
          "The lower triangle of the Hessian of the weighted losses, features first.");
    m.def("class_curvature", &curvature, "y"_a.noconvert(), "slopes"_a.noconvert(),
          "q"_a.noconvert(), "out"_a.noconvert(),
          "The curvature of the weighted losses in the raw predictions.");
}

}  // namespace drago
