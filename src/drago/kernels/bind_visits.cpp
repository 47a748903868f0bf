// Visits to rows that read X once.
#include "bind_visits.hpp"
#include "gram.hpp"

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
