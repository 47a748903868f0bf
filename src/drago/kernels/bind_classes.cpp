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
             const InArray& mean, const InArray& eigenvalues, const InMatrix& basis,
             const InMatrix& turned, double along, const OutArray& theta, const OutArray& slope,
             const OutMatrix& raw, const OutArray& losses, const OutMatrix& slopes,
             const OutArray& q, const OutMatrix& steps, const OutMatrix& changes, Index count,
             Index next, double value, double tau, bool is_start, Index most, double reference,
             double share, double share_of_tangent, nb::object weights) {
    std::function<void(Out, Out)> asked;
    if (!weights.is_none()) {
        asked = [&](Out losses, Out to) {
            nb::gil_scoped_acquire acquire;
            using View = nb::ndarray<nb::numpy, double, nb::ndim<1>>;
            const std::size_t size[1] = {static_cast<std::size_t>(losses.size)};
            // Without an owner they would be copied.
            const auto shown = [&](double* data) {
                return nb::cast(View(data, 1, size, nb::handle()), nb::rv_policy::reference);
            };
            weights(shown(losses.data), nu, shown(to.data));
        };
    }
    nb::gil_scoped_release release;
    const ClassProblem of{view(X),    view(y), view(baseline), view(p),     is_kl,
                          intercept,  cap,     nu,             mu,          view(mean),
                          view(eigenvalues), view(basis), view(turned), along, asked};
    const Index n = of.X.rows, k = static_cast<Index>(raw.shape(1));
    Scratch room(static_cast<std::size_t>(2 * n * k + 2 * n));
    double* at = room.data();
    const ClassPoint own{view(raw), view(losses), view(slopes), view(q)};
    const ClassPoint other{{at, n, k}, {at + n * k, n}, {at + n * k + n, n, k},
                           {at + 2 * n * k + n, n}};
    ClassMemory memory{view(steps), view(changes), count, next};
    ClassDescent run(of, own, other, view(theta), view(slope), memory, tau);
    if (is_start) value = run.start();
    const ClassAnswer found =
        run.run(value, is_start ? 0 : most, reference, share, share_of_tangent);
    const ClassPoint& end = run.point();
    if (end.q.data != own.q.data) {
        std::copy(end.raw.data, end.raw.data + n * k, own.raw.data);
        std::copy(end.losses.data, end.losses.data + n, own.losses.data);
        std::copy(end.slopes.data, end.slopes.data + n * k, own.slopes.data);
        std::copy(end.q.data, end.q.data + n, own.q.data);
    }
    return std::tuple(found.iterations, found.trials, found.value, found.estimate, found.tangent,
                      found.tau, memory.count, memory.next, found.state);
}

}  // namespace

void bind_classes(nb::module_& m) {
    m.def("class_descend", &descend, "X"_a.noconvert(), "y"_a.noconvert(),
          "baseline"_a.noconvert(), "p"_a.noconvert(), "is_kl"_a, "intercept"_a, "cap"_a, "nu"_a,
          "mu"_a, "mean"_a.noconvert(), "eigenvalues"_a.noconvert(), "basis"_a.noconvert(),
          "turned"_a.noconvert(), "along"_a, "theta"_a.noconvert(), "slope"_a.noconvert(),
          "raw"_a.noconvert(), "losses"_a.noconvert(), "slopes"_a.noconvert(), "q"_a.noconvert(),
          "steps"_a.noconvert(), "changes"_a.noconvert(), "count"_a, "next"_a, "value"_a, "tau"_a,
          "is_start"_a, "most"_a, "reference"_a, "share"_a, "share_of_tangent"_a,
          "weights"_a.none(),
          "Iterations in place, or with `is_start` none but the point at theta: iterations, "
          "trials, value, estimate, tangent, tau, count, next, state.");
}

}  // namespace drago
