// Visits to rows that read X once.
#include <numeric>

#include "bind_visits.hpp"
#include "gram.hpp"
#include "near.hpp"

namespace drago {
namespace {

using nb::literals::operator""_a;

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
            Scratch squares((n + GATHERED - 1) / GATHERED, 0.0);
            in_parts(static_cast<Index>(squares.size()), n_threads, [&](Index k) {
                squares[k] = gather_rows<T, S>(view(X), view(index), view(factors), k * GATHERED,
                                               std::min((k + 1) * GATHERED, n), view(out));
            });
            return std::accumulate(squares.begin(), squares.end(), 0.0);
        },
        "X"_a.noconvert(), "index"_a.noconvert(), "factors"_a.noconvert(), "n_threads"_a,
        "out"_a.noconvert(),
        "``out`` = some of the rows, each times its factor if there are any; returns the sum of\n"
        "their squares.");
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

template <class T>
void bind_near(nb::module_& m) {
    m.def(
        "visit_near",
        [](Array2<const T> X, Index n_parts, Index n_threads, InArray w, double b, int code,
           double parameter, InArray y, InArray p, InArray baseline, double tau, double nu,
           double cap, InArray near_raw, InArray near_losses, InArray near_slopes, InArray reach,
           double distance, double shift, double curvature, double cut, OutArray raw,
           OutArray losses, OutArray slopes, OutArray first, OutArray second) {
            const nb::gil_scoped_release released;
            const Seen seen{view(y), view(p), view(baseline), view(raw), view(losses),
                            view(slopes), {}, {}};
            const Near near{view(near_raw), view(near_losses), view(near_slopes), view(reach),
                            distance, shift, curvature, cut};
            const Tally found =
                visit_near(dense<T>(X), {seen.y.size, n_parts}, n_threads,
                           {w.data(), b, code, parameter}, {CHI2_GUESS, tau, nu, cap}, near, seen,
                           view(first), view(second));
            return std::make_tuple(found.bad, found.first, found.second, found.read);
        },
        "X"_a.noconvert(), "n_parts"_a, "n_threads"_a, "w"_a.noconvert(), "b"_a, "code"_a,
        "parameter"_a, "y"_a.noconvert(), "p"_a.noconvert(), "baseline"_a.noconvert(), "tau"_a,
        "nu"_a, "cap"_a, "near_raw"_a.noconvert(), "near_losses"_a.noconvert(),
        "near_slopes"_a.noconvert(), "reach"_a.noconvert(), "distance"_a, "shift"_a,
        "curvature"_a, "cut"_a, "raw"_a.noconvert(), "losses"_a.noconvert(),
        "slopes"_a.noconvert(), "first"_a.noconvert(), "second"_a.noconvert(),
        "As `visit`, but rows whose loss is provably below the cut are not read: they hold\n"
        "bounds. Also returns how many were read.");
}

template <class T, class I>
SparseRows<T, I> sparse(Array1<const T> data, Array1<const I> indices, Array1<const I> indptr) {
    return {{view(data), view(indices), view(indptr)}};
}

// Visits and products for one kind of storage.
template <class Rows, class... Storage, class... Names>
void bind_memory(nb::module_& m, Rows (*open)(Storage...), Names... names) {
    bind_storage(m, open, names...);
    m.def(
        "predict",
        [open](Storage... storage, Index n_parts, Index n_threads, InArray w, double b,
               OutArray raw) {
            const nb::gil_scoped_release released;
            predict_all(open(storage...), {static_cast<Index>(raw.size()), n_parts}, n_threads,
                        view(w), b, view(raw));
        },
        names..., "n_parts"_a, "n_threads"_a, "w"_a.noconvert(), "b"_a, "raw"_a.noconvert(),
        "``raw = X w + b``.");
    m.def(
        "sum_rows",
        [open](Storage... storage, Index n_parts, Index n_threads, InArray c, OutArray out) {
            const nb::gil_scoped_release released;
            sum_all(open(storage...), {static_cast<Index>(c.size()), n_parts}, n_threads, view(c),
                    view(out));
        },
        names..., "n_parts"_a, "n_threads"_a, "c"_a.noconvert(), "out"_a.noconvert(),
        "``out = sum of c_i x_i``; rows with ``c_i = 0`` are not read.");
}

template <class T>
void bind_type(nb::module_& m) {
    bind_memory(m, dense<T>, "X"_a.noconvert());
    bind_memory(m, sparse<T, std::int32_t>, "data"_a.noconvert(), "indices"_a.noconvert(),
                "indptr"_a.noconvert());
    bind_memory(m, sparse<T, std::int64_t>, "data"_a.noconvert(), "indices"_a.noconvert(),
                "indptr"_a.noconvert());
}

}  // namespace

void bind_visits(nb::module_& m) {
    bind_type<double>(m);
    bind_type<float>(m);
    bind_near<double>(m);
    bind_near<float>(m);
    bind_gram<double>(m);
    bind_gram<float>(m);
    bind_gather<double, double>(m);
    bind_gather<float, float>(m);
    bind_gather<float, double>(m);
}

}  // namespace drago
