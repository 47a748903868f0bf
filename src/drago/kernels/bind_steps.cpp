// Whole iterations on small data: DRAGO in one block, and Newton's method.
//
// All of them release the GIL: the BLAS is looked up by the first call of it, which takes the GIL
// and must not find that another thread holds it and waits for the same look.
#include <array>

#include "bind.hpp"
#include "newton.hpp"
#include "one_block.hpp"

namespace drago {
namespace {

using InMatrix = Array2<const double>;

void predict(const InMatrix& X, const InMatrix& columns, const InArray& w, const OutArray& raw) {
    nb::gil_scoped_release release;
    one_block_predict(view(X), view(columns), w.data(), raw.data());
}

double gradient(const InMatrix& X, const InMatrix& columns, const InArray& q,
                const InArray& slopes, const OutArray& weighted, const OutArray& out) {
    nb::gil_scoped_release release;
    return one_block_gradient(view(X), view(columns), q.data(), slopes.data(), weighted.data(),
                              out.data());
}

auto start(const InMatrix& X, const InMatrix& columns, const InArray& y, const InArray& baseline,
           int code, double parameter, const InArray& p, double cap, double nu, const InArray& w,
           double b, const OutArray& losses, const OutArray& slopes, const OutArray& q,
           const OutArray& gradient) {
    nb::gil_scoped_release release;
    const OneBlock of{view(X), view(columns), view(y), view(baseline), code, parameter,
                      view(p), cap,           nu};
    const OneBlockStart found = one_block_start(of, w.data(), b, view(losses), view(slopes),
                                                view(q), gradient.data());
    return std::tuple(found.gradient_b, found.tau, found.moment, found.finite);
}

auto steps(const InMatrix& X, const InMatrix& columns, const InArray& y, const InArray& baseline,
           int code, double parameter, const InArray& p, double cap, double nu, double mu,
           const InArray& mean, const InArray& eigenvalues, const InMatrix& basis, double along,
           bool intercept, Index n_steps, bool is_fresh, double alpha, double largest,
           double boldness, double growth, const OutArray& curvatures, const OutArray& past_point,
           const OutArray& past_slope, bool has_past, double tau, const OutArray& w, double b,
           const OutArray& raw, const OutArray& losses, const OutArray& slopes, const OutArray& q,
           const OutArray& gradient, double gradient_b) {
    nb::gil_scoped_release release;
    const OneBlock of{view(X), view(columns), view(y), view(baseline), code, parameter,
                      view(p), cap,           nu};
    const OneBlockMetric metric{mu,    view(mean), view(eigenvalues), view(basis),
                                along, intercept};
    const SecantRule rule{largest, boldness, growth, view(curvatures)};
    OneBlockPast past{past_point.data(), past_slope.data(), has_past};
    OneBlockState at{w.data(),        b,          raw.data(), view(losses), view(slopes), view(q),
                     gradient.data(), gradient_b, alpha,      tau};
    const OneBlockAnswer found = one_block_steps(of, metric, n_steps, is_fresh, rule, past, at);
    return std::tuple(at.b, at.gradient_b, at.alpha, at.tau, found.cost, found.gap, found.primal);
}

auto value(const InArray& y, const InArray& baseline, int code, double parameter, const InArray& p,
           double cap, double c, double nu, const InArray& shift, double mu, const OutArray& theta,
           const OutArray& raw, double tau, const OutArray& losses, const OutArray& slopes,
           const OutArray& q, const OutArray& u) {
    nb::gil_scoped_release release;
    const NewtonStage of{view(y), view(baseline), code, parameter, view(p), cap,
                         c,       nu,             view(shift), mu};
    const NewtonPoint at{view(theta), view(raw), view(losses), view(slopes), view(q)};
    const NewtonValue found = newton_value(of, at, tau, view(u));
    return std::tuple(found.value, found.level, found.tau);
}

// The arrays of a point, which Python may keep.
struct PointArrays {
    NewVector<double> theta, raw, losses, slopes, q;

    PointArrays(Index n, Index size)
        : theta(new_vector(size)),
          raw(new_vector(n)),
          losses(new_vector(n)),
          slopes(new_vector(n)),
          q(new_vector(n)) {}

    NewtonPoint point() const {
        return {of(theta), of(raw), of(losses), of(slopes), of(q)};
    }

    static Out of(const NewVector<double>& array) {
        return {array.data(), static_cast<Index>(array.shape(0))};
    }
};

auto newton(const InMatrix& X, const InArray& y, const InArray& baseline, double size, int code,
            double parameter, double curvature, const InArray& p, double cap, double c, double nu,
            const InArray& shift, double constant, double mu, bool intercept,
            const InArray& dampings, Index halvings, double done, double enough, Index most,
            double tau, const InArray& theta, const InArray& raw) {
    const Index n = static_cast<Index>(X.shape(0));
    PointArrays one(n, static_cast<Index>(theta.shape(0)));
    PointArrays two(n, static_cast<Index>(theta.shape(0)));
    NewtonPoint at = one.point(), other = two.point();
    NewtonAnswer found;
    {
        nb::gil_scoped_release release;
        const In from = view(theta), predictions = view(raw);
        std::copy(from.data, from.data + from.size, at.theta.data);
        std::copy(from.data, from.data + from.size, other.theta.data);
        std::copy(predictions.data, predictions.data + n, at.raw.data);
        const NewtonStage of{view(y), view(baseline), code, parameter, view(p), cap,
                             c,       nu,             view(shift), mu};
        const NewtonRule rule{size,           curvature, constant, intercept,
                              view(dampings), halvings,  done,     enough,   most};
        found = capped_newton(view(X), of, rule, tau, at, other);
    }
    PointArrays& end = at.theta.data == one.theta.data() ? one : two;
    return nb::make_tuple(found.steps, found.trials, found.tau, found.promise, found.value,
                          found.level, found.state, end.theta, end.raw, end.losses, end.slopes,
                          end.q);
}

}  // namespace

void bind_steps(nb::module_& m) {
    const auto array = [](const char* name) { return nb::arg(name).noconvert(); };
    const auto number = [](const char* name) { return nb::arg(name); };
    m.def("one_block_predict", &predict, array("X"), array("columns"), array("w"), array("raw"),
          "raw = X w, by columns where there is a copy of X by columns.");
    m.def("one_block_gradient", &gradient, array("X"), array("columns"), array("q"),
          array("slopes"), array("weighted"), array("out"),
          "out = X' (q slopes); returns q' slopes.");
    m.def("one_block_start", &start, array("X"), array("columns"), array("y"), array("baseline"),
          number("code"), number("parameter"), array("p"), number("cap"), number("nu"), array("w"),
          number("b"), array("losses"), array("slopes"), array("q"), array("gradient"),
          "Losses, slopes, weights and gradient at (w, b): gradient_b, tau, moment, finite.");
    m.def("one_block_steps", &steps, array("X"), array("columns"), array("y"), array("baseline"),
          number("code"), number("parameter"), array("p"), number("cap"), number("nu"),
          number("mu"), array("mean"), array("eigenvalues"), array("basis"), number("along"),
          number("intercept"), number("n_steps"), number("is_fresh"), number("alpha"),
          number("largest"), number("boldness"), number("growth"), array("curvatures"),
          array("past_point"), array("past_slope"), number("has_past"), number("tau"), array("w"),
          number("b"), array("raw"), array("losses"), array("slopes"), array("q"),
          array("gradient"), number("gradient_b"),
          "Some iterations in place: b, gradient_b, alpha, tau, cost, gap, primal.");
    m.def("newton_value", &value, array("y"), array("baseline"), number("code"),
          number("parameter"), array("p"), number("cap"), number("c"), number("nu"),
          array("shift"), number("mu"), array("theta"), array("raw"), number("tau"),
          array("losses"), array("slopes"), array("q"), array("u"),
          "P_c at a point, L(w, q) at its weights, and their threshold.");
    m.def("capped_newton", &newton, array("X"), array("y"), array("baseline"), number("size"),
          number("code"), number("parameter"), number("curvature"), array("p"), number("cap"),
          number("c"), number("nu"), array("shift"), number("constant"), number("mu"),
          number("intercept"), array("dampings"), number("halvings"), number("done"),
          number("enough"), number("most"), number("tau"), array("theta"), array("raw"),
          "Newton steps: steps, trials, tau, promise, value, level, state, theta, raw, losses, "
          "slopes, q.");
}

}  // namespace drago
