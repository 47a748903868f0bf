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

void bind_gather(nb::module_& m) {
    m.def(
        "gather_rows",
        [](AnyMatrix X, Array1<const std::int64_t> index, InArray factors, Index n_threads,
           std::variant<Array2<double>, Array2<float>> out) {
            const auto gather = [&](auto from, auto to) -> double {
                using T = std::remove_const_t<typename decltype(from)::Entry>;
                using S = typename decltype(to)::Entry;
                if constexpr (sizeof(S) < sizeof(T)) throw nb::next_overload();  // a TypeError
                const nb::gil_scoped_release released;
                const Index n = static_cast<Index>(index.size());
                Scratch squares((n + GATHERED - 1) / GATHERED, 0.0);
                in_parts(static_cast<Index>(squares.size()), n_threads, [&](Index k) {
                    squares[k] =
                        gather_rows<T, S>(view(from), view(index), view(factors), k * GATHERED,
                                          std::min((k + 1) * GATHERED, n), view(to));
                });
                return std::accumulate(squares.begin(), squares.end(), 0.0);
            };
            return std::visit(gather, X, out);
        },
        "X"_a.noconvert(), "index"_a.noconvert(), "factors"_a.noconvert(), "n_threads"_a,
        "out"_a.noconvert(),
        "``out`` = some of the rows, each times its factor if there are any; returns the sum of\n"
        "their squares.");
}

void bind_gram(nb::module_& m) {
    m.def(
        "gram",
        [](AnyMatrix X, Array1<const std::int64_t> index, InArray weight, bool intercept,
           Index n_threads, Array2<double> out) {
            const nb::gil_scoped_release released;
            const auto sum = [&](auto x) {
                return gram(view(x), view(index), view(weight), intercept, n_threads, view(out));
            };
            return std::visit(sum, X);
        },
        "X"_a.noconvert(), "index"_a.noconvert(), "weight"_a.noconvert(), "intercept"_a,
        "n_threads"_a, "out"_a.noconvert(),
        "``out`` = the sum of ``weight_i f_i f_i'`` over the rows that are listed, f with a last 1\n"
        "for an intercept; returns the greatest ``||x_i||^2`` of them.");
}

using AnyDense = std::variant<DenseRows<double>, DenseRows<float>>;
using AnySparse = std::variant<SparseRows<double, std::int32_t>, SparseRows<double, std::int64_t>,
                               SparseRows<float, std::int32_t>, SparseRows<float, std::int64_t>>;

AnyDense dense(AnyMatrix X) {
    return std::visit([](auto x) -> AnyDense { return DenseRows(view(x)); }, X);
}

template <class T, class I>
AnySparse sparse_rows(const Csr<T, I>& X) {
    return SparseRows<T, I>{X};
}

AnySparse sparse(AnyVector data, AnyInts indices, AnyInts indptr) {
    return std::visit([](auto X) { return sparse_rows(X); }, csr(data, indices, indptr));
}

void bind_near(nb::module_& m) {
    m.def(
        "visit_near",
        [](AnyMatrix X, Index n_parts, Index n_threads, InArray w, double b, int code,
           double parameter, InArray y, InArray p, InArray baseline, double tau, double nu,
           double cap, InArray near_raw, InArray near_losses, InArray near_slopes, InArray reach,
           double distance, double shift, double curvature, double cut, OutArray raw,
           OutArray losses, OutArray slopes, OutArray first, OutArray second) {
            require_shares(p, y);
            const nb::gil_scoped_release released;
            const Seen seen{view(y), view(p), view(baseline), view(raw), view(losses),
                            view(slopes), {}, {}};
            const Near near{view(near_raw), view(near_losses), view(near_slopes), view(reach),
                            distance, shift, curvature, cut};
            const auto visit_some = [&](const auto& rows) {
                return visit_near(rows, {seen.y.size, n_parts}, n_threads,
                                  {w.data(), b, code, parameter}, {CHI2_GUESS, tau, nu, cap}, near,
                                  seen, view(first), view(second));
            };
            const Tally found = std::visit(visit_some, dense(X));
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

// Visits and products for one kind of storage.
template <class AnyRows, class... Storage, class... Names>
void bind_memory(nb::module_& m, AnyRows (*open)(Storage...), Names... names) {
    bind_storage(m, open, names...);
    m.def(
        "predict",
        [open](Storage... storage, Index n_parts, Index n_threads, InArray w, double b,
               OutArray raw) {
            const nb::gil_scoped_release released;
            const auto predict = [&](const auto& rows) {
                predict_all(rows, {static_cast<Index>(raw.size()), n_parts}, n_threads, view(w), b,
                            view(raw));
            };
            std::visit(predict, open(storage...));
        },
        names..., "n_parts"_a, "n_threads"_a, "w"_a.noconvert(), "b"_a, "raw"_a.noconvert(),
        "``raw = X w + b``.");
    m.def(
        "sum_rows",
        [open](Storage... storage, Index n_parts, Index n_threads, InArray c, OutArray out) {
            const nb::gil_scoped_release released;
            const auto sum = [&](const auto& rows) {
                sum_all(rows, {static_cast<Index>(c.size()), n_parts}, n_threads, view(c),
                        view(out));
            };
            std::visit(sum, open(storage...));
        },
        names..., "n_parts"_a, "n_threads"_a, "c"_a.noconvert(), "out"_a.noconvert(),
        "``out = sum of c_i x_i``; rows with ``c_i = 0`` are not read.");
}

}  // namespace

void bind_visits(nb::module_& m) {
    bind_memory(m, dense, "X"_a.noconvert());
    bind_memory(m, sparse, "data"_a.noconvert(), "indices"_a.noconvert(), "indptr"_a.noconvert());
    bind_near(m);
    bind_gram(m);
    bind_gather(m);
}

}  // namespace drago
