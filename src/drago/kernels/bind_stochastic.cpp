// The stochastic methods. A matrix comes as values, indices, starts: those of CSR, or for a dense
// one its entries row by row with `indices` and `starts` empty.
#include "bind.hpp"
#include "stochastic.hpp"

namespace drago {
namespace {

// A vector of one of several types.
using AnyArray = nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Places = Array1<const std::int64_t>;

template <class T>
const T* entries(const AnyArray& array) {
    return static_cast<const T*>(array.data());
}

template <class T>
bool holds(const AnyArray& array) {
    return array.dtype() == nb::dtype<T>();
}

template <class T, class F>
auto with_values(const AnyArray& values, const AnyArray& indices, const AnyArray& starts, Index d,
                 F&& run) {
    const T* x = entries<T>(values);
    if (indices.shape(0) == 0) return run(DenseRows<T>{x, d});
    if (holds<std::int32_t>(indices) && holds<std::int32_t>(starts))
        return run(SparseRows<T, std::int32_t>{x, entries<std::int32_t>(indices),
                                               entries<std::int32_t>(starts)});
    if (holds<std::int64_t>(indices) && holds<std::int64_t>(starts))
        return run(SparseRows<T, std::int64_t>{x, entries<std::int64_t>(indices),
                                               entries<std::int64_t>(starts)});
    throw nb::type_error("indices and starts must both be of int32 or of int64");
}

// Call `run` with the rows of the matrix, without the GIL.
template <class F>
auto with_rows(const AnyArray& values, const AnyArray& indices, const AnyArray& starts, Index d,
               F&& run) {
    const auto freely = [&](const auto& rows) {
        nb::gil_scoped_release release;
        return run(rows);
    };
    if (holds<double>(values)) return with_values<double>(values, indices, starts, d, freely);
    if (holds<float>(values)) return with_values<float>(values, indices, starts, d, freely);
    throw nb::type_error("values must be of float32 or float64");
}

RowLoss row_loss(const AnyArray& y, int code, double parameter, In baseline) {
    RowLoss loss{{}, {}, code, parameter, baseline};
    const Index n = static_cast<Index>(y.shape(0));
    if (holds<double>(y))
        loss.y = {entries<double>(y), n};
    else if (holds<std::int64_t>(y))
        loss.labels = {entries<std::int64_t>(y), n};
    else
        throw nb::type_error("y must be of float64 or int64");
    return loss;
}

double run_sgd(const AnyArray& values, const AnyArray& indices, const AnyArray& starts,
               const AnyArray& y, int code, double loss_parameter, const InArray& baseline,
               int family, int divergence, double parameter, const InArray& sigma,
               const InArray& short_sigma, const OutArray& w, const OutArray& b,
               const Places& order, Index batch_size, double eta, double mu, double nu,
               bool fit_intercept) {
    const RowLoss loss = row_loss(y, code, loss_parameter, view(baseline));
    const Out coef = view(w), free = view(b);
    return with_rows(values, indices, starts, coef.size / free.size, [&](const auto& rows) {
        return sgd(rows, loss, {family, divergence, parameter}, view(sigma), view(short_sigma),
                   coef, free, view(order), batch_size, eta, mu, nu, fit_intercept);
    });
}

void run_lsvrg(const AnyArray& values, const AnyArray& indices, const AnyArray& starts,
               const AnyArray& y, int code, double loss_parameter, const OutArray& w,
               const OutArray& b, const InArray& weights, const Array2<const double>& old_slopes,
               const InArray& g, const InArray& g_b, const Places& draws, double eta, double mu,
               bool fit_intercept) {
    const RowLoss loss = row_loss(y, code, loss_parameter, In());
    const Out coef = view(w), free = view(b);
    with_rows(values, indices, starts, coef.size / free.size, [&](const auto& rows) {
        lsvrg(rows, loss, coef, free, view(weights), view(old_slopes), view(g), view(g_b),
              view(draws), eta, mu, fit_intercept);
    });
}

double run_prospect(const AnyArray& values, const AnyArray& indices, const AnyArray& starts,
                    const AnyArray& y, int code, double loss_parameter, const InArray& baseline,
                    int family, int divergence, double parameter, const InArray& sigma,
                    const InArray& p, const OutArray& w, const OutArray& b, const OutArray& table,
                    const OutArray& q, const Array2<double>& products, const OutArray& g,
                    const OutArray& g_b, const Places& draws, double eta, double mu, double nu,
                    double memory, bool fit_intercept) {
    const RowLoss loss = row_loss(y, code, loss_parameter, view(baseline));
    const Out coef = view(w), free = view(b);
    const ProspectTables tables{view(table), view(q), view(products), view(g), view(g_b)};
    return with_rows(values, indices, starts, coef.size / free.size, [&](const auto& rows) {
        return prospect(rows, loss, {family, divergence, parameter}, view(sigma), view(p), coef,
                        free, tables, view(draws), eta, mu, nu, memory, fit_intercept);
    });
}

}  // namespace

void bind_stochastic(nb::module_& m) {
    m.attr("CAPPED") = static_cast<int>(CAPPED);
    m.attr("BALL") = static_cast<int>(BALL);
    m.attr("SPECTRAL") = static_cast<int>(SPECTRAL);
    m.attr("CHI2") = static_cast<int>(CHI2);
    m.attr("KL") = static_cast<int>(KL);
    const auto array = [](const char* name) { return nb::arg(name).noconvert(); };
    const auto number = [](const char* name) { return nb::arg(name); };
    m.def("sgd", &run_sgd, array("values"), array("indices"), array("starts"), array("y"),
          number("code"), number("loss_parameter"), array("baseline"), number("family"),
          number("divergence"), number("parameter"), array("sigma"), array("short_sigma"),
          array("w"), array("b"), array("order"), number("batch_size"), number("eta"),
          number("mu"), number("nu"), number("fit_intercept"),
          "Minibatch steps along the rows of `order`: the mean of the batches' robust loss.");
    m.def("lsvrg", &run_lsvrg, array("values"), array("indices"), array("starts"), array("y"),
          number("code"), number("loss_parameter"), array("w"), array("b"), array("weights"),
          array("old_slopes"), array("g"), array("g_b"), array("draws"), number("eta"),
          number("mu"), number("fit_intercept"),
          "Steps with the rows `draws` between two checkpoints.");
    m.def("prospect", &run_prospect, array("values"), array("indices"), array("starts"),
          array("y"), number("code"), number("loss_parameter"), array("baseline"),
          number("family"), number("divergence"), number("parameter"), array("sigma"), array("p"),
          array("w"), array("b"), array("table"), array("q"), array("products"), array("g"),
          array("g_b"), array("draws"), number("eta"), number("mu"), number("nu"),
          number("memory"), number("fit_intercept"),
          "Steps with the rows `draws`; returns where the next search for the weights starts.");
}

}  // namespace drago
