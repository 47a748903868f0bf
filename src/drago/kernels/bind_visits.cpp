// Visits to rows that read X once.
#include "bind.hpp"
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
            return std::make_tuple(found.bad, found.mass);
        },
        names..., "n_parts"_a, "n_threads"_a, "w"_a.noconvert(), "b"_a, "code"_a, "parameter"_a,
        "y"_a.noconvert(), "p"_a.noconvert(), "baseline"_a.noconvert(), "kind"_a, "tau"_a, "nu"_a,
        "cap"_a, "raw"_a.noconvert(), "losses"_a.noconvert(), "slopes"_a.noconvert(),
        "first"_a.noconvert(), "second"_a.noconvert(),
        "Predictions, losses, slopes, and their sums at guessed weights; how many are not finite,\n"
        "and the sum of the guessed weights.");
    m.def(
        "gradient_after",
        [open](Storage... storage, Index n_parts, Index n_threads, InArray p, InArray q,
               InArray losses, InArray slopes, int kind, double tau, double nu, double cap,
               InArray first, InArray second, OutArray out) {
            const nb::gil_scoped_release released;
            gradient_after(open(storage...), {static_cast<Index>(p.size()), n_parts}, n_threads,
                           {kind, tau, nu, cap}, {view(p), view(q), view(losses), view(slopes)},
                           view(first), view(second), view(out));
        },
        names..., "n_parts"_a, "n_threads"_a, "p"_a.noconvert(), "q"_a.noconvert(),
        "losses"_a.noconvert(), "slopes"_a.noconvert(), "kind"_a, "tau"_a, "nu"_a, "cap"_a,
        "first"_a.noconvert(), "second"_a.noconvert(), "out"_a.noconvert(),
        "``out = sum of q s x``, after a visit with a guess of the weights q or without one.");
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
}

}  // namespace drago
