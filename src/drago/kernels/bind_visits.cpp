// Visits to rows that read X once.
#include "bind.hpp"
#include "gram.hpp"
#include "visits.hpp"

namespace drago {
namespace {

using nb::literals::operator""_a;

// The two functions for one kind of storage, whose arrays come first.
template <class Rows, class... Storage, class... Names>
void bind_storage(nb::module_& m, Rows (*open)(Storage...), Names... names) {
    m.def(
        "visit",
        [open](Storage... storage, Index n_parts, Index n_threads, InArray w, double b, int code,
               double parameter, InArray y, InArray p, InArray baseline, int kind, double tau,
               double nu, double cap, OutArray raw, OutArray losses, OutArray slopes,
               OutArray first, OutArray second) {
            nb::gil_scoped_release released;
            const Seen seen{view(y),   view(p),      view(baseline),
                            view(raw), view(losses), view(slopes)};
            const Tally found =
                visit(open(storage...), {seen.y.size, n_parts}, n_threads,
                      {w.data(), b, code, parameter}, {kind, tau, nu, cap}, seen, view(first),
                      view(second));
            return std::make_tuple(found.bad, found.first, found.second);
        },
        names..., "n_parts"_a, "n_threads"_a, "w"_a.noconvert(), "b"_a, "code"_a, "parameter"_a,
        "y"_a.noconvert(), "p"_a.noconvert(), "baseline"_a.noconvert(), "kind"_a, "tau"_a, "nu"_a,
        "cap"_a, "raw"_a.noconvert(), "losses"_a.noconvert(), "slopes"_a.noconvert(),
        "first"_a.noconvert(), "second"_a.noconvert(),
        "Predictions, losses, slopes, and their sums at guessed weights; how many are not finite,\n"
        "and the sums of both kinds of guessed weights.");
    m.def(
        "gradient_after",
        [open](Storage... storage, Index n_parts, Index n_threads, InArray p, InArray q,
               InArray losses, InArray slopes, int kind, double tau, double nu, double cap,
               double sum_first, double sum_second, InArray first, InArray second, OutArray out) {
            const nb::gil_scoped_release released;
            gradient_after(open(storage...), {static_cast<Index>(p.size()), n_parts}, n_threads,
                           {kind, tau, nu, cap}, {view(p), view(q), view(losses), view(slopes)},
                           {0, sum_first, sum_second}, view(first), view(second), view(out));
        },
        names..., "n_parts"_a, "n_threads"_a, "p"_a.noconvert(), "q"_a.noconvert(),
        "losses"_a.noconvert(), "slopes"_a.noconvert(), "kind"_a, "tau"_a, "nu"_a, "cap"_a,
        "sum_first"_a, "sum_second"_a, "first"_a.noconvert(), "second"_a.noconvert(), "out"_a.noconvert(),
        "``out = sum of q s x``, after a visit with a guess of the weights q or without one.");
}

// Rows that a thread gathers at once.
constexpr Index GATHERED = 2048;

template <class T, class S>
void bind_gather(nb::module_& m) {
    m.def(
        "gather_rows",
        [](Array2<const T> X, Array1<const std::int64_t> index, InArray factors, Index n_threads,
           Array2<S> out) {
            const nb::gil_scoped_release released;
            const Index n = static_cast<Index>(index.size());
            in_parts((n + GATHERED - 1) / GATHERED, n_threads, [&](Index k) {
                gather_rows<T, S>(view(X), view(index), view(factors), k * GATHERED,
                                  std::min((k + 1) * GATHERED, n), view(out));
            });
        },
        "X"_a.noconvert(), "index"_a.noconvert(), "factors"_a.noconvert(), "n_threads"_a,
        "out"_a.noconvert(), "``out`` = some of the rows, each times its factor if there are any.");
}

template <class T>
void bind_gram(nb::module_& m) {
    m.def(
        "gram",
        [](Array2<const T> X, Array1<const std::int64_t> index, InArray weight, bool intercept,
           Index n_threads, Array2<double> out) {
            const nb::gil_scoped_release released;
            return gram(view(X), view(index), view(weight), intercept, n_threads, view(out));
        },
        "X"_a.noconvert(), "index"_a.noconvert(), "weight"_a.noconvert(), "intercept"_a,
        "n_threads"_a, "out"_a.noconvert(),
        "``out`` = the sum of ``weight_i f_i f_i'`` over the rows that are listed, f with a last 1\n"
        "for an intercept; returns the greatest ``||x_i||^2`` of them.");
}

template <class T>
DenseRows<T> dense(Array2<const T> X) {
    return DenseRows<T>(view(X));
}

template <class T, class I>
SparseRows<T, I> sparse(Array1<const T> data, Array1<const I> indices, Array1<const I> indptr) {
    return {{view(data), view(indices), view(indptr)}};
}

template <class T>
void bind_type(nb::module_& m) {
    bind_storage(m, dense<T>, "X"_a.noconvert());
    bind_storage(m, sparse<T, std::int32_t>, "data"_a.noconvert(), "indices"_a.noconvert(),
                 "indptr"_a.noconvert());
    bind_storage(m, sparse<T, std::int64_t>, "data"_a.noconvert(), "indices"_a.noconvert(),
                 "indptr"_a.noconvert());
}

}  // namespace

void bind_visits(nb::module_& m) {
    bind_type<double>(m);
    bind_type<float>(m);
    bind_gram<double>(m);
    bind_gram<float>(m);
    bind_gather<double, double>(m);
    bind_gather<float, float>(m);
    bind_gather<float, double>(m);
}

}  // namespace drago
